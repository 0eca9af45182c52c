"""LoRA of a small causal language model with the Hugging Face Trainer and PEFT. Argument: batch."""

import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

TOKENS = 256


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.full((TOKENS,), index % 1000)
        return {"input_ids": ids, "labels": ids}


def main(batch: int) -> None:
    config = LlamaConfig(
        vocab_size=1000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=batch, max_steps=3, bf16=True, report_to=[], save_strategy="no"
        )
        Trainer(model, arguments, train_dataset=Sentences()).train()


if __name__ == "__main__":
    main(int(sys.argv[1]))

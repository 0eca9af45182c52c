"""Captions become the ids CLIP knows, and the hidden states each family's U-Net was trained on."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from autotune.errors import ConfigError, ModelError
from trainer.families.load import Components, load_components
from trainer.families.text import Conditioning, encode_prompts
from trainer.families.tokenizer import END, ZERO, clip_tokenizer, load_tokenizer, write_tokenizer

KNOWN = {  # from OpenAI's tokenizer
    "a photo of a cat": [49406, 320, 1125, 539, 320, 2368, 49407],
    "A  Photo\nof a CAT": [49406, 320, 1125, 539, 320, 2368, 49407],
    "": [49406, 49407],
    "hello world!": [49406, 3306, 1002, 256, 49407],
}


@pytest.mark.parametrize("caption", list(KNOWN))
def test_captions_become_clips_own_ids(caption: str) -> None:
    assert clip_tokenizer()(caption).input_ids == KNOWN[caption]


@pytest.mark.parametrize(("pad", "number"), [(END, 49407), (ZERO, 0)])
def test_padding_follows_the_encoder(pad: str, number: int) -> None:
    ids = clip_tokenizer(pad)("cat", padding="max_length", max_length=77).input_ids
    assert ids == [49406, 2368, 49407] + [number] * 74


def test_every_id_below_the_vocabulary_size_is_used_once() -> None:
    vocabulary = clip_tokenizer().get_vocab()
    assert sorted(vocabulary.values()) == list(range(49408))


def test_any_text_comes_back_from_its_ids() -> None:
    tokenizer = clip_tokenizer()
    text = "naïve café, 東京 – ½ 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True).replace(" ", "") == text.replace(
        " ", ""
    )


def test_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(ModelError, match="has 2 tokens"):
        load_tokenizer(tmp_path)


def test_tokenizer_of_another_length_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 20}))
    with pytest.raises(ModelError, match="length 20"):
        load_tokenizer(tmp_path)


def test_folder_without_a_tokenizer_gets_the_shipped_one(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path, ZERO)("cat").input_ids == [49406, 2368, 49407]


def _states(components: Components, number: int, caption: str) -> tuple[torch.Tensor, ...]:
    """The encoder's residual stream before, between and after its layers, run by hand."""
    encoder = components.text_encoders[number]
    body = getattr(encoder, "text_model", encoder)
    ids = torch.tensor([components.tokenizers[number](caption, padding="max_length", max_length=77).input_ids])
    states = [body.embeddings(input_ids=ids)]
    mask = torch.full((77, 77), float("-inf")).triu(1)[None, None]
    for layer in body.encoder.layers:
        out = layer(states[-1], mask)
        states.append(out[0] if isinstance(out, tuple) else out)
    return tuple(states)


@torch.no_grad()
@pytest.mark.parametrize(("clip_skip", "state"), [(None, -1), (1, -1), (2, -2)])
def test_sd1_reads_the_nth_last_state_through_the_final_norm(
    tiny_components: Mapping[str, Components], clip_skip: int | None, state: int
) -> None:
    components = tiny_components["sd1"]
    told = encode_prompts(components, ["a cat"], clip_skip)
    encoder = components.text_encoders[0]
    norm = getattr(encoder, "text_model", encoder).final_layer_norm
    torch.testing.assert_close(told.hidden, norm(_states(components, 0, "a cat")[state]))
    assert told.hidden.shape == (1, 77, 64)
    assert told.pooled is None


@torch.no_grad()
def test_sdxl_reads_the_last_but_one_states_and_the_projected_end(
    tiny_components: Mapping[str, Components],
) -> None:
    components = tiny_components["sdxl"]
    told = encode_prompts(components, ["a cat"], clip_skip=2)
    first, second = _states(components, 0, "a cat"), _states(components, 1, "a cat")
    torch.testing.assert_close(told.hidden, torch.cat([first[-2], second[-2]], dim=-1))
    encoder = components.text_encoders[1]
    end = encoder.text_model.final_layer_norm(second[-1])[:, 3]  # start, a, cat, end
    torch.testing.assert_close(told.pooled, encoder.text_projection(end))
    assert told.hidden.shape == (1, 77, 128)


@torch.no_grad()
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_captions_matter_and_batches_do_not(tiny_components: Mapping[str, Components], family: str) -> None:
    components = tiny_components[family]
    captions = ["a cat", "a dog", "word " * 200]
    together = encode_prompts(components, captions)
    apart = Conditioning.stack([encode_prompts(components, [caption]) for caption in captions])
    torch.testing.assert_close(together.hidden, apart.hidden)
    assert (together.hidden[0] - together.hidden[1]).abs().max() > 0.1
    moved = together.map(lambda tensor: tensor + 1)
    assert torch.equal(moved.hidden, together.hidden + 1)
    assert (moved.pooled is None) == (family == "sd1")


@pytest.mark.parametrize("clip_skip", [3, -1])
def test_clip_skip_beyond_the_layers_is_refused(tiny_components: Mapping[str, Components], clip_skip: int) -> None:
    with pytest.raises(ConfigError, match=r"outside 1\.\.2"):
        encode_prompts(tiny_components["sd1"], ["a cat"], clip_skip)


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_gradients_reach_every_encoder_alike_with_and_without_checkpointing(
    tiny_folders: Mapping[str, Path], family: str
) -> None:
    components = load_components(tiny_folders[family], torch.float32)
    gradients = []
    for checkpointing in (False, True):
        for encoder in components.text_encoders:
            encoder.requires_grad_(True).train()
            if checkpointing:
                encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        told = encode_prompts(components, ["a cat"])
        (told.hidden.square().sum() + (0 if told.pooled is None else told.pooled.sum())).backward()
        weights = [e.get_parameter(_first_weight(e)) for e in components.text_encoders]
        gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
        for encoder in components.text_encoders:
            encoder.zero_grad()
    assert len(gradients[0]) == len(components.text_encoders)
    for plain, checkpointed in zip(*gradients, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(plain, checkpointed)


def _first_weight(encoder: torch.nn.Module) -> str:
    return next(name for name, _ in encoder.named_parameters() if name.endswith("layers.0.mlp.fc1.weight"))

"""A loop with accelerate and its fp16 gradient scaler. Argument: batch."""

import sys

import torch
from accelerate import Accelerator

WIDTH = 2048


def main(batch: int) -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(3):
        loss = model(torch.randn(batch, WIDTH, device=accelerator.device)).float().square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""A training loop that knows nothing of autotune. Arguments: batch, and `catch` to go on after out of memory."""

import sys

import torch

WIDTH = 2048


def train(model: torch.nn.Module, batch: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = forward(model, batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def forward(model: torch.nn.Module, batch: int) -> torch.Tensor:
    return model(torch.randn(batch, WIDTH, device="cuda"))


def main(batch: int, catch: bool) -> None:
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    try:
        train(model, batch)
    except torch.OutOfMemoryError:
        if not catch:
            raise
        train(model, 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), "catch" in sys.argv)

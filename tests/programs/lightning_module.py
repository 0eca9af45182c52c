"""A Lightning module. Argument: batch."""

import sys

import lightning
import torch

WIDTH = 2048


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main(batch: int) -> None:
    data = torch.utils.data.DataLoader(torch.zeros(4 * batch, WIDTH), batch_size=batch)
    trainer = lightning.Trainer(
        max_steps=3,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), data)


if __name__ == "__main__":
    main(int(sys.argv[1]))

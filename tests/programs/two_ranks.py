"""Data-parallel training over gloo, one card a rank; start it with torchrun. Argument: the second rank's batch."""

import os
import sys

import torch
import torch.distributed as dist

WIDTH = 1024


def main(second_batch: int) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(second_batch if rank else 8, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))

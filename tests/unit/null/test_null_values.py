"""What can be read back from a null card: what was sent up, as long as nothing ran there; zeros after that."""

import pytest

from tests.conftest import NullGpu

PROGRAM = """
import json, torch
sent = torch.arange(100)
up = sent.cuda()
answers = [torch.equal(up.cpu(), sent)]                      # nothing ran since
answers.append(torch.equal(up[10:20].cpu(), sent[10:20]))    # a part
other = torch.empty(100, dtype=torch.int64, device="cuda")
other.copy_(up)
answers.append(torch.equal(other.cpu(), sent))               # from card to card
up.add_(1)                                                   # a kernel: nobody knows what is there
answers += [up.cpu().abs().sum().item() == 0, other.cpu().abs().sum().item() == 0]
again = sent.cuda(); del again
fresh = torch.empty(100, dtype=torch.int64, device="cuda")   # the same place, from the cache
answers.append(torch.ones(1, device="cuda").item() == 0)
large = torch.ones(1 << 20).cuda()
answers.append(large.cpu().sum().item() == 0)
print(json.dumps(answers))
"""


def test_a_copy_is_there_until_something_runs_on_the_card(null_gpu: NullGpu) -> None:
    assert null_gpu.answer(PROGRAM, "4GiB@8.6") == [True] * 7


SESSION = """
import json
from autotune.device.session import DeviceSpec, open_session
from autotune.errors import DeviceError
try:
    open_session(DeviceSpec.parse("null:4GiB@8.6"))
    print(json.dumps(""))
except DeviceError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", ""),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "not cudaMallocAsync. Take backend: out"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PyTorch counts no memory. Unset it."),
    ],
)
def test_an_allocator_whose_bytes_are_not_counted_is_refused(
    null_gpu: NullGpu, variable: str, value: str, said: str
) -> None:
    answer = null_gpu.answer(SESSION, "4GiB@8.6", **{variable: value})
    assert said in answer
    assert bool(answer) == bool(said)

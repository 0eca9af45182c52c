"""Broken inputs: each one clear line with a way out and its exit code; nothing is changed, nothing is run."""

import pickle
import sys
from pathlib import Path

import pytest
from e2e_harness import QUICK, Desk, assert_error, write_photos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leftovers are looked up in /proc")

LOUD = "CUDA out of memory. Tried to allocate 2.00 GiB"
TRAIN = ("train", "--config", "config.toml", "--device", "virtual:1GiB", *QUICK)


class Payload:
    """What a malicious pickle does when it is loaded without care."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.witness,)


@pytest.mark.xdist_group("e2e-inputs-1")
def test_broken_pictures_are_named_and_their_captions_are_no_out_of_memory(furnished: Desk) -> None:
    """The texts quote an out-of-memory message, in a file's name and in its caption: still a data error."""
    folder = write_photos(furnished.folder / "broken")
    (folder / "cat.jpg").write_bytes((folder / "cat.jpg").read_bytes()[:3000])
    (folder / "coffee.jpg").write_bytes(b"")
    (folder / f"{LOUD}.png").write_bytes(b"no picture")
    (folder / f"{LOUD}.txt").write_text(f"torch.OutOfMemoryError: {LOUD}", "utf-8")
    before = furnished.files("broken")
    result = furnished.run(*TRAIN, "--set", "train_data_dir=broken", code=4)
    assert_error(result, "3 of 5 images", "cat.jpg (truncated", "coffee.jpg (empty: 0 bytes)", f"{LOUD}.png")
    assert furnished.files("broken") == before
    assert furnished.files() == []


@pytest.mark.xdist_group("e2e-inputs-2")
def test_a_base_model_cut_short_says_so_with_both_sizes(furnished: Desk) -> None:
    whole = (furnished.folder / "base.safetensors").read_bytes()
    (furnished.folder / "cut.safetensors").write_bytes(whole[:200_000])
    result = furnished.run(*TRAIN, "--set", "pretrained_model_name_or_path=cut.safetensors", code=5)
    assert_error(result, "cut.safetensors is cut short", "200,000 bytes", f"{len(whole):,}", "Download")


@pytest.mark.xdist_group("e2e-inputs-2")
def test_a_hostile_ckpt_is_refused_and_its_payload_never_runs(furnished: Desk) -> None:
    import torch

    witness = furnished.folder / "payload-ran"
    torch.save({"state_dict": {"w": torch.zeros(1)}, "run": Payload(witness)}, furnished.folder / "evil.ckpt")
    result = furnished.run(*TRAIN, "--set", "pretrained_model_name_or_path=evil.ckpt", code=5)
    assert_error(result, "evil.ckpt")
    assert not witness.exists()
    pickle.loads(pickle.dumps(Payload(witness)))
    assert witness.exists()  # it would have

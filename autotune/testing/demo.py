"""The demo: the whole main job on whatever is here, in one folder, with nothing downloaded.

Makes a tiny Stable Diffusion base model (real classes, random weights), copies the packaged photographs, writes
a kohya-style config.toml that is too large for the memory it gets, and runs the same commands a user would.
Then it loads the LoRA with diffusers to show that other tools can. Pictures are noise: the base knows nothing.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.device.probe import detect_default_device
from autotune.units import MIB, format_mib

VIRTUAL = "virtual:50MiB"
"""Too little for the recipe (batch 4 at 512 px), enough after four rungs."""

CONFIG = """\
# The demo's recipe, kohya style. It asks for more memory than the demo's device has.
[model]
pretrained_model_name_or_path = "base"

[training]
output_dir = "output"
output_name = "photos"
logging_dir = "logs"
max_train_steps = 12
train_batch_size = 4
gradient_checkpointing = false
mixed_precision = "bf16"
optimizer_type = "AdamW8bit"
learning_rate = 1e-3
lr_scheduler = "cosine"
lr_warmup_steps = 2
sample_steps = 8
seed = 42

[network]
network_module = "networks.lora"
network_dim = 32
network_alpha = 16

[dataset]
train_data_dir = "photos"
resolution = "512,512"
enable_bucket = true
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code of the first command that fails, else 0."""
    parser = argparse.ArgumentParser(description="Run autotune's main job on a tiny model.")
    parser.add_argument("--folder", type=Path, default=Path("demo-run"), help="where everything is written")
    parser.add_argument("--device", help="a device instead of the one found, such as virtual:50MiB or cuda:1")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.absolute()
    _quiet_libraries()
    _say(f"Preparing a tiny base model and {_prepare(folder)} photographs in {folder}.")
    device = options.device or _default_device()
    command = ["train", "--config", "config.toml", "--fit-vram", "--device", device]
    if device.startswith("cuda"):
        command += ["--vram-limit", _too_small_limit(folder, device)]
    code = _autotune(folder, command)
    return code or _reload(folder)


def _quiet_libraries() -> None:
    """Keep hints and bars of diffusers and transformers off the screen: none is about the demo."""
    for name in ("DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="diffusers")


def _default_device() -> str:
    found = detect_default_device()
    if found.spec.kind == "cuda":
        _say(found.reason)
        return str(found.spec)
    _say(f"{found.reason.split(str(found.spec))[0].strip()} The demo runs on {VIRTUAL}: the CPU, memory counted.")
    return VIRTUAL


def _prepare(folder: Path) -> int:
    """Model, photographs and config in `folder`, each only if it is not there yet; the number of photographs."""
    from autotune.testing.photos import list_photos, write_demo_dataset
    from autotune.testing.tiny import make_tiny

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base" / "model_index.json").exists():
        make_tiny(folder / "base", "sd1")
    if not (folder / "photos").exists():
        write_demo_dataset(folder / "photos")
    if not (folder / "config.toml").exists():
        (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    return len(list_photos())


def _too_small_limit(folder: Path, device: str) -> str:
    """A limit under which the recipe can't run on this card: its context and half of what the recipe took."""
    _say("First without a limit, to learn what the recipe takes on this card.")
    told = _autotune_json(folder, ["probe", "--config", "config.toml", "--device", device, "--json"])
    reserved = told["trials"][-1]["peak_reserved_bytes"]
    limit = told["context_bytes"] + reserved // 2
    _say(f"It reserves {format_mib(reserved)}; now with room for half of that.")
    return f"{limit // MIB}MiB"


def _autotune(folder: Path, arguments: Sequence[str]) -> int:
    _say(f"$ autotune {shlex.join(arguments)}")
    return subprocess.run(_command(arguments), cwd=folder, env=_environment(folder)).returncode


def _autotune_json(folder: Path, arguments: Sequence[str]) -> dict[str, Any]:
    _say(f"$ autotune {shlex.join(arguments)}")
    done = subprocess.run(
        _command(arguments), cwd=folder, env=_environment(folder), stdout=subprocess.PIPE, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "autotune", *arguments]


def _environment(folder: Path) -> dict[str, str]:
    """Profiles and the record of confirmations stay in the demo's folder."""
    return {**os.environ, "AUTOTUNE_PROFILES": str(folder / "profiles"), "XDG_STATE_HOME": str(folder / "state")}


def _reload(folder: Path) -> int:
    """Load the newest LoRA into a fresh diffusers pipeline and say how many layers came in."""
    lora = max((folder / "output").glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    from diffusers import StableDiffusionPipeline
    from diffusers.utils.logging import disable_progress_bar
    from peft.tuners.lora import LoraLayer

    disable_progress_bar()
    pipeline = StableDiffusionPipeline.from_pretrained(folder / "base", local_files_only=True, safety_checker=None)
    pipeline.load_lora_weights(lora.parent, weight_name=lora.name, local_files_only=True)
    parts = {"U-Net": pipeline.unet, "text encoder": pipeline.text_encoder}
    counts = {name: sum(isinstance(m, LoraLayer) for m in part.modules()) for name, part in parts.items()}
    loaded = ", ".join(f"{count} {name} layers" for name, count in counts.items())
    _say(f"diffusers loads {lora.name}: {loaded}.")
    _say(f"Look into {folder}: output/ (LoRA, picture), profiles/, logs/ (train.log, events.jsonl).")
    return 0 if all(counts.values()) else 1


def _say(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

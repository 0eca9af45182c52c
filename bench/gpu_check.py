"""The check on a real card, in at most ten minutes: `python -m bench.gpu_check [--minutes 10] [--device cuda:0]`.

Owns the order of the parts and their time. Each part runs in a process of its own that is ended when its time
is over, so that a hung driver costs one part and not the check; what a part had found by then stays. The last
line of the output is one JSON object, evidence class `measured`. Without a card it says so in one sentence and
ends well. Must never count a part that did not run as passed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from autotune import posix
from autotune.device.session import DeviceSpec, Evidence
from autotune.device.torch_answer import ask_torch
from autotune.errors import AutotuneError
from bench.findings import Findings, Skipped

LEAST_SECONDS = 15.0  # less is not worth starting a part
USUAL_CONTEXT_BYTES = 700 << 20  # where the first part could not measure it


@dataclass(frozen=True)
class Part:
    """One part: what it shows, how long it may take, and what to run in its process."""

    title: str
    seconds: float
    run: Callable[["Place", Findings], None]


@dataclass(frozen=True)
class Place:
    """Where a part runs: the device, the check's folder, and the context's bytes as the first part saw them."""

    device: DeviceSpec
    folder: Path
    context_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part, or one (`--part`, in the process made for it). Exit code 0 if all passed or no card."""
    options = _parse(arguments)
    if options.part:
        folder = Path(options.folder)
        return run_part(options.part, Place(DeviceSpec.parse(options.device), folder, options.context_bytes))
    reason = _no_card(options.device)
    if reason:
        print(f"No card was checked: {reason}.")
        print(json.dumps({"skipped": reason}))
        return 0
    result = check(options.device, options.minutes * 60)
    print(json.dumps(result))
    return 0 if result["passed"] else 1


def check(device: str, seconds: float) -> dict[str, Any]:
    """All parts on `device` within `seconds`; prints each as it ends."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="autotune-gpu-check-"))
    done: dict[str, Findings] = {}
    try:
        for name, part in PARTS.items():
            left = seconds - (time.monotonic() - began)
            started = time.monotonic()
            context = done["probe"].numbers.get("context_with_kernels_bytes") if "probe" in done else None
            done[name] = _run_in_process(name, part, device, folder, context or USUAL_CONTEXT_BYTES, left)
            print(describe(part.title, done[name], time.monotonic() - started), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "evidence": Evidence.MEASURED.value,
        "device": device,
        "passed": all(found.skipped or found.passed for found in done.values())
        and any(found.passed for found in done.values()),
        "seconds": round(time.monotonic() - began, 1),
        "parts": {name: found.to_json() for name, found in done.items()},
    }


def run_part(name: str, place: Place) -> int:
    """Run one part here and leave what it found in its file. Exit code 0 whatever it found."""
    found = Findings(_file(place.folder, name))
    try:
        PARTS[name].run(place, found)
        found.end()
    except Skipped as reason:
        found.end(skipped=str(reason))
    except AutotuneError as error:
        traceback.print_exc()
        found.end(error=str(error))
    except Exception as error:
        traceback.print_exc()
        found.end(error=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
    return 0


def describe(title: str, found: Findings, seconds: float) -> str:
    """A part in lines for people: how it ended, each check, the numbers that are short enough."""
    word = "SKIP" if found.skipped else "pass" if found.passed else "FAIL"
    lines = [f"{word}  {title} ({seconds:.0f} s)"]
    lines += [f"      {text}" for text in (found.skipped, found.error) if text]
    for check in found.checks:
        detail = f": {check.detail}" if check.detail else ""
        lines.append(f"  {'ok ' if check.passed else 'NOT'} {check.name}{detail}"[:240])
    lines += [f"      {line}"[:240] for line in _number_lines(found.numbers)]
    return "\n".join(lines)


def _probe(place: Place, found: Findings) -> None:
    from bench.gpu_memory import check_probe

    check_probe(place.device, found)


def _budget(place: Place, found: Findings) -> None:
    import torch

    from autotune.device.cuda import CudaSession
    from autotune.device.probe import read_gpus, visible_devices
    from bench.gpu_memory import LIMIT_BYTES, check_budget, own_bytes

    ordinal = int(place.device.argument or 0)
    device = visible_devices(read_gpus()).devices[ordinal]
    session = CudaSession(ordinal)
    free, _ = torch.cuda.mem_get_info(ordinal)
    check_budget(session, min(LIMIT_BYTES, free // 2), lambda: own_bytes(device), found)


def _oom(place: Place, found: Findings) -> None:
    import torch

    from autotune.device.cuda import CudaSession
    from bench.gpu_memory import check_oom

    ordinal = int(place.device.argument or 0)
    check_oom(CudaSession(ordinal), torch.cuda.mem_get_info(ordinal)[0], found)


def _worker(place: Place, found: Findings) -> None:
    from bench.gpu_jobs import check_worker, tiny_job

    check_worker(place.device, tiny_job(place.folder), place.context_bytes, found)


def _tiny_walk(place: Place, found: Findings) -> None:
    from bench.gpu_jobs import check_walk, tiny_job

    check_walk(place.device, tiny_job(place.folder), place.context_bytes, 3, found)


def _full_walk(place: Place, found: Findings) -> None:
    from bench.gpu_jobs import check_walk, full_job

    check_walk(place.device, full_job(place.folder), place.context_bytes, 5, found)


def _training(place: Place, found: Findings) -> None:
    from bench.gpu_jobs import check_training, tiny_job

    check_training(place.device, tiny_job(place.folder), found)


def _full_training(place: Place, found: Findings) -> None:
    from bench.gpu_jobs import check_training, full_job

    check_training(place.device, full_job(place.folder), found)


def _forecast(family: str, place: Place, found: Findings) -> None:
    import torch

    from autotune.controller.forecast import Architecture
    from autotune.trial.process import Launch
    from bench.gpu_forecasts import CONFIGS, check_forecast

    card = torch.cuda.get_device_properties(int(place.device.argument or 0))
    architecture = Architecture((card.major, card.minor), card.multi_processor_count)
    launch = Launch(log_path=place.folder / "worker.log")
    check_forecast(place.device, CONFIGS[family], architecture, launch, found)


PARTS: Mapping[str, Part] = {
    "probe": Part("probe: NVML, CUDA and the catalogue agree", 60, _probe),
    "budget": Part("budget: the cap is kept and fails cleanly", 45, _budget),
    "oom": Part("a real out-of-memory is recognised and leaves nothing", 45, _oom),
    "worker": Part("a worker survives an out-of-memory", 90, _worker),
    "tiny_walk": Part("ladder walk, tiny SD 1.x", 120, _tiny_walk),
    "training": Part("training run to a LoRA that reloads, tiny SD 1.x", 90, _training),
    "full_walk": Part("ladder walk, SD 1.5 at full size", 180, _full_walk),
    "full_training": Part("training run to a LoRA that reloads, SD 1.5 at full size", 120, _full_training),
    "forecast_sd1": Part("forecast against the card, SD 1.5", 120, partial(_forecast, "sd1")),
    "forecast_sdxl": Part("forecast against the card, SDXL", 150, partial(_forecast, "sdxl")),
    "forecast_flux2": Part("forecast against the card, FLUX.2-klein", 180, partial(_forecast, "flux2")),
}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_check", description="Check autotune on a real card."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together (default 10)")
    parser.add_argument("--device", default="cuda:0", help="cuda or cuda:N (default cuda:0)")
    parser.add_argument("--part", choices=list(PARTS), help="run one part in this process, as the check does")
    parser.add_argument("--folder", default=".", help="with --part: where its files go")
    parser.add_argument("--context-bytes", type=int, default=USUAL_CONTEXT_BYTES, help="with --part")
    options = parser.parse_args(arguments)
    if not options.device.startswith("cuda"):
        parser.error(f"--device {options.device}: a real card is checked, so use cuda or cuda:N")
    return options


def _no_card(device: str) -> str:
    """Why `device` can't be checked, or empty."""
    answer = ask_torch(os.environ, use=True)
    ordinal = int(DeviceSpec.parse(device).argument or 0)
    if ordinal < len(answer.devices):
        problem = answer.devices[ordinal].problem
        return f"torch {answer.version} can't use {device}: {problem}".rstrip(".") if problem else ""
    return (answer.reason or f"there is no {device}: torch sees {len(answer.devices)} card(s)").rstrip(".")


def _run_in_process(
    name: str,
    part: Part,
    device: str,
    folder: Path,
    context_bytes: int,
    left_s: float,
    program: Sequence[str] = (sys.executable, "-m", "bench.gpu_check"),
) -> Findings:
    if left_s < LEAST_SECONDS:
        return Findings(skipped="no time was left")
    seconds = min(part.seconds, left_s)
    where = ["--device", device, "--folder", str(folder), "--context-bytes", str(context_bytes)]
    process = subprocess.Popen([*program, "--part", name, *where], start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return _unfinished(folder, name, f"not done after its {seconds:.0f} s")
    finally:
        posix.kill_group(process.pid)  # its workers end with it
        process.wait()
    return (
        Findings.read(_file(folder, name)) if code == 0 else _unfinished(folder, name, f"ended with code {code}")
    )


def _unfinished(folder: Path, name: str, error: str) -> Findings:
    found = Findings.read(_file(folder, name))
    found.error = error
    return found


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _number_lines(numbers: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in numbers.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{name}: {json.dumps(row)}" for row in value]
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())

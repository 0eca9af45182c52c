"""How long the fit frontier takes without a GPU: `python -m bench.forecast_speed [--quick]`.

Runs `autotune plan` for every memory size of one architecture, batches 1 to 64, without and with checkpointing,
process start included: cold (an empty forecast cache) and again from the cache. Tells the host's memory too: the
resident bytes of the command and its workers together, at their largest. The limits are what the project promises
on two cores with nothing else running.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.device.catalogue import load_catalogue
from autotune.device.null.places import cache_folder
from autotune.units import GIB, KIB

CAPABILITY = (8, 6)
LIMITS_S = {"sd1": 30.0, "sdxl": 60.0, "flux1": 60.0}
CACHED_LIMIT_S = 1.0
HOST_LIMIT_BYTES = 6 * GIB
LOOK_EVERY_S = 0.25
VERDICTS = (0, 7, 13)  # the exit codes of `plan` that are answers


@dataclass(frozen=True)
class Timing:
    """One family: seconds cold and from the cache, CPU seconds cold, and the most that all its processes held."""

    family: str
    cold_s: float
    cold_cpu_s: float
    cached_s: float
    host_bytes: int
    cards: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="SD 1.x alone")
    families = ["sd1"] if parser.parse_args().quick else list(LIMITS_S)
    timings = [time_family(family) for family in families]
    print(f"{'family':8} {'cold s':>8} {'limit':>6} {'CPU s':>7} {'cached s':>9} {'host MiB':>9}")
    for timing in timings:
        print(
            f"{timing.family:8} {timing.cold_s:8.1f} {LIMITS_S[timing.family]:6.0f} {timing.cold_cpu_s:7.1f} "
            f"{timing.cached_s:9.2f} {timing.host_bytes >> 20:9,}"
        )
    print(json.dumps({"load": os.getloadavg()[0], "families": [asdict(t) | {"kept": kept(t)} for t in timings]}))


def kept(timing: Timing) -> bool:
    """Whether every limit was kept."""
    within = timing.cold_s <= LIMITS_S[timing.family] and timing.cached_s <= CACHED_LIMIT_S
    return within and timing.host_bytes <= HOST_LIMIT_BYTES


def time_family(family: str) -> Timing:
    """Both runs of one family."""
    cards = cards_of_one_architecture()
    with tempfile.TemporaryDirectory() as folder:
        environment = _with_empty_cache(Path(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        cold_s, host_bytes = _run(family, cards, environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cached_s, _ = _run(family, cards, environment)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(family, cold_s, cpu_s, cached_s, host_bytes, len(cards))


def cards_of_one_architecture() -> list[str]:
    """One card per memory size of the architecture."""
    sizes = {card.total_bytes: card.slug for card in load_catalogue() if card.compute_capability == CAPABILITY}
    return list(sizes.values())


def _with_empty_cache(folder: Path) -> dict[str, str]:
    """An environment whose null GPU is ready and whose forecast cache is empty."""
    (folder / "autotune" / "null").mkdir(parents=True)
    for part in cache_folder().iterdir():
        if part.name != "forecasts":
            (folder / "autotune" / "null" / part.name).symlink_to(part)
    return {**os.environ, "XDG_CACHE_HOME": str(folder)}


def _run(family: str, cards: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """The seconds that the command takes, and the most that its processes hold together, looked at as it runs."""
    command = [sys.executable, "-m", "autotune", "plan", "--family", family, "--json"]
    for card in cards:
        command += ["--gpu", card]
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        most_bytes = 0
        while process.poll() is None:
            most_bytes = max(most_bytes, resident_bytes(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
        took_s = time.monotonic() - started
        errors.seek(0)
        if process.returncode not in VERDICTS:
            sys.exit(errors.read())
    return took_s, most_bytes


def resident_bytes(pid: int) -> int:
    """What a process and all it started hold of the host's memory now; pages they share count for each. Linux."""
    folder = Path(f"/proc/{pid}")
    with suppress(OSError):  # it has ended
        status = (folder / "status").read_text("ascii", "replace")
        children = " ".join(path.read_text("ascii") for path in folder.glob("task/*/children")).split()
        own = re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)
        return (int(own[1]) * KIB if own else 0) + sum(resident_bytes(int(child)) for child in children)
    return 0


if __name__ == "__main__":
    main()

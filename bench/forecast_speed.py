"""How long the fit frontier takes without a GPU: `python -m bench.forecast_speed [--quick]`.

Runs `autotune plan` for every memory size of one architecture, batches 1 to 64, without and with checkpointing,
process start included: cold (an empty forecast cache) and again from the cache. Tells the largest process too. The
limits are what the project promises on two cores with nothing else running.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.device.catalogue import load_catalogue
from autotune.device.null.places import cache_folder
from autotune.units import GIB

CAPABILITY = (8, 6)
LIMITS_S = {"sd1": 30.0, "sdxl": 60.0, "flux1": 60.0}
CACHED_LIMIT_S = 1.0
HOST_LIMIT_BYTES = 6 * GIB


@dataclass(frozen=True)
class Timing:
    """One family: seconds cold and from the cache, CPU seconds cold, and the largest process in bytes."""

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
        cold_s = _run(family, cards, environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cached_s = _run(family, cards, environment)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(family, cold_s, cpu_s, cached_s, after.ru_maxrss * 1024, len(cards))


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


def _run(family: str, cards: list[str], environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "autotune", "plan", "--family", family, "--json"]
    for card in cards:
        command += ["--gpu", card]
    started = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(done.stderr)
    return time.monotonic() - started


if __name__ == "__main__":
    main()

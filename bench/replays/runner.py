"""Replays rows in our own workers, one worker a card, and other methods in a process beside them.

Owns which null card a row gets and that no row is lost: one that takes its worker down is an error of that row
alone.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from autotune.device.catalogue import Card, find_card, load_catalogue
from autotune.device.session import DeviceSpec
from autotune.errors import AutotuneError, DeviceError, WorkerError
from autotune.trial.client import Worker
from bench.replays.rows import Row, reason_unsupported

FACTORY = "bench.replays.workload:create"
Result = dict[str, Any]
OpenWorker = Callable[[Mapping[str, Any], Card], Worker]


def open_worker(config: Mapping[str, Any], card: Card) -> Worker:
    """A worker for `config` on the null card of `card`."""
    return Worker(FACTORY, config, DeviceSpec.parse(f"null:{card.slug}"))


def run_replays(rows: Sequence[Row], jobs: int = 1, open_one: OpenWorker = open_worker) -> dict[str, Result]:
    """The replay's result by row id: its readings with the card, or `{"reason": ...}` where there is none."""
    results: dict[str, Result] = {}
    groups: dict[str, list[Row]] = defaultdict(list)  # by slug
    cards: dict[str, Card] = {}
    for row in rows:
        card = card_of(row.gpu)
        reason = reason_unsupported(row) or (None if card else f"card {row.gpu!r} is not in the catalogue")
        if card is None or reason:
            results[row.id] = {"reason": reason}
        else:
            cards[card.slug] = card
            groups[card.slug].append(row)
    shares = [(slug, share) for slug, group in groups.items() for share in _shares(group, jobs)]
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        for share in pool.map(lambda part: _run_group(part[1], cards[part[0]], open_one), shares):
            results |= share
    return results


def run_baselines(rows: Sequence[Row], jobs: int = 1) -> dict[str, Result]:
    """What other methods forecast, by row id; rows that have no replay are left out."""
    supported = [row for row in rows if not reason_unsupported(row)]
    shares = _shares(supported, jobs)
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        return {id_: result for share in pool.map(_baseline_share, shares) for id_, result in share.items()}


def card_of(gpu: str) -> Card | None:
    """The catalogue's card that a row's text means; of several of one name the first with the text's memory."""
    text = re.sub(r"\s+", " ", gpu).strip()
    for attempt in (text, re.sub(r"[ -]?\d+ ?GB$", "", text, flags=re.IGNORECASE)):
        try:
            return find_card(attempt)
        except DeviceError:
            continue
    wanted = set(re.findall(r"[a-z0-9]+", text.lower())) - {"nvidia", "geforce", "tesla", "hbm3", "hbm2e", "gpu"}
    return next((card for card in load_catalogue() if wanted and wanted <= set(card.slug.split("-"))), None)


def _shares(rows: Sequence[Row], jobs: int) -> list[Sequence[Row]]:
    """`rows` dealt out to at most `jobs` workers, each with four rows or more: to start one takes as long."""
    workers = max(1, min(jobs, len(rows) // 4))
    return [rows[start::workers] for start in range(workers)]


def _run_group(rows: Sequence[Row], card: Card, open_one: OpenWorker) -> dict[str, Result]:
    """Replay `rows` in one worker; after a worker that died, the row it died of is left out and the rest go on."""
    results: dict[str, Result] = {}
    while left := [row for row in rows if row.id not in results]:
        try:
            _run_worker(left, card, open_one, results)
        except AutotuneError as error:
            unfinished = next((row for row in left if row.id not in results), None)
            if unfinished is None:
                break
            results[unfinished.id] = {"reason": f"the replay failed: {error.fact}"}
            if not isinstance(error, WorkerError):
                results |= {row.id: results[unfinished.id] for row in left if row.id not in results}
    return results


def _run_worker(rows: Sequence[Row], card: Card, open_one: OpenWorker, results: dict[str, Result]) -> None:
    def keep(event: Mapping[str, Any]) -> None:
        if "error" in event:
            results[event["row"]] = {"reason": str(event["error"]), "traceback": event.get("traceback", "")}
        elif "row" in event:
            results[event["row"]] = {**event, "card": card}

    with open_one({"rows": [asdict(row) for row in rows]}, card) as worker:
        worker.run(worker.ready.job.recipe.plan, on_event=keep)


def _baseline_share(rows: Sequence[Row]) -> dict[str, Result]:
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    command = [sys.executable, "-W", "ignore", "-m", "bench.replays.baselines"]
    run = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {answer["row"]: answer for answer in answers}

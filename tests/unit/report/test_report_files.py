"""The report: what is written where, and what a reader finds in it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from autotune.errors import ConfigError
from autotune.report.model import Curve, PhaseBytes, Report, Saving, Span, Timeline, Verdict
from autotune.report.write import write_report
from autotune.units import GIB, MIB

CARD = Verdict("RTX 3060 12 GB", 12 * GIB, (7 * GIB, 8 * GIB), "fits", (1, 4))
FULL = Report(
    title="SDXL LoRA r16 <script>",
    evidence="forecast on the null GPU",
    facts=(("plan", "batch_size 1"),),
    verdicts=(
        CARD,
        replace(CARD, card="RTX 3070", total_bytes=7 * GIB, verdict="does not fit", largest_batch=(0, 2)),
    ),
    timeline=Timeline((GIB, 2 * GIB, GIB), (GIB, 3 * GIB, 3 * GIB), (Span("load", 0, 1), Span("step", 1, 3))),
    phases=(PhaseBytes("step", {"weights": GIB, "activations": GIB, "context": 200 * MIB}, (2 * GIB, 3 * GIB)),),
    curves=(Curve("RTX 3060 12 GB", True, ((512, 8), (1024, 2))), Curve("RTX 3070", False, ((512, 1), (1024, 0)))),
    savings=(Saving("gradient_checkpointing on", 2100 * MIB, "speed"),),
    unseen=(("CUDA context", (120 * MIB, 380 * MIB), "public out-of-memory messages"),),
    notes=("assumes <b>",),
)
EMPTY = Report("nothing known", "forecast on the null GPU")


def test_a_page_shows_every_part_of_the_report(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", FULL)
    page = (tmp_path / "r.html").read_text("utf-8")
    for text in ("RTX 3060 12 GB", "does not fit", "2,100 MiB", "120 to 380 MiB", "7,168 to 8,192 MiB"):
        assert text in page
    assert page.count("<svg") == 3


def test_a_page_needs_no_other_file_and_runs_nothing(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", FULL)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="https?:', page)


def test_what_users_name_is_escaped(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", FULL)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "assumes &lt;b&gt;" in page
    assert "SDXL LoRA r16 &lt;script&gt;" in page


def test_no_verdict_is_told_by_colour_alone(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", FULL)
    page = (tmp_path / "r.html").read_text("utf-8")
    assert {"fits", "no", "close"} <= set(re.findall(r"\.(\w+)::before", page))


@pytest.mark.parametrize("name", ["r.png", "r.PNG", "r.html"])
def test_an_empty_report_is_written_too(tmp_path: Path, name: str) -> None:
    write_report(tmp_path / name, EMPTY)
    assert (tmp_path / name).stat().st_size > 0


def test_a_picture_grows_with_its_charts(tmp_path: Path) -> None:
    write_report(tmp_path / "full.png", FULL)
    write_report(tmp_path / "part.png", replace(FULL, curves=()))
    with Image.open(tmp_path / "full.png") as full, Image.open(tmp_path / "part.png") as part:
        assert full.format == "PNG"
        assert full.size[1] > part.size[1]


def test_equal_reports_are_equal_pages(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, FULL)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_another_ending_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.html"):
        write_report(tmp_path / "r.pdf", FULL)
    assert list(tmp_path.iterdir()) == []

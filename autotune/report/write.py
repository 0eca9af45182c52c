"""Writes a report to the file a user names, as its ending says. Owns nothing but that choice."""

from pathlib import Path

from autotune.errors import ConfigError
from autotune.files import write_atomically
from autotune.report.model import Report

ENDINGS = (".html", ".png")


def check_ending(path: Path) -> None:
    """Raises ConfigError when no report can be written under this name: to be asked before the work begins."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--report {path}: its ending says neither .html nor .png.", "Name it report.html.")


def write_report(path: Path, report: Report) -> None:
    """Write `report` to `path`, replacing a file there. Raises ConfigError for another ending, DiskError."""
    check_ending(path)
    if path.suffix.lower() == ".png":
        from autotune.report.charts import draw_png

        content = draw_png(report)
    else:
        from autotune.report.page import render_page

        content = render_page(report).encode()
    write_atomically(path, content)

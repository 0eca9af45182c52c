"""The report as one HTML page that needs no other file. Owns the page's words and formats; draws through
`charts`. Every value is escaped: names come from users.
"""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from autotune.report.charts import draw_svgs
from autotune.report.model import Report
from autotune.units import format_mib

_CAPTIONS = {
    "timeline": "Memory allocated and reserved over the run, by phase",
    "breakdown": "Bytes by category at the peak of each phase",
    "frontier": "Largest batch that fits, by resolution and card, with and without checkpointing",
}


def render_page(report: Report) -> str:
    """The whole page as text."""
    template = _environment().from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.render(report=report, svgs=draw_svgs(report), captions=_CAPTIONS)


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"mib": format_mib, "interval": _describe_interval, "mark": _mark}
    return environment


def _describe_interval(ends: tuple[int, int]) -> str:
    low, high = (format_mib(end) for end in ends)
    return low if low == high else f"{low.removesuffix(' MiB')} to {high}"


def _mark(verdict: str) -> str:
    """The class of a verdict, which gives it a sign beside its colour."""
    return {"fits": "fits", "does not fit": "no"}.get(verdict, "close")

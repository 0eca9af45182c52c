"""The report's charts: memory over time, where the bytes go, the fit frontier.

Owns drawing with matplotlib, off screen. Colours are Okabe and Ito's, which people with any colour vision tell
apart (https://jfly.uni-koeln.de/color/); nothing is told by colour alone. Must never be imported at start-up.
"""

from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from math import ceil, log2
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from autotune.report.model import CATEGORIES, Curve, Limit, PhaseBytes, Report, Timeline
from autotune.units import GIB

matplotlib.use("svg")

INK, FAINT = "#222222", "#b5b5b5"
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
_OF_CATEGORY = dict(
    zip(CATEGORIES, (BLUE, SKY, YELLOW, GREEN, ORANGE, PURPLE, "#8c8c8c", "#dcdcdc", "#555555"), strict=True)
)
_HATCHES = {"cache slack": "....", "context": "////", "gradients": "\\\\\\\\", "workspace": "xxxx"}
_OF_CARD = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
_MARKERS = "osD^vPX"
_NARROWEST = 0.015  # share of the width that an upright name needs
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "svg.fonttype": "none",
    "svg.hashsalt": "autotune",
    "hatch.linewidth": 0.5,
}


def draw_svgs(report: Report) -> dict[str, str]:
    """The charts of `report` that have data, by name (`timeline`, `breakdown`, `frontier`), as SVG elements."""
    sizes = {
        "timeline": (9.2, 3.6),
        "breakdown": (9.2, 0.9 + 0.42 * max(2, len(report.phases))),
        "frontier": (9.2, 4),
    }
    svgs = {}
    with matplotlib.rc_context(_STYLE):
        for name in _present(report):
            figure = Figure(figsize=sizes[name], layout="constrained")
            _DRAW[name](figure.add_subplot(), report)
            svgs[name] = _svg_of(figure)
    return svgs


def draw_png(report: Report) -> bytes:
    """All charts of `report`, one under the other, as a PNG picture."""
    names = _present(report)
    heights = {"timeline": 3.4, "breakdown": 0.9 + 0.42 * max(2, len(report.phases)), "frontier": 3.8}
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 0.9 + sum(heights[name] for name in names)), dpi=130, layout="constrained")
        title = fill(report.title, 90)
        below = "\n" * (title.count("\n") + 2)
        figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
        figure.text(0.01, 0.995, f"{below}{report.evidence}", ha="left", va="top", fontsize=9, color="#555555")
        if names:
            grid = figure.add_gridspec(len(names), 1, height_ratios=[heights[name] for name in names])
            for row, name in enumerate(names):
                _DRAW[name](figure.add_subplot(grid[row]), report)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def draw_timeline(axes: Axes, timeline: Timeline, limits: Sequence[Limit]) -> None:
    """Allocated as an area, reserved as a line, phases as bands, cards as dashed lines."""
    moments = range(len(timeline.allocated_bytes))
    allocated, reserved = ([n / GIB for n in s] for s in (timeline.allocated_bytes, timeline.reserved_bytes))
    axes.fill_between(moments, allocated, step="post", color=SKY, alpha=0.75, lw=0, label="allocated")
    axes.step(moments, reserved, where="post", color=INK, lw=1.3, label="reserved by PyTorch")
    top = _room_above(axes, max(reserved, default=0), limits)
    _draw_limits(axes, [limit for limit in limits if limit.size_bytes / GIB <= top], vertical=False)
    for number, span in enumerate(timeline.spans):
        axes.axvspan(span.start, span.end, color=FAINT if number % 2 else "white", alpha=0.22, lw=0, zorder=0)
    _name_spans(axes, timeline)
    axes.set(title="Memory over the run", ylabel="GiB", xlim=(0, max(1, len(moments) - 1)), ylim=(0, top))
    axes.set_xlabel("allocator events, in order (the null GPU has no time)", color="#555555")
    axes.set_xticks([])
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def draw_breakdown(axes: Axes, phases: Sequence[PhaseBytes], limits: Sequence[Limit]) -> None:
    """One stacked bar per phase at its peak, the interval of its need as whiskers, cards as dashed lines."""
    rows = range(len(phases))
    ends = [0.0] * len(phases)
    for category in CATEGORIES:
        sizes = [phase.parts.get(category, 0) / GIB for phase in phases]
        if not any(sizes):
            continue
        axes.barh(
            rows,
            sizes,
            left=ends,
            height=0.62,
            color=_OF_CATEGORY[category],
            hatch=_HATCHES.get(category),
            edgecolor="white",
            lw=0.6,
            label=category,
        )
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    _draw_intervals(axes, phases)
    top = _room_above(axes, max([*ends, *(p.interval[1] / GIB for p in phases if p.interval)], default=0), limits)
    _draw_limits(axes, [limit for limit in limits if limit.size_bytes / GIB <= top], vertical=True)
    axes.set_title("Where the bytes go, at each phase's peak", pad=16)
    axes.set(xlabel="GiB", xlim=(0, top))
    axes.set_yticks(rows, [phase.phase for phase in phases])
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def draw_frontier(axes: Axes, curves: Sequence[Curve]) -> None:
    """The largest batch by resolution, a colour and marker per card, dashed without checkpointing."""
    cards = list(dict.fromkeys(curve.card for curve in curves))
    for curve in curves:
        place = cards.index(curve.card)
        points = [(side, batch) for side, batch in curve.points if batch > 0]
        if not points:
            continue
        sides, batches = zip(*points, strict=True)
        style = (
            {"ls": "-", "markerfacecolor": None}
            if curve.checkpointing
            else {"ls": "--", "markerfacecolor": "white"}
        )
        label = curve.card if curve.checkpointing else None
        axes.plot(
            sides,
            batches,
            color=_OF_CARD[place % len(_OF_CARD)],
            marker=_MARKERS[place % len(_MARKERS)],
            lw=1.6,
            ms=5.5,
            label=label,
            **style,
        )
    _scale_frontier(axes, curves)
    axes.set(title="Largest batch that fits", xlabel="pixels of a side", ylabel="batch size")
    axes.plot([], [], color=INK, ls="-", label="with checkpointing")
    axes.plot([], [], color=INK, ls="--", label="without")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    axes.grid(axis="y", color=FAINT, alpha=0.4, lw=0.6)


def _draw_timeline(axes: Axes, report: Report) -> None:
    assert report.timeline is not None
    draw_timeline(axes, report.timeline, _limits(report))


_DRAW: dict[str, Callable[[Axes, Report], None]] = {
    "timeline": _draw_timeline,
    "breakdown": lambda axes, report: draw_breakdown(axes, report.phases, _limits(report)),
    "frontier": lambda axes, report: draw_frontier(axes, report.curves),
}


def _present(report: Report) -> list[str]:
    has = {"timeline": report.timeline, "breakdown": report.phases, "frontier": report.curves}
    return [name for name, data in has.items() if data]


def _limits(report: Report) -> list[Limit]:
    """One line per distinct size: cards of the same size share it."""
    names: dict[int, list[str]] = {}
    for row in report.verdicts:
        names.setdefault(row.total_bytes, []).append(row.card)
    return [Limit(_shortened(cards), size) for size, cards in sorted(names.items())]


def _shortened(cards: Sequence[str]) -> str:
    return cards[0] if len(cards) == 1 else f"{cards[0]} +{len(cards) - 1}"


def _room_above(axes: Axes, highest_gib: float, limits: Sequence[Limit]) -> float:
    """The end of the memory axis: above what is drawn and the first limit that holds it, but no further."""
    above = [limit.size_bytes / GIB for limit in limits if limit.size_bytes / GIB >= highest_gib]
    nearest = min(above, default=0.0)
    return 1.12 * (nearest if nearest < 2.2 * highest_gib else highest_gib) or 1.0


def _draw_limits(axes: Axes, limits: Sequence[Limit], *, vertical: bool) -> None:
    for limit in limits:
        at = limit.size_bytes / GIB
        line = axes.axvline if vertical else axes.axhline
        line(at, color=VERMILION, ls=(0, (4, 2)), lw=1)
        if vertical:
            axes.text(
                at,
                1.0,
                f" {limit.label}",
                transform=axes.get_xaxis_transform(),
                fontsize=8,
                color=VERMILION,
                rotation=0,
                va="bottom",
                ha="right",
            )
        else:
            axes.text(
                1.0,
                at,
                limit.label,
                transform=axes.get_yaxis_transform(),
                fontsize=8,
                color=VERMILION,
                va="bottom",
                ha="right",
            )


def _name_spans(axes: Axes, timeline: Timeline) -> None:
    """Phase names inside their bands, upright where the band is narrow; the narrowest have no room for one."""
    whole = max(1, len(timeline.allocated_bytes))
    for span in timeline.spans:
        share = (span.end - span.start) / whole
        if share < _NARROWEST:
            continue
        wide = share > 0.011 * len(span.phase)
        axes.text(
            (span.start + span.end) / 2,
            0.02,
            span.phase.replace("_", " "),
            transform=axes.get_xaxis_transform(),
            fontsize=8,
            color=INK,
            ha="center",
            va="bottom",
            rotation=0 if wide else 90,
        )


def _draw_intervals(axes: Axes, phases: Sequence[PhaseBytes]) -> None:
    for row, phase in enumerate(phases):
        if phase.interval is not None:
            low, high = (size / GIB for size in phase.interval)
            middle = (low + high) / 2
            axes.errorbar(middle, row, xerr=middle - low, color=INK, capsize=4, lw=1.4, zorder=5)


def _scale_frontier(axes: Axes, curves: Sequence[Curve]) -> None:
    sides = sorted({side for curve in curves for side, _ in curve.points})
    most = max((batch for curve in curves for _, batch in curve.points), default=1)
    powers = [2**n for n in range(ceil(log2(max(2, most))) + 1)]
    axes.set_yscale("log", base=2)
    axes.set_yticks(powers)
    axes.set_ylim(0.8, powers[-1] * 1.25)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sides)


def _svg_of(figure: Figure) -> str:
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]

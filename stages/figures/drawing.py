"""Functions shared by all figures: an empty figure, text, colours, axes, and PNG and SVG output."""

import base64
import io
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stages import files

DPI = 110
LINE_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
DEVICE_COLOURS = {"cpu": "tab:blue", "cuda": "tab:green", "published": "tab:purple"}
FEW_POINTS = 20  # a line with at most this many points has markers, because a single point draws no line
MANY_POINTS = 300  # an SVG stores more points than this as an image, which is smaller


def report_style() -> AbstractContextManager[None]:
    """Use the style of the report's figures, which are narrow. Text stays text in the SVG, which is small and supports
    every script.
    """
    return matplotlib.rc_context(
        {"font.size": 9, "font.sans-serif": ["DejaVu Sans"], "svg.fonttype": "none", "svg.hashsalt": "tandem"}
    )


def png_bytes(figure: Figure) -> bytes:
    """Return `figure` as a PNG file without date or matplotlib version: the same figure gives the same bytes."""
    return rendered(figure, format="png", dpi=DPI, metadata={"Software": None})


def svg_address(figure: Figure) -> str:
    """Return `figure` as a transparent SVG in an address for <img>, where its ids cannot clash with those of other
    figures.
    """
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    content = rendered(figure, format="svg", dpi=2 * DPI, transparent=True, metadata=metadata)
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"


def rendered(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts: it draws boxes and warns for each character. The tables contain the
        # names.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Constrained layout moves artists on every run. The first is the best: later ones push labels over the edge.
        if layout := figure.get_layout_engine():
            layout.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(file, **options)
    return file.getvalue()


def save(figure: Figure, path: Path) -> None:
    files.write_bytes(path, png_bytes(figure))


def blank(width: float, height: float) -> Figure:
    """Return an empty figure, sized in inches, that belongs to no window and no global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: Any, limit: int = 80) -> str:
    """Return `text` on one line of at most `limit` characters. `$` is escaped: matplotlib would read a formula."""
    line = " ".join(str(text).split())
    return (line if len(line) <= limit else line[: limit - 1] + "…").replace("$", r"\$")


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers: there is no epoch 2.5."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

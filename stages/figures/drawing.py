"""What all pictures share: an empty figure, text, colours, axes, and the PNG file."""

import io
import warnings
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stages import files

DPI = 110
LINE_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
DEVICE_COLOURS = {"cpu": "tab:blue", "cuda": "tab:green"}


def png_bytes(figure: Figure) -> bytes:
    """`figure` as a PNG file, without a date or matplotlib's version: the same figure gives the same bytes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts: it draws boxes and warns of each character. The tables hold the names.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Constrained layout moves things in every run. The first is the best: later ones push labels over the edge.
        if layout := figure.get_layout_engine():
            layout.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def save(figure: Figure, path: Path) -> bytes:
    """Write `figure` as a PNG file; return what was written, because drawing takes long."""
    content = png_bytes(figure)
    files.write_bytes(path, content)
    return content


def blank(width: float, height: float) -> Figure:
    """An empty figure of inches that belongs to no window and no global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: Any, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters, with `$` escaped: matplotlib would read a formula."""
    line = " ".join(str(text).split())
    return (line if len(line) <= limit else line[: limit - 1] + "…").replace("$", r"\$")


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.3g} s"


def whole_numbers(axes: Axes) -> None:
    """Ticks of the x axis at whole numbers: there is no epoch 2.5."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

"""Functions shared by all figures: charts, text, colours, and PNG and SVG output."""

import base64
import io
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from tandem import files

WIDTH = 3.6  # inches, of a chart: as narrow as a phone's screen
TITLE_HEIGHT = 0.3  # inches, of a chart's title in a PNG
DPI = 220
LINE_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
COLOURS = {"cpu": "tab:blue", "cuda": "tab:green", "published": "tab:purple"}  # as report.html.j2 has them
DEVICE_COLOURS = defaultdict(lambda: "tab:gray", COLOURS)  # another kind of device is gray
FEW_POINTS = 20  # a line with at most this many points has markers, because a single point draws no line
MANY_POINTS = 300  # an SVG stores more points than this as an image, which is smaller


@dataclass(frozen=True)
class Chart:
    title: str
    sentence: str  # the content in numbers
    figure: Figure | None = None  # None: there is too little to draw


def chart(
    title: str,
    sentence: str,
    draw: Callable[..., Sequence[Artist] | None],
    *,
    height: float = 1.7,
    left: float = 0.5,
    bottom: float = 0.45,
    top: float = 0.08,
    num: int = 1,
) -> Chart:
    """Return a chart of `num` axes below each other. `draw` gets the axes and may return the legend's handles.

    `height` is for all axes; `left`, `bottom` and `top` are the space for labels, in inches. The title names the
    quantity of the y axis.
    """
    figure = Figure()
    axes: list[Axes] = figure.subplots(num, 1, squeeze=False, sharex=True)[:, 0].tolist()
    handles = draw(*axes) or axes[0].get_legend_handles_labels()[0]
    if len(handles) > 1:
        num_columns = 2 if max(len(str(handle.get_label())) for handle in handles) <= 22 else 1
        top += 0.18 * -(-len(handles) // num_columns)
        figure.legend(handles=handles, loc="upper left", ncols=num_columns, frameon=False, borderaxespad=0, fontsize=8)
    total = height + bottom + top
    figure.set_size_inches(WIDTH, total)
    figure.subplots_adjust(left / WIDTH, bottom / total, 0.94, 1 - top / total, hspace=0.6)
    for panel in axes:
        for axis in (panel.xaxis, panel.yaxis):
            if isinstance(locator := axis.get_major_locator(), MaxNLocator):
                locator.set_params(nbins=5)
    return Chart(title, sentence, figure)


def chart_style() -> AbstractContextManager[None]:
    """Use the style of the charts. Text stays text in an SVG, which is small and supports every script."""
    return matplotlib.rc_context(
        {"font.size": 9, "font.sans-serif": ["DejaVu Sans"], "svg.fonttype": "none", "svg.hashsalt": "tandem"}
    )


def save_charts(charts: Sequence[Chart], path: Path) -> None:
    """Write the charts with their titles to one PNG file, below each other. Equal charts give equal bytes."""
    images, file = [], io.BytesIO()
    for one_chart in charts:
        title = Figure((WIDTH, TITLE_HEIGHT))
        title.text(0.02, 0.25, plain(one_chart.title, 60))
        for figure in filter(None, (title, one_chart.figure)):
            png = rendered(figure, format="png", dpi=DPI)
            images.append(np.asarray(Image.open(io.BytesIO(png))))
    Image.fromarray(np.vstack(images)).save(file, "png")
    files.write_bytes(path, file.getvalue())


def svg_address(figure: Figure) -> str:
    """Return `figure` as a transparent SVG in an address for <img>, where its ids cannot clash with those of other
    figures.
    """
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    content = rendered(figure, format="svg", dpi=DPI, transparent=True, metadata=metadata)
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"


def rendered(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts: it draws boxes and warns for each character. The tables contain the
        # names.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, **options)
    return file.getvalue()


def plain(text: Any, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters. `$` is escaped: matplotlib would read a formula."""
    line = " ".join(str(text).split())
    return (line if len(line) <= limit else line[: limit - 1] + "…").replace("$", r"\$")


def whole_numbers(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers: there is no epoch 2.5."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

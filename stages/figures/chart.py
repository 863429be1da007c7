"""Charts of the report: numbers in; SVG's elements, a legend and a sentence out, which chart.html.j2 writes.

The pictures of the other modules are matplotlib's. Its SVG fits no page that follows dark mode: colours and fonts are
fixed, ids stand in it that twenty charts of one page would share, and it is five to ten times as long. A chart here is
360 units wide, as a telephone's screen, with text of 12 units in the page's own font, and its colours are classes of
the page's style. Where ticks go is matplotlib's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 360.0, 206.0
LETTER = 6.8  # width of a digit, about
MAX_MARKED = 20  # a line of so few points has a dot at each: one alone would be no line
ROW_HEIGHT = 38.0
MAX_LABEL = 44  # letters beside a row's number

Number = float | None


@dataclass(frozen=True)
class Mark:
    """One element of SVG."""

    tag: str
    css: str
    at: dict[str, str]
    text: str = ""


@dataclass(frozen=True)
class Key:
    """A line of the legend, in the colours and strokes that `css` names."""

    css: str
    label: str


@dataclass(frozen=True)
class Chart:
    title: str
    sentence: str  # what it shows, in numbers; stands below it, and in its place where it cannot be seen
    height: float
    marks: Sequence[Mark]
    keys: Sequence[Key] = ()


@dataclass(frozen=True)
class Series:
    """Points over x. `style`: line, dashed, dots, or point (one that stands out)."""

    label: str
    css: str
    xs: Sequence[float]
    ys: Sequence[Number]  # None: nothing was measured there, and the line breaks
    style: str = "line"


@dataclass(frozen=True)
class Span:
    """A row of `ranges`: some values of one kind and their middle."""

    label: str
    css: str
    values: Sequence[float]
    middle: float
    text: str  # of the middle, as it is written


@dataclass(frozen=True)
class Scale:
    """From values to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass
class Canvas:
    marks: list[Mark] = field(default_factory=list)

    def add(self, tag: str, css: str, **at: float | str) -> None:
        names = {name.replace("_", "-"): short(value) for name, value in at.items()}
        self.marks.append(Mark(tag, css, names))

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        at = {"x": short(x), "y": short(y), "text-anchor": anchor}
        self.marks.append(Mark("text", css, at, text))

    def path(self, css: str, d: str) -> None:
        self.marks.append(Mark("path", css, {"d": d}))


def lines(
    title: str,
    sentence: str,
    series: Sequence[Series],
    x_title: str,
    *,
    from_zero: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None,
    y_text: Callable[[float], str] | None = None,
) -> Chart:
    """Curves over x, which counts something unless `x_ticks` says where its labels stand."""
    drawn = [each for each in series if any(y is not None for y in each.ys)]
    ys = [y for each in drawn for y in each.ys if y is not None] + ([0.0] if from_zero else [])
    xs = [x for each in drawn for x in each.xs]
    y_places = ticks(min(ys), max(ys))
    step = y_places[1] - y_places[0]
    y_labels = [y_text(value) if y_text else tick_text(value, step) for value in y_places]
    left, bottom = 8 + LETTER * max(map(len, y_labels)), HEIGHT - 36
    x_low, x_high = (min(xs), max(xs)) if min(xs) < max(xs) else (xs[0] - 0.5, xs[0] + 0.5)
    across, up = Scale(x_low, x_high, left + 4, WIDTH - 8), Scale(y_places[0], y_places[-1], bottom, 8)
    canvas = Canvas()
    for value, label in zip(y_places, y_labels, strict=True):
        canvas.path("grid", f"M{short(left)} {short(up(value))}H{short(WIDTH)}")
        canvas.text(left - 6, up(value) + 4, label, "tick", "end")
    for value, label in x_ticks or [(place, tick_text(place, 1)) for place in whole_ticks(x_low, x_high)]:
        end = across(value) + LETTER * len(label) / 2
        anchor, x = ("end", WIDTH) if end > WIDTH else ("middle", across(value))
        canvas.text(x, bottom + 17, label, "tick", anchor)
    canvas.path("axis", f"M{short(left)} {short(bottom)}H{short(WIDTH)}")
    canvas.text((left + WIDTH) / 2, HEIGHT - 3, x_title, "tick", "middle")
    for each in drawn:
        points = [(across(x), None if y is None else up(y)) for x, y in zip(each.xs, each.ys, strict=True)]
        draw(canvas, each, points)
    return Chart(title, sentence, HEIGHT, canvas.marks, keys_of(drawn))


def draw(canvas: Canvas, series: Series, points: Sequence[tuple[float, Number]]) -> None:
    present = [(x, y) for x, y in points if y is not None]
    if series.style == "point":
        for x, y in present:
            canvas.add("circle", f"point {series.css}", cx=x, cy=y, r=4.5)
        return
    if series.style != "dots":
        canvas.path(f"{series.style} {series.css}", trace(points))
    if series.style == "dots" or len(present) <= MAX_MARKED:
        # A stroke without length is a dot; many dots are one element.
        canvas.path(f"dots {series.css}", "".join(f"M{short(x)} {short(y)}h0" for x, y in present))


def trace(points: Sequence[tuple[float, Number]]) -> str:
    """A path through `points`, broken where one has no height."""
    words, is_open = [], False
    for x, y in points:
        if y is not None:
            words.append(f"{'L' if is_open else 'M'}{short(x)} {short(y)}")
        is_open = y is not None
    return "".join(words)


def keys_of(series: Sequence[Series]) -> list[Key]:
    """A legend where there is more than one thing to tell apart."""
    names = dict.fromkeys((f"{each.style} {each.css}", each.label) for each in series if each.label)
    return [Key(css, label) for css, label in names] if len(names) > 1 else []


def ranges(title: str, sentence: str, rows: Sequence[Span], *, from_zero: bool, mark: float | None = None) -> Chart:
    """A row for each of `rows`: its values as dots, their middle as a line, or as a bar `from_zero`.

    `mark`: a value to compare with, drawn as a dashed line where the axis reaches it.
    """
    values = [value for row in rows for value in (*row.values, row.middle)] + ([0.0] if from_zero else [])
    places = ticks(min(values), max(values))
    across = Scale(places[0], places[-1], 6, WIDTH - 10)
    bottom = 6 + ROW_HEIGHT * len(rows)
    canvas = Canvas()
    for index, value in enumerate(places):
        canvas.path("grid", f"M{short(across(value))} 4V{short(bottom)}")
        anchor = "start" if index == 0 else "end" if index == len(places) - 1 else "middle"
        x = {"start": 0.0, "end": WIDTH, "middle": across(value)}[anchor]
        canvas.text(x, bottom + 16, tick_text(value, places[1] - places[0]), "tick", anchor)
    if mark is not None and places[0] < mark < places[-1]:
        canvas.path("reference", f"M{short(across(mark))} 4V{short(bottom)}")
    for index, row in enumerate(rows):
        y = 6 + ROW_HEIGHT * index
        label = row.label if len(row.label) <= MAX_LABEL else row.label[: MAX_LABEL - 1] + "…"
        canvas.text(0, y + 12, label, "label")
        canvas.text(WIDTH, y + 12, row.text, "label strong", "end")
        middle, height = across(row.middle), y + 24
        if from_zero:
            canvas.add("rect", f"bar {row.css}", x=across(0), y=height - 5, width=middle - across(0), height=10)
        elif len(row.values) > 1:
            canvas.path(f"middle {row.css}", f"M{short(middle)} {short(height - 7)}v14")
        spread = [across(value) for value in row.values]
        if len(spread) > 1:
            canvas.path(f"whisker {row.css}", f"M{short(min(spread))} {short(height)}H{short(max(spread))}")
        if len(spread) > 1 or not from_zero:
            canvas.path(f"dots {row.css}", "".join(f"M{short(x)} {short(height)}h0" for x in spread))
    return Chart(title, sentence, bottom + 22, canvas.marks)


def ticks(low: float, high: float) -> list[float]:
    """Round values from one at or below `low` to one at or above `high`."""
    if low == high:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    return [float(value) for value in MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def whole_ticks(low: float, high: float) -> list[float]:
    """Whole numbers between `low` and `high`: there is no epoch 2.5."""
    places = MaxNLocator(nbins=6, integer=True, min_n_ticks=1).tick_values(low, high)
    return [float(value) for value in places if low <= value <= high]


def tick_text(value: float, step: float) -> str:
    """`value` with as many decimals as tell it from the next tick."""
    decimals = next((n for n in range(9) if math.isclose(round(step, n), step, rel_tol=1e-6)), 9)
    return f"{value + 0.0:,.{decimals}f}" if round(value, decimals) else f"{0:.{decimals}f}"


def short(value: float | str) -> str:
    """A place with a tenth of a unit, which nobody sees."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")

"""What a trained model did on the test split, by task: charts, and the confusion of classes as a table.

In: a row of compare.json with what `stages.compare.facts` adds, whose tables hold text as csv gives it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stages.figures.chart import (
    LETTER,
    WIDTH,
    Canvas,
    Chart,
    Key,
    Number,
    Scale,
    Series,
    lines,
    short,
    ticks,
    trace,
    whole_ticks,
)
from stages.figures.drawing import counted
from stages.figures.text import score_text, words

Row = Mapping[str, Any]
MAX_CLASSES = 30  # of a confusion matrix; of more, the most frequent confusions are listed
MAX_LISTED = 30
NUM_FORECASTS = 150  # the last ones, drawn
MAX_POINTS = 1000  # of a scatter
EVENT_COLOURS = 6
STRIP = 62.0  # height of a sequence's events


def charts(row: Row) -> list[Chart]:
    found: list[Chart | None]
    if row["task"] == "detect":
        found = [events(row), noise(row)]
    elif row["task"] == "forecast":
        found = [errors_ahead(row), last_forecasts(row)]
    elif row["task"] == "regress":
        found = [predicted_numbers(row)]
    else:
        found = []
    return [each for each in found if each]


@dataclass(frozen=True)
class Confusion:
    """Counts of (actual, predicted), and its mistakes, the most frequent first."""

    classes: list[str]
    cells: list[list[tuple[str, str]]]  # (count, CSS class) by actual and predicted class; none with many classes
    mistakes: list[tuple[str, str, int]]
    sentence: str

    @property
    def is_short(self) -> bool:
        """Whether the names can stand above the columns; else their numbers do."""
        return max(map(len, self.classes)) <= 6


def confusion(row: Row) -> Confusion | None:
    pairs = Counter((each["actual"], each["predicted"]) for each in row["confusion"])
    if not pairs or row["task"] == "forecast":  # two directions are a number, and the sentence says it
        return None
    known = [str(each["class"]) for each in row["scores"] if "class" in each]
    classes = list(dict.fromkeys([*known, *sorted({name for pair in pairs for name in pair})]))
    mistakes = [(actual, found, number) for (actual, found), number in pairs.items() if actual != found]
    mistakes.sort(key=lambda each: (-each[2], classes.index(each[0]), classes.index(each[1])))
    wrong, num = sum(number for *_, number in mistakes), pairs.total()
    sentence = f"Actual classes down, predicted ones across: {num - wrong:,} of {num:,} lie on the diagonal"
    if mistakes:
        most = "; ".join(f"{actual} taken for {found}, {times(number)}" for actual, found, number in mistakes[:3])
        sentence += f". Most often wrong: {most}"
    cells = []
    if len(classes) <= MAX_CLASSES:
        for actual in classes:
            counts = [pairs[actual, found] for found in classes]
            cells.append([cell(n, sum(counts), actual == found) for n, found in zip(counts, classes, strict=True)])
    return Confusion(classes, cells, mistakes[:MAX_LISTED], f"{sentence}.")


def times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def cell(count: int, total: int, is_right: bool) -> tuple[str, str]:
    """The count, and a colour by its share of the class."""
    if not count:
        return "", ""
    share = count / total
    depth = 3 if share > 0.6 else 2 if share > 0.1 else 1
    return f"{count:,}", f"{'right' if is_right else 'wrong'}-{depth}"


def noise(row: Row) -> Chart | None:
    """The score of a simulation against its noise, which `evaluate` measures on newly simulated sequences."""
    name = row["score_name"]
    pattern = re.compile(rf"{re.escape(name)}_at_noise_([\d.]+)px")
    known = {key: value for key, value in row["metrics"].items() if value is not None}
    found = {float(match[1]): value for key, value in known.items() if (match := pattern.fullmatch(key))}
    trained = row["parameters"].get("preprocess.noise")
    if trained is not None:
        found[float(trained)] = row["metrics"][name]
    if len(found) < 3:
        return None
    levels = sorted(found)
    said = ", ".join(f"{score_text(found[level])} at {level:g}" for level in levels)
    sentence = f"Test {words(name)} by the noise of the signals in pixels: {said}."
    if trained is not None:
        sentence += f" The network was trained at {trained:g}."
    series = [Series("", row["device"], levels, [found[level] for level in levels])]
    return lines("How much noise it bears", sentence, series, "noise, pixels", from_zero=True)


def errors_ahead(row: Row) -> Chart | None:
    """The error by step ahead, relative to what says that nothing changes, or that the last season comes again: small
    differences show.
    """
    columns = [key.removesuffix("_mae") for key in (row["scores"] or [{}])[0] if key.endswith("_mae")]
    if len(row["scores"]) < 2 or not {"network", "persistence"} <= set(columns):
        return None
    ahead = [float(each["step_ahead"]) for each in row["scores"]]
    reference = "seasonal_naive" if "seasonal_naive" in columns else "persistence"
    series, said = [], []
    for index, name in enumerate(each for each in columns if each != reference):
        both = [(float(each[f"{name}_mae"]), float(each[f"{reference}_mae"])) for each in row["scores"]]
        relative: list[Number] = [100 * (own / base - 1) if base else None for own, base in both]
        known = [value for value in relative if value is not None]
        if not known:
            return None
        style = "line" if name == "network" else "dashed"
        series.append(Series(words(name), row["device"] if name == "network" else f"e{index}", ahead, relative, style))
        said.append(f"the error of the {words(name)} is {min(known):+.2f}% to {max(known):+.2f}% away from it")
    series.append(Series(words(reference), "soft", ahead, [0.0] * len(ahead), "dashed"))
    simple = "that the last season comes again" if reference == "seasonal_naive" else "that nothing changes"
    sentence = f"Below 0 is better than saying {simple}: {'; '.join(said)}."
    return lines(f"Error by step ahead, % against {words(reference)}", sentence, series, "steps ahead")


def last_forecasts(row: Row) -> Chart | None:
    """The longest forecasts at the end of the test split, each at the time when it was made."""
    if not row["predictions"] or "step_ahead" not in row["predictions"][0]:
        return None
    steps = max(int(each["step_ahead"]) for each in row["predictions"])
    own = [each for each in row["predictions"] if int(each["step_ahead"]) == steps][-NUM_FORECASTS:]
    if len(own) < 3:
        return None
    when = [datetime.fromisoformat(each["time"]) for each in own]
    places = [(time - when[0]).total_seconds() for time in when]
    usual = sorted(later - earlier for earlier, later in zip(places, places[1:], strict=False))[len(own) // 2 - 1]
    # A line is broken where time jumps.
    breaks = [index for index in range(1, len(own)) if places[index] - places[index - 1] > 4 * usual]
    xs = [place for index, place in enumerate(places) for _ in range(1 + (index in breaks))]

    def levels(name: str) -> list[Number]:
        found: list[Number] = []
        for index, each in enumerate(own):
            found += [None] * (index in breaks) + [float(each[name])]
        return found

    day, tick = ("%Y-%m-%d", "%Y-%m-%d") if usual >= 86400 else ("%Y-%m-%d %H:%M", "%m-%d %H:%M")
    target = words(row["parameters"].get("preprocess.columns.target", "level"))
    simple, column = ("seasonal naive", "seasonal_naive") if "seasonal_naive" in own[0] else ("persistence", "last")
    series = [
        Series("actual", "ink", xs, levels("actual")),
        Series("network", row["device"], xs, levels("predicted")),
        Series(simple, "soft", xs, levels(column), "dashed"),
    ]
    errors = [
        sum(abs(float(each[name]) - float(each["actual"])) for each in own) / len(own) for name in ("predicted", column)
    ]
    sentence = (
        f"{target} {counted(steps, 'step')} ahead in the last {len(own)} forecasts, {when[0]:{day}} to "
        f"{when[-1]:{day}}: off by {errors[0]:,.4g} on average, {simple} by {errors[1]:,.4g}."
    )
    chosen = [0, len(own) // 2, len(own) - 1]
    x_ticks = [(places[index], f"{when[index]:{tick}}") for index in chosen]
    return lines("The last forecasts", sentence, series, "time when the forecast was made", x_ticks=x_ticks)


def predicted_numbers(row: Row) -> Chart | None:
    """Each sequence's prediction over its number; of many sequences an even choice."""
    every = -(-len(row["predictions"]) // MAX_POINTS)
    chosen = row["predictions"][::every]
    if len(chosen) < 3:
        return None
    actual, predicted = ([float(each[side]) for each in chosen] for side in ("actual", "predicted"))
    ends = [min(actual), max(actual)]
    series = [
        Series("network", row["device"], actual, list(predicted), "dots"),
        Series("equal", "soft", ends, list(ends), "dashed"),
    ]
    target = words(row["parameters"].get("preprocess.columns.label", "number"))
    shown = f"{counted(len(chosen), 'test sequence')}{' of many' * (every > 1)}"
    own, mean, linear = (row["metrics"][name] for name in ("mae", "mean_mae", "linear_mae"))
    sentence = (
        f"Predicted {target} over the actual one, {shown}: off by {own:.4g} on average, always the training mean by "
        f"{mean:.4g}, a linear model by {linear:.4g}."
    )
    places = [place for place in ticks(*ends) if ends[0] <= place <= ends[1]]
    x_ticks = [(place, f"{place:g}") for place in places]
    return lines("Predicted and actual numbers", sentence, series, f"actual {target}", x_ticks=x_ticks)


def events(row: Row) -> Chart | None:
    """Actual above predicted events of a few sequences: the two with the most, and the first two with a mistake."""
    if not row["predictions"] or "event" not in row["predictions"][0]:
        return None
    by_sequence: dict[str, list[Mapping[str, str]]] = {}
    for each in row["predictions"]:
        by_sequence.setdefault(each["sequence"], []).append(each)
    most = sorted(by_sequence, key=lambda name: -sum(bool(each["actual"]) for each in by_sequence[name]))[:2]
    mistaken = [name for name, own in by_sequence.items() if any(is_wrong(each) for each in own)][:2]
    chosen = list(dict.fromkeys([*most, *mistaken]))
    classes = [str(each["class"]) for each in row["scores"] if "class" in each]
    classes += sorted({each["event"] for each in row["predictions"]} - set(classes))
    num_steps = int(row["data"].get("max_steps", 0)) or 1 + max(
        int(each[side])
        for name in chosen
        for each in by_sequence[name]
        for side in ("actual", "predicted")
        if each[side]
    )
    canvas, across = Canvas(), Scale(0, max(1, num_steps - 1), 66, WIDTH - 8)
    for index, name in enumerate(chosen):
        strip(canvas, STRIP * index, name, by_sequence[name], classes, across)
    bottom = STRIP * len(chosen)
    for value in whole_ticks(0, num_steps - 1):
        canvas.text(across(value), bottom + 10, f"{value:g}", "tick", "middle")
    canvas.text(WIDTH / 2, bottom + 26, "step", "tick", "middle")
    shown = [each for each in classes if any(each == own["event"] for name in chosen for own in by_sequence[name])]
    keys = [Key(f"dots {colour(each, classes)}", each) for each in shown] + [Key("ring", "missed or invented")]
    num_wrong = sum(any(is_wrong(each) for each in own) for own in by_sequence.values())
    sentence = (
        f"{num_wrong:,} of {len(by_sequence):,} test sequences with events have a mistake. Shown are the two with the "
        f"most events{' and the first with a mistake' if mistaken else ''}; a line joins an event with its prediction."
    )
    return Chart("Events, actual and predicted", sentence, bottom + 30, canvas.marks, keys)


def strip(
    canvas: Canvas, top: float, name: str, own: Sequence[Mapping[str, str]], classes: Sequence[str], across: Scale
) -> None:
    missed = sum(bool(each["actual"]) and not each["predicted"] for each in own)
    invented = sum(bool(each["predicted"]) and not each["actual"] for each in own)
    counts = f"{counted(sum(bool(each['actual']) for each in own), 'event')}, {missed} missed, {invented} invented"
    canvas.text(0, top + 11, f"sequence {name}: {counts}"[: int(WIDTH / LETTER) + 4], "label")
    heights = {"actual": top + 25, "predicted": top + 45}
    for side, y in heights.items():
        canvas.text(60, y + 4, side, "tick", "end")
        canvas.path("grid", f"M66 {short(y)}H{short(WIDTH)}")
    for each in own:
        places = {side: across(float(each[side])) for side in heights if each[side]}
        if len(places) == 2:
            canvas.path("join", trace([(places[side], heights[side]) for side in heights]))
        for side, x in places.items():
            canvas.add("circle", f"event {colour(each['event'], classes)}", cx=x, cy=heights[side], r=4.5)
            if len(places) == 1:
                canvas.add("circle", "ring", cx=x, cy=heights[side], r=8)


def is_wrong(event: Mapping[str, str]) -> bool:
    return not (event["actual"] and event["predicted"])


def colour(event: str, classes: Sequence[str]) -> str:
    return f"e{classes.index(event) % EVENT_COLOURS}"

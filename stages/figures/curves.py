"""Charts of trainings: how a workload's devices compare, then what happened epoch by epoch.

In: rows of compare.json with what `stages.compare.facts` adds, and the published runs beside them. Where a chart would
say nothing (one bar, one epoch) its sentence stands alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stages.comparing.published import Reference
from stages.figures.chart import Chart, Series, Span, lines, ranges
from stages.figures.drawing import counted
from stages.figures.text import score_text, seconds, spread, words

Row = Mapping[str, Any]
MIN_EPOCHS = 3  # fewer are no curve


def scores(rows: Sequence[Row], references: Sequence[Reference]) -> Chart | None:
    """The test score of every seed, on every device and of what is published; None for a single one."""
    spans = [
        Span(row["label"], row["device"], [run["score"] for run in row["runs"]], row["score"], score_text(row["score"]))
        for row in rows
    ]
    for each in references:
        found = list(each.scores.values())
        middle = statistics.fmean(found)
        spans.append(Span(each.label, "published", found, middle, score_text(middle)))
    name, every = words(rows[0]["score_name"]), [len(span.values) for span in spans]
    sentence = "; ".join(f"{span.label} {spread(span.values, span.middle, score_text, 'seed')}" for span in spans)
    if sum(every) == 1:
        return None
    # A forecast's skill is 0 where it is no better than persistence, R2 where it is no better than the targets' mean.
    floor = {"forecast": "persistence", "regress": "the mean of what is predicted"}.get(rows[0]["task"])
    zero = 0.0 if floor else None
    beside = f" The dashed line is {floor}." if zero == 0 and min(min(s.values) for s in spans) < 0 else ""
    return ranges(f"Test {name}, seed by seed", f"{sentence}.{beside}", spans, from_zero=False, mark=zero)


def speeds(rows: Sequence[Row], references: Sequence[Reference]) -> Chart | None:
    """Seconds per epoch of every device and of what is published; None for a single one."""
    spans = []
    for row in rows:
        if row["epoch_seconds"] is not None:
            found = [run["epoch_seconds"] for run in row["runs"] if run["epoch_seconds"] is not None]
            spans.append(
                Span(row["label"], row["device"], found, row["epoch_seconds"], f"{seconds(row['epoch_seconds'])} s")
            )
    published = [each for each in references if each.measured("epoch_seconds")]
    for each in published:
        middle = statistics.median(each.measured("epoch_seconds"))
        spans.append(Span(each.label, "published", each.measured("epoch_seconds"), middle, f"{seconds(middle)} s"))
    sentence = "; ".join(f"{span.label} {spread(span.values, span.middle, seconds, 'process')}" for span in spans)
    untimed = " Times of the published runs are not recorded." if len(published) < len(references) else ""
    if len(spans) < 2:
        return None
    apart = " Published times took no turns with these: their ratio holds two machines' state too." if published else ""
    return ranges("Seconds per epoch, less is faster", f"{sentence}.{apart}{untimed}", spans, from_zero=True)


def losses(rows: Sequence[Row]) -> Chart:
    series, sentences = [], []
    for row in rows:
        of, history = who(rows, row), row["history"]
        trained, validated = column(history, "train_loss"), column(history, "val_loss")
        if not trained[1]:
            continue
        series.append(Series(f"{of}training", row["device"], *trained))
        series.append(Series(f"{of}validation", row["device"], *validated, "dashed"))
        first, last = trained[1][0], trained[1][-1]
        sentence = f"{of}training loss goes from {first:.3g} to {last:.3g} in {counted(len(history), 'epoch')}"
        if validated[1]:
            lowest = min(validated[1])
            epoch = validated[0][validated[1].index(lowest)]
            sentence += (
                f"; on validation it is lowest, {lowest:.3g}, in epoch {epoch:g}, and {validated[1][-1]:.3g} at the end"
            )
        sentences.append(sentence)
    return drawn(f"Loss{of_seed(rows[0])}", sentences, series)


def validation(rows: Sequence[Row]) -> Chart:
    """The validation score over the epochs, and the test's at the end."""
    series, sentences = [], []
    for row in rows:
        of, name = who(rows, row), row["score_name"]
        epochs, values = column(row["history"], f"val_{name}")
        if not values:
            continue
        test = row["runs"][0]["score"]
        series.append(Series(f"{of}validation", row["device"], epochs, values))
        series.append(Series(f"{of}test", row["device"], [epochs[-1]], [test], "point"))
        best = max(values)
        sentences.append(
            f"{of}{words(name)} on validation is {score_text(values[-1])} at the end, at best {score_text(best)} "
            f"in epoch {epochs[values.index(best)]:g}; on the test split it is {score_text(test)}"
        )
    return drawn(capital(f"{words(rows[0]['score_name'])} over the epochs{of_seed(rows[0])}"), sentences, series)


def epoch_times(row: Row, rows: Sequence[Row]) -> Chart:
    """Each epoch's seconds. The axis is that of the epochs that count; what lies above it is said."""
    timings = row["timings"]
    elsewhere = [each for each in timings if each.get("is_elsewhere")]  # the CPU went on after memory ran out
    apart = [each for each in timings if each["is_warmup"] or each in elsewhere]
    kept = [each for each in timings if each not in apart]
    device = f", {row['label']}" if len(rows) > 1 else ""
    title = f"Every epoch's seconds{device}{of_seed(row)}"
    values = column(kept, "epoch_seconds")[1]
    if not values:
        return Chart(title, "No epoch after the warm-up is timed.", 0, ())
    sentence = f"An epoch takes {seconds(statistics.median(values))} s in the median of {len(values)}"
    if len(values) >= 4:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        sentence += f", half of them {seconds(low)} to {seconds(high)} s, the slowest {seconds(max(values))} s"
    inside = [each for each in apart if each["epoch_seconds"] <= 1.2 * max(values)]
    if apart:
        why = "warm-up or on the CPU" if elsewhere else "warm-up"
        place = "in grey" if len(inside) == len(apart) else f"{len(apart) - len(inside)} of them above the axis"
        do = "does" if len(apart) == 1 else "do"
        sentence += f"; {counted(len(apart), 'epoch')} of {why} {do} not count ({place})"
    series = [
        Series("counted", row["device"], *column(kept, "epoch_seconds"), "dots"),
        Series("not counted", "soft", *column(inside, "epoch_seconds"), "dots"),
    ]
    return drawn(title, [sentence], series)


def drawn(title: str, sentences: Sequence[str], series: Sequence[Series]) -> Chart:
    said = ". ".join(map(capital, sentences))
    sentence = f"{said}." if said else "Nothing was recorded."
    if max((len(each.xs) for each in series), default=0) < MIN_EPOCHS:
        return Chart(title, sentence, 0, ())
    return lines(title, sentence, series, "epoch")


def of_seed(row: Row) -> str:
    """Curves are those of the first seed."""
    return f", seed {row['seeds'][0]}" if len(row["seeds"]) > 1 else ""


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def column(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Epochs and values of the rows that have one; a training that diverges has losses that are no numbers."""
    present = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]
    return [epoch for epoch, _ in present], [value for _, value in present]


def who(rows: Sequence[Row], row: Row) -> str:
    return f"{row['label']}, " if len(rows) > 1 else ""

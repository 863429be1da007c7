"""The report's charts: what is drawn of a training and of its predictions, and that it lies inside the chart."""

import math
import re
from typing import Any

import pytest

from stages.figures import chart, curves, outcomes
from stages.figures.chart import Chart, Series, Span
from tests.test_report import NASTY, make_row


def test_epochs_that_do_not_count_are_said():
    row = {**make_row(), "label": "CPU"}
    assert "1 epoch of warm-up does not count (1 of them above the axis)" in curves.epoch_times(row, [row]).sentence
    moved = {**row, "timings": [{**each, "is_elsewhere": float(each["epoch"] > 6)} for each in row["timings"]]}
    assert "in the median of 5, half" in (said := curves.epoch_times(moved, [moved]).sentence)
    assert "7 epochs of warm-up or on the CPU" in said


def places(found: Chart) -> list[tuple[float, float]]:
    """Every place of a chart's paths and texts, by path commands M, L, H, V, h and v."""
    seen = []
    for mark in found.marks:
        if mark.tag == "text":
            seen.append((float(mark.at["x"]), float(mark.at["y"])))
        x = y = 0.0
        for command, text in re.findall(r"([MLHVhv])([-\d. ]+)", mark.at.get("d", "")):
            first, *rest = (float(value) for value in text.split())
            match command:
                case "H":
                    x = first
                case "V":
                    y = first
                case "h":
                    x += first
                case "v":
                    y += first
                case _:
                    x, y = first, rest[0]
            seen.append((x, y))
    return seen


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [0.0] * 3, [-1e-9, 2e-9, 0], [1e12, 5.0, None], [0.9833] * 3])
def test_nothing_of_a_chart_lies_outside_it(values: list[float | None]):
    epochs = [1.0, 2.0, 3.0]
    known = [value for value in values if value is not None]
    found = [
        chart.lines(
            "t", "s", [Series("a", "cpu", epochs, values), Series("b", "cpu", epochs, values, "dots")], "epoch"
        ),
        chart.lines("t", "s", [Series("a", "cpu", epochs[:1], known[:1], "point")], "epoch", from_zero=True),
        chart.ranges("t", "s", [Span("a" * 99, "cpu", known, known[0], "1")] * 2, from_zero=False, mark=0.5),
    ]
    if min(known) >= 0:
        found.append(chart.ranges("t", "s", [Span("a", "cpu", known, max(known), "1")], from_zero=True))
    for each in found:
        assert all(0 <= x <= chart.WIDTH and 0 <= y <= each.height for x, y in places(each))
    assert len(found[0].keys) == 2 and not found[1].keys


def test_ticks_have_the_decimals_that_tell_them_apart():
    for low, high, texts in ((0, 1, ["0.00", "0.25", "0.50", "0.75", "1.00"]), (0.9722, 0.9889, ["0.970", "0.975"])):
        found = chart.ticks(low, high)
        assert [chart.tick_text(value, found[1] - found[0]) for value in found][: len(texts)] == texts
    assert chart.tick_text(-1e-17, 0.005) == "0.000" and not math.isnan(chart.ticks(3.0, 3.0)[0])


def test_a_line_breaks_where_nothing_was_measured():
    assert chart.trace([(0, 1), (1, 2), (2, None), (3, 4)]) == "M0 1L1 2M3 4"


def test_the_confusion_has_a_colour_by_share_and_with_many_classes_a_list():
    found = outcomes.confusion(make_row())
    assert found and found.cells == [[("1", "right-2"), ("1", "wrong-2")], [("", ""), ("1", "right-3")]]
    assert found.sentence.endswith(f"2 of 3 lie on the diagonal. Most often wrong: {NASTY} taken for circle, once.")
    many = [{"actual": str(number), "predicted": str(number + 1)} for number in range(31) for _ in range(number)]
    found = outcomes.confusion({**make_row(), "scores": [], "confusion": many})
    assert found and not found.cells and found.mistakes[0] == ("30", "31", 30) and len(found.mistakes) == 30


def test_the_events_shown_are_the_most_and_the_first_mistakes():
    def event(sequence: str, actual: Any, predicted: Any, name: str = "hit") -> dict[str, str]:
        return {"sequence": sequence, "event": name, "actual": str(actual), "predicted": str(predicted)}

    predictions = [event("1", 3, 4), event("2", 3, ""), event("3", 1, 1), event("3", 5, 5), event("4", "", 2, NASTY)]
    row = {**make_row(), "task": "detect", "predictions": predictions, "data": {"max_steps": 9}}
    found = outcomes.events(row)
    assert found and [key.label for key in found.keys] == [NASTY, "hit", "missed or invented"]
    titles = [mark.text for mark in found.marks if mark.css == "label"]
    assert titles == [
        "sequence 3: 2 events, 0 missed, 0 invented",
        "sequence 1: 1 event, 0 missed, 0 invented",
        "sequence 2: 1 event, 1 missed, 0 invented",
        "sequence 4: 0 events, 0 missed, 1 invented",
    ]
    assert sum(mark.css == "ring" for mark in found.marks) == 2
    assert found.sentence.startswith("2 of 4 test sequences with events have a mistake.")


def test_forecasts_are_drawn_with_their_gaps_and_beside_persistence():
    hours = [0, 1, 2, 3, 30, 31]
    predictions = [
        {"time": f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00:00Z", "step_ahead": str(step),
         "last": "5", "actual": str(5 + step), "predicted": "6"}
        for hour in hours for step in (1, 2)
    ]  # fmt: skip
    scores = [{"step_ahead": "1", "network_mae": "1.1", "persistence_mae": "1"},
              {"step_ahead": "2", "network_mae": "0.9", "persistence_mae": "1"}]  # fmt: skip
    row = {**make_row(), "task": "forecast", "predictions": predictions, "scores": scores}
    errors, levels = outcomes.charts(row)
    assert "the error of the network is -10.00% to +10.00% away from it" in errors.sentence
    assert "2 steps ahead in the last 6 forecasts, 2024-01-01 00:00 to 2024-01-02 07:00" in levels.sentence
    assert "off by 1 on average, persistence by 2." in levels.sentence
    assert {mark.at["d"].count("M") for mark in levels.marks if mark.css.startswith(("line", "dashed"))} == {2}


def test_noise_is_drawn_with_the_level_it_was_trained_at():
    metrics = {"event_f1": 0.9, "event_f1_at_noise_0px": 0.95, "event_f1_at_noise_16px": 0.5}
    row = {**make_row(), "task": "detect", "score_name": "event_f1", "metrics": metrics}
    assert outcomes.charts(row) == []
    [found] = outcomes.charts({**row, "parameters": {"preprocess.noise": 2.0}})
    assert "0.9500 at 0, 0.9000 at 2, 0.5000 at 16. The network was trained at 2." in found.sentence

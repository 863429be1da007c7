"""The report's charts: what is drawn of a training and of its predictions, and that it lies inside the chart."""

from typing import Any

import numpy as np
import pytest

from stages.figures import charts, drawing
from stages.figures.charts import Chart
from tests.test_report import NASTY, make_row


def test_epochs_that_do_not_count_are_said():
    row = {**make_row(), "label": "CPU"}
    assert (
        "1 epoch of warm-up does not count (in grey, a triangle beyond the axis)"
        in charts.epoch_times(row, [row]).sentence
    )


def test_the_confusion_is_numbered_unless_there_are_many_classes():
    [found] = charts.outcomes(make_row())
    assert found.figure and [text.get_text() for text in found.figure.axes[0].texts] == ["1", "1", "1"]
    assert found.sentence.endswith(f"2 of 3 lie on the diagonal. Most often wrong: {NASTY} taken for circle, once.")
    many = [{"actual": str(number), "predicted": str(number + 1)} for number in range(31) for _ in range(number)]
    [found] = charts.outcomes({**make_row(), "scores": [], "confusion": many})
    assert "Most often wrong: 30 taken for 31, 30 times" in found.sentence and found.figure
    assert not found.figure.axes[0].texts


def events_row() -> dict[str, Any]:
    def event(sequence: str, actual: Any, predicted: Any, name: str = "hit") -> dict[str, str]:
        return {"sequence": sequence, "event": name, "actual": str(actual), "predicted": str(predicted)}

    predictions = [event("1", 3, 4), event("2", 3, ""), event("3", 1, 1), event("3", 5, 5), event("4", "", 2, NASTY)]
    return {**make_row(), "task": "detect", "predictions": predictions, "data": {"max_steps": 9}, "confusion": []}


def test_the_events_shown_are_the_most_and_the_first_mistakes():
    [found] = charts.outcomes(events_row())
    assert found.figure
    [legend] = found.figure.legends
    names = [drawing.plain(NASTY), "hit", "miss or false alarm"]
    assert [text.get_text() for text in legend.get_texts()] == names
    assert [axes.texts[0].get_text() for axes in found.figure.axes] == [
        "sequence 3: 2 events, 0 misses, 0 false alarms",
        "sequence 1: 1 event, 0 misses, 0 false alarms",
        "sequence 2: 1 event, 1 miss, 0 false alarms",
        "sequence 4: 0 events, 0 misses, 1 false alarm",
    ]
    assert found.sentence.startswith("2 of 4 test sequences with events have a mistake.")


def forecast_row() -> dict[str, Any]:
    predictions = [
        {"time": f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00:00Z", "step_ahead": str(step),
         "last": "5", "actual": str(5 + step), "predicted": "6"}
        for hour in (0, 1, 2, 3, 30, 31) for step in (1, 2)
    ]  # fmt: skip
    scores = [{"step_ahead": "1", "network_mae": "1.1", "persistence_mae": "1"},
              {"step_ahead": "2", "network_mae": "0.9", "persistence_mae": "1"}]  # fmt: skip
    return {**make_row(), "task": "forecast", "predictions": predictions, "scores": scores}


def test_forecasts_are_drawn_with_their_gaps_and_beside_persistence():
    errors, levels = charts.outcomes(forecast_row())
    assert "the error of the network is -10.00% to +10.00% away from it" in errors.sentence
    assert "2 steps ahead in the last 6 forecasts, 2024-01-01 00:00 to 2024-01-02 07:00" in levels.sentence
    assert "off by 1 on average, persistence by 2." in levels.sentence
    assert levels.figure and {int(np.isnan(line.get_ydata()).sum()) for line in levels.figure.axes[0].lines} == {1}


def test_noise_is_drawn_with_the_level_it_was_trained_at():
    metrics = {"event_f1": 0.9, "event_f1_at_noise_0px": 0.95, "event_f1_at_noise_16px": 0.5}
    row = {**make_row(), "task": "detect", "score_name": "event_f1", "metrics": metrics, "confusion": []}
    assert charts.outcomes(row) == []
    [found] = charts.outcomes({**row, "parameters": {"preprocess.noise": 2.0}})
    assert "0.9500 at 0, 0.9000 at 2, 0.5000 at 16. The network was trained at 2." in found.sentence


def every_chart() -> dict[str, list[Chart | None]]:
    rows = [{**make_row(device=device, seeds=seeds), "label": f"GPU {seeds} {NASTY}"}
            for device, seeds in (("cpu", 3), ("cuda", 1))]  # fmt: skip
    many = [{"actual": f"{NASTY} {n % 31}", "predicted": f"{NASTY} {n * n % 31}"} for n in range(900)]
    huge = {**rows[0], "score": 1e-9, "epoch_seconds": 1e5, "runs": [{**rows[0]["runs"][0], "epoch_seconds": 1e5}]}
    numbers = [{"actual": str(n * n), "predicted": str(900 - n)} for n in range(30)]
    regressed = {**rows[0], "task": "regress", "predictions": numbers, "confusion": []}
    regressed["metrics"] = {"mae": 1.0, "mean_mae": 2.0, "linear_mae": 3.0}
    return {
        "of trainings": [charts.scores(rows, []), charts.speeds([*rows, huge], []), charts.losses(rows)],
        "of epochs": [charts.validation(rows), *(charts.epoch_times(row, rows) for row in rows)],
        "of classes": charts.outcomes(rows[0]) + charts.outcomes({**rows[0], "confusion": many, "scores": []}),
        "of forecasts": list(charts.outcomes(forecast_row())),
        "of events": list(charts.outcomes(events_row())),
        "of numbers": list(charts.outcomes(regressed)),
    }


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", list(every_chart()))
def test_nothing_of_a_chart_lies_outside_it(kind: str):
    """Text is measured in matplotlib's font, which is wider than most."""
    with drawing.report_style():
        for found in every_chart()[kind]:
            assert found and found.figure
            width, height = found.figure.get_size_inches()
            inked = found.figure.get_tightbbox()
            assert inked.x0 >= -0.05 and inked.x1 <= width + 0.05, found.title
            assert inked.y0 >= -0.05 and inked.y1 <= height + 0.05, found.title

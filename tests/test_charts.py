"""The report's charts: what is drawn of a training and of its predictions, and that it lies inside the chart."""

from typing import Any

import pytest

from stages.figures import charts, drawing
from stages.figures.charts import Chart
from tests.test_report import NASTY, make_row


def events_row() -> dict[str, Any]:
    def event(sequence: str, actual: Any, predicted: Any, name: str = "hit") -> dict[str, str]:
        return {"sequence": sequence, "event": name, "actual": str(actual), "predicted": str(predicted)}

    predictions = [event("1", 3, 4), event("2", 3, ""), event("3", 1, 1), event("3", 5, 5), event("4", "", 2, NASTY)]
    return {**make_row(), "task": "detect", "predictions": predictions, "data": {"max_steps": 9}, "confusion": []}


def forecast_row() -> dict[str, Any]:
    predictions = [
        {"time": f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00:00Z", "step_ahead": str(step),
         "last": "5", "actual": str(5 + step), "predicted": "6"}
        for hour in (0, 1, 2, 3, 30, 31) for step in (1, 2)
    ]  # fmt: skip
    scores = [{"step_ahead": "1", "network_mae": "1.1", "persistence_mae": "1"},
              {"step_ahead": "2", "network_mae": "0.9", "persistence_mae": "1"}]  # fmt: skip
    return {**make_row(), "task": "forecast", "predictions": predictions, "scores": scores}


def every_chart() -> dict[str, list[Chart | None]]:
    rows = [{**make_row(device=device, seeds=seeds), "label": f"GPU {seeds} {NASTY}"}
            for device, seeds in (("cpu", 3), ("cuda", 1))]  # fmt: skip
    many = [{"actual": f"{NASTY} {n % 31}", "predicted": f"{NASTY} {n * n % 31}"} for n in range(900)]
    huge = {**rows[0], "score": 1e-9, "epoch_seconds": 1e5, "runs": [{**rows[0]["runs"][0], "epoch_seconds": 1e5}]}
    numbers = [{"actual": str(n * n), "predicted": str(900 - n)} for n in range(30)]
    regressed = {**rows[0], "task": "regress", "predictions": numbers, "confusion": []}
    regressed["metrics"] = {"mae": 1.0, "mean_mae": 2.0, "linear_mae": 3.0}
    return {
        "of trainings": [charts.scores(rows), charts.speeds([*rows, huge]), charts.losses(rows)],
        "of epochs": [charts.validation(rows), *(charts.epoch_times(row, rows) for row in rows)],
        "of classes": charts.outcomes(rows[0]) + charts.outcomes({**rows[0], "confusion": many, "scores": []}),
        "of forecasts": list(charts.outcomes(forecast_row())),
        "of events": list(charts.outcomes(events_row())),
        "of numbers": list(charts.outcomes(regressed)),
    }


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", list(every_chart()))
def test_no_chart_is_cut_at_its_edges(kind: str):
    """Text is measured in matplotlib's font, which is wider than most."""
    with drawing.report_style():
        for found in every_chart()[kind]:
            assert found and found.figure
            width, height = found.figure.get_size_inches()
            inked = found.figure.get_tightbbox()
            assert inked.x0 >= -0.05 and inked.x1 <= width + 0.05, found.title
            assert inked.y0 >= -0.05 and inked.y1 <= height + 0.05, found.title

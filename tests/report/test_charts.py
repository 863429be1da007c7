"""The charts of trainings and of predictions: they hold for few and for many classes and epochs, and for any name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.report import charts, drawing
from tandem.report.drawing import Chart
from tandem.report.outcomes import outcomes, with_gaps
from tests.report.test_report import CONFUSION, NASTY, SCORES, make_run, make_side


def event(sequence: str, actual: Any, predicted: Any, name: str = "hit") -> dict[str, str]:
    return {"sequence": sequence, "event": name, "actual": str(actual), "predicted": str(predicted)}


EVENTS = [event("1", 3, 4), event("2", 3, ""), event("3", 1, 1), event("3", 5, 5), event("4", "", 2, NASTY)]
FORECASTS = [
    {"time": f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00:00Z", "step_ahead": str(step),
     "last": "5", "actual": str(5 + step), "predicted": "6"}
    for hour in (0, 1, 2, 3, 30, 31) for step in (1, 2)
]  # fmt: skip
AHEAD = [
    {"step_ahead": "1", "network_mae": "1.1", "persistence_mae": "1"},
    {"step_ahead": "2", "network_mae": "0.9", "persistence_mae": "0"},
]


def every_chart() -> dict[str, list[Chart | None]]:
    sides = [
        replace(make_side(device=device, seeds=seeds), label=f"GPU {seeds} {NASTY}", colour=device)
        for device, seeds in (("cpu", 3), ("cuda", 1))
    ]
    table = [{"actual": f"{NASTY} {row % 31}", "predicted": f"{NASTY} {row * row % 31}"} for row in range(900)]
    huge = replace(make_side(score=-1e5), label=sides[0].label, colour="cpu")
    numbers = [{"sequence": str(row), "actual": str(row * row), "predicted": str(900 - row)} for row in range(30)]
    classes = [event("1", row, row, f"{NASTY} {row}") for row in range(40)]
    return {
        "of trainings": [charts.scores([*sides, huge]), charts.losses(sides)],
        "of epochs": [charts.validation(sides), charts.validation([make_side(epochs=3)])],
        "of classes": [*outcomes(make_run(scores=SCORES, confusion=CONFUSION)), *outcomes(make_run(confusion=table))],
        "of forecasts": [*outcomes(make_run("forecast", predictions=FORECASTS, scores=AHEAD))],
        "of events": [
            *outcomes(make_run("detect", predictions=EVENTS)),
            *outcomes(make_run("detect", predictions=classes)),
        ],
        "of numbers": [*outcomes(make_run("regress", predictions=numbers))],
    }


@pytest.mark.filterwarnings("ignore:Glyph")
def test_no_chart_is_cut_at_its_edges():
    """Text is measured in matplotlib's font, which is wider than most."""
    with drawing.chart_style():
        for kind, of_kind in every_chart().items():
            for chart in of_kind:
                assert chart and chart.figure, kind
                width, height = chart.figure.get_size_inches()
                inked = chart.figure.get_tightbbox()
                assert inked.x0 >= -0.05 and inked.x1 <= width + 0.05, chart.title
                assert inked.y0 >= -0.05 and inked.y1 <= height + 0.05, chart.title


@pytest.mark.parametrize("task", ["classify", "detect", "forecast", "regress"])
def test_too_little_to_draw_gives_no_chart(task: str):
    assert outcomes(make_run(task)) == []
    short, single = ([make_side(epochs=num_epochs)] for num_epochs in (2, 1))
    for curves in (charts.losses, charts.validation):
        chart = curves(short)
        assert chart and chart.figure is None
        assert curves(single) is None


def test_no_line_is_drawn_across_a_gap():
    minutes = np.array([0, 1, 2, 30, 31], dtype="datetime64[m]")
    times, values = with_gaps(minutes, np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert np.array_equal(values, [1, 2, 3, np.nan, 4, 5], equal_nan=True)
    assert (np.diff(times) >= np.timedelta64(0, "m")).all()

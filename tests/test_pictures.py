"""Properties of the pictures: they hold for few and for many classes, devices and epochs, and for any name."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stages.figures import classify, detect, drawing, forecast, overview, sweeps, training
from tests.test_report import NASTY, make_row, make_run


def make_confusion(num_classes: int) -> Any:
    cells = np.random.default_rng(0).poisson(0.02, size=(num_classes, num_classes)) + 9 * np.eye(num_classes, dtype=int)
    return classify.draw(cells.tolist(), [f"{NASTY} {number}" for number in range(num_classes)], NASTY)


def make_forecast(num_windows: int, num_steps: int) -> Any:
    level = 100 + np.random.default_rng(0).normal(size=num_windows + num_steps).cumsum()
    minutes = np.arange(0, 15 * num_windows, 15).astype("timedelta64[m]")
    times = (np.datetime64("2024-01-01T00:00") + minutes).astype(str).tolist()
    actual = np.stack([level[1 + step : 1 + step + num_windows] for step in range(num_steps)], axis=1)
    known = np.repeat(level[:num_windows, None], num_steps, axis=1)
    baselines = {"persistence": known, "linear autoregression": 0.5 * (known + actual)}
    return forecast.draw(times, level[:num_windows], actual, {"network": known + 0.1, **baselines}, NASTY)


def make_events(num_sequences: int, num_steps: int, num_classes: int) -> Any:
    actual = np.zeros((num_sequences, num_steps), dtype=np.int64)
    actual[:, 2::9] = 1 + np.arange(len(actual[0, 2::9])) % (num_classes - 1)
    predicted = np.roll(actual, 1, axis=1)
    predicted[:, :5] = 0
    values = np.random.default_rng(0).normal(size=(num_sequences, num_steps, 3))
    values[:, 1:3] = np.nan
    probabilities = np.full((num_sequences, num_steps, num_classes), 1 / num_classes)
    classes, features = ["none", *(f"{NASTY} {number}" for number in range(1, num_classes))], ["u", "v", "_visible"]
    ids = np.array([f"{NASTY} {number}" for number in range(num_sequences)])
    return detect.draw(ids, values, actual, predicted, probabilities, classes, features, 2, NASTY)


FIGURES: dict[str, Callable[[], Any]] = {
    "2 classes": lambda: make_confusion(2),
    "300 classes": lambda: make_confusion(300),
    "1 window": lambda: make_forecast(1, 1),
    "5,000 windows": lambda: make_forecast(5000, 8),
    "1 sequence": lambda: make_events(1, 6, 2),
    "sequences of 300 classes": lambda: make_events(2, 600, 300),
    "noise": lambda: sweeps.noise([0, 2, 4], [0.9, 0.8, 0.5], NASTY),
    "noise at one level": lambda: sweeps.noise([0], [0.9], NASTY),
    "1 device, 1 epoch": lambda: training.draw(NASTY, [make_run(num_epochs=1, num_warmup=0)]),
    "warm-up alone": lambda: training.draw(NASTY, [make_run(num_epochs=1)]),
    "2 devices": lambda: training.draw(NASTY, [make_run(), make_run("cuda", 300)]),
    "summary of 1 run": lambda: overview.summary([make_row()]),
    "summary with a negative score": lambda: overview.summary(
        [make_row(NASTY, "cpu", -0.02), make_row(NASTY, "cuda", 0.01), make_row("sign")]
    ),
}


@functools.cache
def drawn(name: str) -> tuple[Any, bytes]:
    figure = FIGURES[name]()
    return figure, drawing.png_bytes(figure)


@pytest.mark.parametrize("name", FIGURES)
def test_no_picture_is_cut_at_its_edges(name: str):
    """Warnings are errors here: no layout collapses, no axis has equal ends, no name is taken for a formula."""
    figure, png = drawn(name)
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and b"matplotlib" not in png
    width, height = figure.get_size_inches()
    assert 4 < width < 15 and 1.5 < height < 18
    inked = figure.get_tightbbox()
    assert inked.x0 >= 0 and inked.y0 >= 0 and inked.x1 <= width and inked.y1 <= height


@pytest.mark.parametrize("name", ["2 classes", "1 window", "1 sequence", "noise", "summary of 1 run"])
def test_equal_data_give_the_same_bytes(name: str):
    assert drawing.png_bytes(FIGURES[name]()) == drawn(name)[1]


def test_vram_that_was_not_measured_is_absent_with_its_reason():
    cpu, gpu = training.draw("sign", [make_run()]), training.draw("sign", [make_run("cuda")])
    assert not cpu.axes[3].texts
    assert [text.get_text() for text in gpu.axes[3].texts] == [
        "whole process not measured, because NVML lists no process"
    ]
    assert len(cpu.axes[3].lines) == 1 and len(gpu.axes[3].lines) == 2


def test_the_error_band_uses_only_past_errors():
    errors = np.arange(100.0)
    low, high = forecast.error_band(errors, num_steps=3)
    # The forecast 22 is made when the errors 0 to 19 are known, the first twenty.
    assert np.isnan(low[:22]).all() and np.isfinite(low[22:]).all()
    assert low[22] == pytest.approx(0.05 * 19) and high[22] == pytest.approx(0.95 * 19)
    changed = errors.copy()
    changed[51:] = 1e6
    assert np.array_equal(forecast.error_band(changed, 3)[1][:54], high[:54], equal_nan=True)
    assert forecast.error_band(changed, 3)[1][60] > high[60]


def test_no_line_is_drawn_across_a_gap():
    minutes = np.array([0, 1, 2, 30, 31], dtype="datetime64[m]")
    times, values = forecast.with_gaps(minutes, np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert np.array_equal(values, [1, 2, 3, np.nan, 4, 5], equal_nan=True)
    assert (np.diff(times) >= np.timedelta64(0, "m")).all()


def test_as_many_events_as_possible_are_matched_once_and_by_class():
    truth = detect.events_of(np.array([0, 1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1]))
    found = detect.events_of(np.array([0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0]))
    assert truth == [(1, 1), (3, 1), (6, 2), (11, 1)]
    assert found == [(3, 1), (5, 1), (6, 1)]
    # The closest pair first (3, 3) would leave the event at 1 alone: as many as possible are paired.
    assert detect.matched(truth, found, tolerance=2) == [(0, 0), (1, 1)]
    assert detect.matched(truth, found, tolerance=0) == [(1, 0)]

"""Properties of the pictures and of the report: they hold for few and for many classes, devices and epochs, and for
any name.
"""

import base64
import functools
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from stages.figures import classify, comparison, detect, drawing, forecast, noise, overview, report, training

NASTY = '<b>&"$x$_\u624b'
REASON = "the device is the CPU: there is no VRAM"
VOID = {"meta", "img", "br"}


def make_run(device: str = "cpu", num_epochs: int = 12, num_warmup: int = 1) -> dict[str, Any]:
    """A training as training.page takes it: on the CPU without VRAM, on the GPU without the process's share of it."""
    vram = None if device == "cpu" else 210.5
    epochs = [float(number) for number in range(1, num_epochs + 1)]
    return {
        "label": f"{device}: {NASTY}",
        "device": device,
        "history": [
            {"epoch": n, "learning_rate": 0.01, "train_loss": 2 / n, "val_loss": 2.2 / n, "val_accuracy": 1 - 0.9 / n}
            for n in epochs
        ],
        "score": "accuracy",
        "timings": [
            {
                "epoch": n,
                "is_warmup": float(n <= num_warmup),
                "epoch_seconds": 9.0 if n == 1 else 0.1 + n / 1000,
                "samples_per_second": 1000.0,
                "validation_seconds": 0.01,
                "peak_allocated_mib": vram,
                "peak_reserved_mib": vram,
                "process_mib": None,
                "peak_rss_mib": 700.0,
            }
            for n in epochs
        ],
        "missing_reasons": dict.fromkeys(training.VRAM, REASON)
        if device == "cpu"
        else {"process_mib": "NVML lists no process"},
        "metrics": {"accuracy": 0.97, "loss": 0.2},
    }


def make_confusion(num_classes: int) -> Any:
    cells = np.random.default_rng(0).poisson(0.02, size=(num_classes, num_classes)) + 9 * np.eye(num_classes, dtype=int)
    return classify.draw(cells.tolist(), [f"{NASTY} {number}" for number in range(num_classes)], NASTY)


def make_forecast(num_windows: int, num_steps: int) -> Any:
    level = 100 + np.random.default_rng(0).normal(size=num_windows + num_steps).cumsum()
    times = (np.datetime64("2024-01-01T00:00") + 15 * np.arange(num_windows)).astype(str).tolist()
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
    classes = ["none", *(f"{NASTY} {number}" for number in range(1, num_classes))]
    titles = [f"{NASTY} {number}" for number in range(num_sequences)]
    return detect.events(values, actual, predicted, probabilities, classes, titles, ["u", "v", "_visible"])


def make_row(workload: str = "sign", device: str = "cpu", score: float = 0.97) -> dict[str, Any]:
    """A row as `compare` hands it to the report and to the summary."""
    return {
        "workload": workload,
        "device": device,
        "device_name": f"{NASTY} processor",
        "threads": 2,
        "torch": "2.11.0",
        "task": "classify",
        "model": "gru",
        "score_name": "macro_f1",
        "score": score,
        "seeds": [0],
        "metrics": {"macro_f1": score, "loss": 0.2, **{f"linear_error_{number}": 0.1 for number in range(9)}},
        "epoch_seconds": 0.25,
        "epoch_seconds_quartile_low": None,
        "epoch_seconds_quartile_high": None,
        "samples_per_second": 1564.5,
        "train_seconds": 10.9,
        "peak_allocated_mib": None if device == "cpu" else 212.4,
        "missing_reasons": {"peak_allocated_mib": REASON} if device == "cpu" else {},
        "measured_at": "2026-11-21T06:19:40+0000",
        "measured_on": "desk",
        "sentence": f"Of 180 sequences 175 are named correctly, {NASTY} among them.",
        "parameters": {"train.epochs": 100, "train.learning_rate": 0.006, "preprocess.columns.label": NASTY},
        "scores": [{"class": NASTY, "f1": 0.5, "num_true": 12}, {"class": "circle", "f1": 1.0, "offset": None}],
        "data": {"num_sequences": 360, "num_per_class": {"train": {NASTY: 11}}, "classes": [NASTY] * 300},
    }


FIGURES: dict[str, Callable[[], Any]] = {
    "2 classes": lambda: make_confusion(2),
    "300 classes": lambda: make_confusion(300),
    "1 window": lambda: make_forecast(1, 1),
    "5,000 windows": lambda: make_forecast(5000, 8),
    "1 sequence": lambda: make_events(1, 6, 2),
    "sequences of 300 classes": lambda: make_events(2, 600, 300),
    "noise": lambda: noise.noise([0, 2, 4], [0.9, 0.8, 0.5], NASTY),
    "noise at one level": lambda: noise.noise([0], [0.9], NASTY),
    "1 device, 1 epoch": lambda: training.page(NASTY, [make_run(num_epochs=1, num_warmup=0)]),
    "warm-up alone": lambda: training.page(NASTY, [make_run(num_epochs=1)]),
    "2 devices": lambda: training.page(NASTY, [make_run(), make_run("cuda", 300)]),
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
def test_every_picture_is_drawn_with_nothing_cut_at_its_edges(name: str):
    """Warnings are errors here: no layout collapses, no axis has equal ends, no name is taken for a formula."""
    figure, png = drawn(name)
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and b"matplotlib" not in png
    width, height = figure.get_size_inches()
    assert 4 < width < 15 and 1.5 < height < 18
    inked = figure.get_tightbbox()
    assert inked.x0 >= 0 and inked.y0 >= 0 and inked.x1 <= width and inked.y1 <= height


@pytest.mark.parametrize("name", ["2 classes", "1 window", "1 sequence", "warm-up alone", "summary of 1 run"])
def test_saving_again_gives_the_same_bytes(name: str, tmp_path: Path):
    figure, png = drawn(name)
    drawing.save(figure, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == png


@pytest.mark.parametrize("name", ["2 classes", "1 sequence", "noise"])
def test_equal_data_give_the_same_bytes(name: str):
    assert drawing.png_bytes(FIGURES[name]()) == drawn(name)[1]


def test_a_dollar_sign_in_a_name_is_drawn_as_one():
    texts = [text.get_text() for text in drawn("2 devices")[0].findobj(Text)]
    assert any(r"\$x\$" in text for text in texts)
    assert not any(r"\\$" in text for text in texts)


def test_a_device_keeps_its_colour():
    figure = training.page("sign", [make_run(), make_run("cuda")])
    colours = {line.get_label().split(": ")[0]: line.get_color() for line in figure.axes[0].lines}
    assert colours == {
        "train, cpu": "tab:blue",
        "val, cpu": "tab:blue",
        "train, cuda": "tab:green",
        "val, cuda": "tab:green",
    }


def test_absent_vram_is_said_with_its_reason():
    cpu, gpu = training.page("sign", [make_run()]), training.page("sign", [make_run("cuda")])
    assert f"VRAM not measured, because {REASON}" in [text.get_text() for text in cpu.axes[3].texts]
    assert "whole process not measured, because NVML lists no process" in [
        text.get_text() for text in gpu.axes[3].texts
    ]
    assert len(cpu.axes[3].lines) == 1 and len(gpu.axes[3].lines) == 2


def test_a_warmup_epoch_does_not_stretch_the_axis_and_is_written():
    axes = training.page("sign", [make_run()]).axes[2]
    assert axes.get_ylim()[1] < 0.2
    assert [text.get_text() for text in axes.texts] == ["9 s"]


def test_the_largest_confusions_come_first():
    assert classify.most_confused([[5, 1, 0], [3, 5, 0], [0, 2, 5]], 2) == [(1, 0, 3), (2, 1, 2)]


def test_the_band_knows_only_what_was_known():
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
    assert (np.diff(times) >= np.timedelta64(0)).all()


def test_events_are_matched_by_class_and_each_once():
    truth = detect.events_of(np.array([0, 1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1]))
    found = detect.events_of(np.array([0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0]))
    assert truth == [(1, 1), (3, 1), (6, 2), (11, 1)]
    assert found == [(3, 1), (5, 1), (6, 1)]
    # The closest pair first (3, 3) would leave the event at 1 alone: as many as possible are paired.
    assert detect.matched(truth, found, tolerance=2) == [(0, 0), (1, 1)]
    assert detect.matched(truth, found, tolerance=0) == [(1, 0)]


class Page(HTMLParser):
    """What a browser would find: tags must be balanced, text and attributes are kept unescaped."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    png = drawn("noise at one level")[1]
    rows = [make_row(NASTY), make_row(NASTY, "cuda"), {**make_row("price", score=-0.02), "scores": [], "data": {}}]
    pages = {NASTY: [(f"training {NASTY}", png), ("result", png)], "price": [("training", png)]}
    report.write_report(path, rows, [f"{NASTY}: nothing to compare"], pages, [("all runs", png)])
    return path


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_the_report_is_balanced_and_asks_for_nothing(written: Path, page: Page):
    assert page.open == []
    assert not page.all("script") and not page.all("link") and not page.all("iframe")
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    style = re.search(r"<style>(.*?)</style>", written.read_text(encoding="utf-8"), re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_a_name_cannot_break_the_report(written: Path, page: Page):
    assert not page.all("b")
    assert "<b>" not in written.read_text(encoding="utf-8")
    for place in (f"{NASTY} processor", f"{NASTY}: nothing to compare", f"{NASTY} among them", f"training {NASTY}"):
        assert place in page.text
    assert f"training {NASTY}" in [attributes["alt"] for attributes in page.all("img")]


def test_every_workload_has_one_section_that_the_contents_lead_to(page: Page):
    sections = [attributes["id"] for attributes in page.all("section")]
    links = [attributes["href"] for attributes in page.all("a")]
    assert sections == ["workload-0", "workload-1"]
    assert links == ["#top", "#workload-0", "#workload-1"]


def test_every_picture_is_in_the_report_itself(page: Page):
    from PIL import Image

    pictures = page.all("img")
    assert len(pictures) == 4
    for attributes in pictures:
        assert attributes["alt"] and attributes["src"]
        with Image.open(io.BytesIO(base64.b64decode(attributes["src"].partition(",")[2], validate=True))) as image:
            image.verify()
            assert (str(image.width), str(image.height)) == (attributes["width"], attributes["height"])


def test_the_report_says_what_was_measured_and_what_was_not(page: Page):
    for words in (
        "-0.02",
        "macro f1",
        REASON,
        "212",
        "Measured 2026-11-21 on desk",
        "06:19 on desk",
        "1,564",
        "0.250",
        "and 270 more",
        "and 6 more",
    ):
        assert words in page.text
    # Equal on both devices, so said once.
    assert page.text.count("Effective parameters (3)") == 2
    assert "num_per_class.train" in page.text


def test_a_long_table_is_folded_and_a_row_without_a_score_has_an_empty_cell(tmp_path: Path):
    scores = [{"class": number, "f1": 0.5} for number in range(300)]
    report.write_report(tmp_path / "r.html", [{**make_row(), "scores": [*scores, {"class": "more"}]}], [], {})
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "301 rows" in page.text and page.open == []


def test_numbers_that_come_as_text_are_shortened_and_labels_are_not(tmp_path: Path):
    scores = [{"class": "007", "f1": "0.12345678901", "num_true": "12"}, {"class": "1.10", "f1": "", "num_true": "3"}]
    report.write_report(tmp_path / "r.html", [{**make_row(), "scores": scores}], [], {})
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ">007<" in text and ">1.10<" in text and ">0.1235<" in text and "0.12345" not in text and ">12<" in text


def test_markdown_and_html_show_the_same_cells(tmp_path: Path):
    rows = [{**make_row(device=device), "device_name": "a|b", "summary_lines": {}} for device in ("cpu", "cuda")]
    report.write_report(tmp_path / "r.html", rows, [], {})
    in_html = Page((tmp_path / "r.html").read_text(encoding="utf-8")).text
    table = comparison.markdown(rows, []).splitlines()[: 2 + len(rows)]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in table} == {len(comparison.COLUMNS) - 1 + 2}
    for row, line in zip(rows, table[2:], strict=True):
        for (title, *_), cell in zip(comparison.COLUMNS, comparison.cells(row), strict=True):
            for text in (cell.text, *cell.details):
                assert text in in_html
                assert title == "other metrics" or text.replace("|", r"\|") in line


def test_the_same_input_gives_the_same_report(tmp_path: Path):
    for name in ("first", "second"):
        report.write_report(tmp_path / name, [make_row()], ["verdict"], {"sign": []})
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_what_was_not_timed_is_said_to_be_absent_wherever_times_stand(tmp_path: Path):
    """A run that was asked for on a GPU and trained on the CPU, beside one on the CPU."""
    from flows.repro import results_lines
    from stages.figures import comparison, overview, report, training

    more = {"requested": "auto", "data_sha256": "d", "parameters_sha256": "p", "precision": "fp32", "summary_lines": {}}
    untimed = {"epoch_seconds": None, "samples_per_second": None, "finished_on": "cpu", "epochs": []}
    gpu = {**make_row(device="cuda"), **more, **untimed}
    cpu = {**make_row(), **more, "finished_on": "cpu", "epochs": [1.0, 2.0]}
    message = "sign: no speed-up is stated."
    lines = comparison.markdown([cpu, gpu], [message]).splitlines()
    assert "| 0.250 | 1,564 |" in lines[2] and "| none | none |" in lines[3]
    report.write_report(tmp_path / "report.html", [cpu, gpu], [message], {})
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count(">none<") == 2
    (tmp_path / "compare.json").write_text(json.dumps({"rows": [cpu, gpu]}))
    assert " none " in results_lines(tmp_path / "compare.json", {})[2]
    labels = [text.get_text() for axes in overview.summary([cpu, gpu]).axes for text in axes.texts]
    assert labels.count("none") == 1

    run = make_run("cuda", 10)
    run["timings"] = [{**row, "is_elsewhere": float(row["epoch"] > 6)} for row in run["timings"]]
    titles = [axes.get_title() for axes in training.page("sign", [run]).axes]
    assert any("(5 epochs), 5 of warm-up or on the CPU in grey" in title for title in titles), titles

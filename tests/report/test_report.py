"""Properties of the report: they hold for few and for many classes, devices and epochs, and for any name."""

import base64
import csv
import html
import io
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flows import repro
from tandem.comparing.comparison import Comparison, Reference, Side, compare
from tandem.comparing.published import open_entry
from tandem.report import layout, report
from tandem.runs.run import Run
from tandem.terminal.messages import MORE_SEEDS, seconds
from tests.conftest import CHROMIUM
from tests.manifests import SPEED, changed, classified, make_manifest, run_of, sides

NASTY = '<b>&"$x$_\u624b'
REASON = "the device is the CPU: there is no VRAM"
VOID = {"meta", "img", "br"}


def make_run(
    task: str = "classify", num_epochs: int = 12, of: Run | None = None, **tables: list[dict[str, Any]]
) -> Run:
    """An evaluated run with these tables. It has the records of `of`."""
    history = [
        {"epoch": n, "learning_rate": 0.01, "train_loss": 2 / n, "val_loss": 2.2 / n, "val_accuracy": 1 - 0.9 / n}
        for n in range(1, num_epochs + 1)
    ]

    def read(name: str) -> tuple[bytes, str]:
        if not name.endswith(".csv"):
            raise FileNotFoundError(name)
        file, rows = io.StringIO(), {"history": history, **tables}.get(name.removesuffix(".csv"), [])
        writer = csv.DictWriter(file, rows[0] if rows else ["actual", "predicted"])
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue().encode(), name

    if of is None:
        columns = {"columns": {"target": NASTY, "label": NASTY}}
        metrics = {"accuracy": 0.5, "mae": 1.0, "mean_mae": 2.0, "fitted_mae": 3.0}
        changes = {"block.task": task, "block.preprocess": columns, "result.metrics": metrics}
        of = run_of(make_manifest("cpu", **changes), classified("1"))
    return replace(of, score={**of.score, "files": {}}, read=read)  # type: ignore[typeddict-item]


def test_workers_and_machines_have_labels_of_their_own():
    names = ("Xeon", "2 workers on Xeon", "EPYC")
    runs = [run_of(make_manifest("cpu", **{"hardware.name": name}), classified("1")) for name in names]
    labelled, hardware = layout.labelled([Side("cpu", (run,)) for run in runs])
    assert [side.label for side in labelled] == ["CPU 1", "CPU 1, 2 workers", "CPU 2"]
    assert [device.name for device in hardware] == [*names]


@pytest.mark.parametrize(
    ("value", "text"), [(0.00234, "0.00234"), (0.0378, "0.0378"), (2.505, "2.505"), (217.6, "217.6")]
)
def test_seconds_have_three_digits_or_more(value: float, text: str):
    assert seconds(value) == text


SCORES = [{"class": NASTY, "f1": 0.5, "num_true": 12}, {"class": "circle", "f1": 1.0, "num_true": None}]
CONFUSION = [
    {"actual": NASTY, "predicted": NASTY},
    {"actual": NASTY, "predicted": "circle"},
    {"actual": "circle", "predicted": "circle"},
]


def make_side(
    workload: str = "sign", device: str = "cpu", score: float = 0.97, seeds: int = 1, epochs: int = 12, **changes: Any
) -> Side:
    """Evaluated trainings as `compare` hands them to the report. `changes`: of a manifest, by dotted path."""
    timing = {
        "samples_per_second": 1564.5,
        "train_seconds": 10.9,
        "peak_rss_mib": 806.4,
        "peak_allocated_mib": None if device == "cpu" else 212.4,
        "missing_reasons": {"peak_allocated_mib": REASON} if device == "cpu" else {},
    }
    described = {
        "workload": workload,
        "machine": "desk",
        "measured_at": "2026-11-21T06:19:40+0000",
        "hardware.name": f"{NASTY} {device} processor",
        "summary_lines": {"bound": f"compute-bound, {NASTY}"},
        "mlflow": {"run_id": "abc"},
        "result.sentence": f"Of 180 sequences 175 are named correctly, {NASTY} among them.",
    }
    runs = []
    for seed in range(seeds):
        metrics = {"accuracy": score + 0.004 * seed, "loss": 0.2}
        of_seed = {"seed": seed, "timing": {**timing, "epoch_seconds": 0.25 + 0.01 * seed}, "result.metrics": metrics}
        run = run_of(changed(make_manifest(device, **described, **of_seed), **changes), classified("1"))
        runs.append(make_run(num_epochs=epochs, of=run, scores=SCORES, confusion=CONFUSION))
    return Side(device, tuple(runs))


def alone(side: Side, reference: Reference | None = None, why: str = "") -> Comparison:
    """A workload on one kind of device."""
    return Comparison(side.runs[0].workload, (side,), (), reference, why)


def side_by_side(workload: str = "sign", seeds: int = 1, speed: dict[str, Any] = SPEED) -> Comparison:
    """A CPU and a GPU that alternated. Their scores are compared on other predictions than the report's tables show."""
    both_sides = [Side(name, tuple(runs)) for name, runs in sides(*["1" * 20] * seeds).items()]
    shown_sides = tuple(make_side(workload, device, seeds=seeds) for device in ("cpu", "cuda"))
    return replace(compare(workload, both_sides, speed), sides=shown_sides)


def published() -> Reference:
    seconds = {"0": 0.3, "1": 0.4, "2": 0.5}
    entry = {
        **{"workload": "sign", "requested": "cpu", "device": "cpu", "seed": 0, "epochs": []},
        **{"digests": {"predictions": "0" * 64}, "environment": {"versions": {}}},
        "envelope": {"allowed": [], "horizon": 0, "num_perturbed": 4},
        "block": {"task": "classify", "train": {"model": {"name": "gru"}}},
        "realized": {"threads": 1, "precision": "fp32", "out_of_memory": []},
        "hardware": {"name": f"{NASTY} elsewhere", "torch": "2.11.0"},
        "score_name": "accuracy",
        "scores": {"0": 0.95, "1": 0.96, "2": 0.97},
        "timings": {seed: {"epoch_seconds": time, "samples_per_second": 900.0} for seed, time in seconds.items()},
    }
    return open_entry(entry)


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


def page_of(path: Path, *comparisons: Comparison) -> Page:
    report.write_report(path, comparisons)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    price = make_side("price", score=-0.02)
    report.write_report(path, [side_by_side(NASTY), alone(price, why="no published result exists")])
    return path


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_the_report_is_balanced_without_scripts_or_requests(written: Path, page: Page):
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "use", "image"}
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/svg+xml;base64,"))
    style = re.search(r"<style>(.*?)</style>", written.read_text(encoding="utf-8"), re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    figures = [base64.b64decode((attributes["src"] or "").partition(",")[2]) for attributes in page.all("img")]
    assert figures and all(b"<text" in svg and not re.search(rb"href=.http", svg) for svg in figures)


def test_a_score_of_one_seed_has_the_command_for_more(page: Page):
    assert f"from one seed. {MORE_SEEDS.strip('`')} shows the spread." in page.text


def test_a_name_cannot_break_the_report(written: Path, page: Page):
    assert not page.all("b")
    assert "<b>" not in written.read_text(encoding="utf-8")
    for place in (f"{NASTY} cpu processor", f"{NASTY} among them", f"compute-bound, {NASTY}", f"{NASTY} predicted as"):
        assert place in page.text


def test_the_first_sentences_say_which_device_and_whether_it_was_faster_and_whether_it_repeats(tmp_path: Path):
    other = "the published result has other parameters (train.epochs)"
    without_gpu = alone(make_side(**{"hardware.why_not_cuda": "no driver"}), why=other)
    text = page_of(tmp_path / "cpu.html", without_gpu).text.partition("test score")[0]
    for words in (
        "because PyTorch can use no GPU here: no driver.",
        "Whether a GPU is faster was not measured, because only the CPU was used",
        "dvc exp run -S 'devices=[cpu,cuda]'",
        f"sign: not compared with the published results, because {other}.",
    ):
        assert words in text
    screen = page_of(tmp_path / "both.html", side_by_side()).text.partition("test score")[0]
    assert "Speed of the devices: sign: GPU " in screen and "times as fast as CPU" in screen, screen


def test_the_terms_of_the_page_are_explained_below_its_table(tmp_path: Path):
    text = page_of(tmp_path / "terms.html", alone(make_side(), reference=published())).text
    assert "results of the named machine that come with the project" in text
    assert "the forecast that nothing changes" not in text  # the page has no forecast


def test_a_value_that_was_not_measured_is_absent_with_its_reason(page: Page):
    for measured in ("-0.0200", "212", "1,564", "0.250", "Measured 2026-11-21 06:19 +0000 on desk", "commit aaaaaaa"):
        assert measured in page.text
    unmeasured = {"timing.peak_allocated_mib": None, "timing.missing_reasons": {"peak_allocated_mib": REASON}}
    without = make_side(device="cuda", **unmeasured)
    assert layout.memory(without) == layout.Cell("not measured", (REASON,))


def test_joules_stand_beside_seconds():
    side = make_side(**{"timing.epoch_joules": 12.5, "timing.train_joules": 1234.0})
    cells = layout.cells(side)
    assert cells["epoch"] == layout.Cell("0.250", ("12.5 J",))
    assert cells["training"] == layout.Cell("10.9", ("1,234 J",))


def test_the_verdict_states_the_ratio_with_its_interval():
    assert side_by_side(seeds=3).summaries == [
        "GPU 8.10 times as fast as CPU (95% interval 7.60 to 8.60)",
        "No difference detected in accuracy: GPU -0.0500 (95% interval -0.2361 to +0.1192)",
    ]
    slower = {**SPEED, "speed_up": {"ratio": 0.5, "low": 0.4, "high": 1.25, "num_pairs": 5}}
    [speed, _] = side_by_side(speed=slower).summaries
    assert speed == "No difference in speed detected: 2.00 (95% interval 0.80 to 2.50)"


def test_a_busy_machine_is_named_beside_the_seconds_per_epoch(tmp_path: Path):
    idle, busy = make_side(), make_side(**{"conditions.between.others_share": 0.73})
    assert not idle.row["busy"] and "busy" not in page_of(tmp_path / "idle.html", alone(idle)).text
    first_screen = page_of(tmp_path / "busy.html", alone(busy)).text.partition("Test accuracy")[0]
    assert "0.250busy machineother processes used 73% of the CPU time" in first_screen
    of_terminal = ["\n".join(repro.table_of(layout.summary([side], []), ["sign"])) for side in (idle, busy)]
    assert "busy machine, other processes used 73% of the CPU time" in of_terminal[1] and "busy" not in of_terminal[0]


def test_a_published_run_stands_beside_ones_own(tmp_path: Path):
    text = page_of(tmp_path / "r.html", alone(make_side(), reference=published())).text
    assert text.count(f"{NASTY} elsewhere") == 2 and "0.300 to 0.500" in text
    assert "published 0.9600 (0.9500 to 0.9700 over 3 seeds)" in text


def test_the_same_input_gives_the_same_report_and_four_workloads_take_less_than_a_megabyte(tmp_path: Path):
    comparison = side_by_side(seeds=5)
    table = [{"actual": str(row % 30), "predicted": str(row * row % 30)} for row in range(900)]
    of_sides = [[make_run(num_epochs=300, of=run, confusion=table) for run in side.runs] for side in comparison.sides]
    shown_sides = [Side(name, tuple(runs)) for name, runs in zip(("cpu", "cuda"), of_sides, strict=True)]
    comparison = replace(comparison, sides=tuple(shown_sides))
    for name in ("first", "second"):
        report.write_report(tmp_path / name, [comparison])
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert (tmp_path / "first").stat().st_size < 250_000


@pytest.mark.skipif(CHROMIUM is None, reason="no browser")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_telephone_and_a_laptop_show_the_whole_report(tmp_path: Path, width: int):
    """Nothing makes the page wider, folded parts opened, and every figure is shown."""
    busy = {"conditions.between": {"others_share": 0.64, "waiting_threads": 0.89}}
    of_busy = alone(make_side("price", **busy), reference=published())
    report.write_report(tmp_path / "r.html", [side_by_side(seeds=5), of_busy])
    content = re.sub(r"<meta http-equiv[^>]*>", "", (tmp_path / "r.html").read_text(encoding="utf-8"))
    frame = (
        f'<iframe width="{width}" height="844" srcdoc="{html.escape(content.replace("<details", "<details open"))}">'
    )
    script = """<script>onload = () => {
      const page = document.querySelector("iframe").contentDocument;
      const empty = [...page.images].filter((image) => !image.naturalWidth || image.clientWidth < 200);
      const whole = page.documentElement, wider = whole.scrollWidth - whole.clientWidth;
      document.title = `${wider} too wide, ${page.images.length} images, ${empty.length} not shown`;
    }</script>"""
    (tmp_path / "frame.html").write_text(f"<html>{frame}</iframe>{script}</html>", encoding="utf-8")
    quiet = ("--disable-gpu", "--disable-background-networking", "--no-first-run")
    options = ("--headless", "--no-sandbox", *quiet, "--virtual-time-budget=2000", "--dump-dom")
    command = [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}/browser", f"file://{tmp_path}/frame.html"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert re.search("<title>0 too wide, [1-9][0-9]* images, 0 not shown</title>", result.stdout), result.stdout[-2000:]

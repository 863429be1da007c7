"""Damages every file that Tandem reads back, and reads it: `python tests/fuzz.py SEED SECONDS`, in a trained project.

Each reader must give a value or one sentence: ValueError or OSError, as tandem/stage prints them. Prints the number
of damaged files and the sentences; exit status 1 where a reader did something else, with how to have it again.
"""

import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from flows import dvc_run, repro, ui, verify
from stages import compare
from tandem import code_dependencies, files
from tandem.comparing import published
from tandem.devices.names import kind_of
from tandem.params.loading import load_params, load_workload
from tandem.params.own_components import modules_of
from tandem.terminal.messages import one_line
from tandem.tracking import run_dir
from tandem.training import auto, checkpoint
from tandem.training.context import RunContext
from tandem.training.saved_network import load_network

RUNS = files.runs_dir("tiny", "cpu")
TRAINED = RUNS / "train/result/0"
PACKED, PREPARED = files.packed_dir("tiny", "cpu"), files.prepared_dir("tiny")
CPU = kind_of("cpu")()
CHECKPOINT = checkpoint.Checkpoint.of("tiny", "cpu", {"seed": 0})
RUN_DIR = run_dir.RUNS / ("a" * 32)


def open_context() -> None:
    context = RunContext.of("tiny", "cpu", 0)
    assert context.shape.num_outputs and context.data_location(CPU) and context.open_split("train", CPU)
    context.read("test", "targets")


def read_back() -> None:
    """What compare and the report read of a run."""
    if sides := compare.evaluated_sides("tiny", ["cpu"], [0]):
        assert all(sides[0].runs[0].table(name) for name in ("scores", "predictions"))
        compare.comparison_of("tiny", sides, published.read().get("tiny", []))


def checkpoint_state() -> None:
    state, message = CHECKPOINT.load()
    assert state is None and message or state == {"epochs_done": 1}, state


def use_cache() -> None:
    """A cache never fails: it is made anew."""
    before = dict(auto.cached_choices())
    assert all(isinstance(choice, auto.Choice) and choice.sentence() for choice in before.values())


def fingerprints() -> None:
    modules = modules_of("tiny", load_workload("tiny"))
    assert code_dependencies.fingerprint_code("train", modules) == EXPECTED_CODE


def state_of_servers() -> None:
    assert all(isinstance(value, str) for value in ui.running_servers().values())


def published_ones() -> None:
    for workload, entries in published.read().items():
        verify.verdict_of(workload, entries)


def params() -> None:
    load_params.cache_clear()
    load_params()


# file -> what reads it
READERS: dict[Path, Callable[[], object]] = {
    **{PACKED / name: open_context for name in ("plan.json", "train.safetensors")},
    **{PREPARED / name: open_context for name in ("summary.json", "test/targets.npy")},
    files.hardware_file("cpu"): open_context,
    **{
        RUNS / name: read_back
        for name in (
            "train/result/0/train.json", "train/result/0/history.csv", "train/measured/0/timing.json",
            "train/measured/0/timings.csv", "evaluate/result/0/score.json", "evaluate/result/0/scores.csv",
        )
    },
    TRAINED / "model.json": lambda: load_network(TRAINED, "last"),
    TRAINED / "last.safetensors": lambda: load_network(TRAINED, "last"),
    CHECKPOINT.path: checkpoint_state,
    auto.choices_file(): use_cache,
    code_dependencies.CACHE: fingerprints,
    ui.STATE_FILE: state_of_servers,
    files.LAST_ERROR: lambda: dvc_run.last_error("train@x"),
    files.compare_dir() / "compare.json": repro.results,
    files.compare_dir() / "compare.md": repro.results,
    RUN_DIR / "in_mlflow.json": lambda: run_dir.read_publication(RUN_DIR),
    files.ROOT / "docs/published.json": published_ones,
    files.ROOT / "params.yaml": params,
    files.params_file("train", "tiny"): lambda: files.read_json(files.params_file("train", "tiny")),
}  # fmt: skip
# Only an edit by hand gives a value in these another type.
TYPES_KEPT = (
    PACKED / "plan.json", PREPARED / "summary.json", TRAINED / "model.json", files.hardware_file("cpu"),
    files.params_file("train", "tiny"), files.ROOT / "docs/published.json", files.compare_dir() / "compare.json",
)  # fmt: skip


def make_what_is_missing() -> None:
    """The files that a finished training does not leave."""
    CHECKPOINT.save({"epochs_done": 1})
    gains = [[1, 1.0], [2, 1.5]]
    auto.store_choice("0123456789abcdef", auto.Choice("threads", 2, gains, "a test", "2026-01-01T00:00:00+0000"))
    files.write_json(ui.STATE_FILE, {"pid": 1, "prefect": "http://127.0.0.1:1", "mlflow": "http://127.0.0.1:2"})
    files.write_json(files.LAST_ERROR, {"stage": "train", "message": "why", "run": "x", "time": ""})
    files.write_json(RUN_DIR / "in_mlflow.json", {"run_id": "a" * 32, "experiment_id": "1"})
    code_dependencies.CACHE.unlink(missing_ok=True)
    fingerprints()


def damaged(content: bytes, draw: random.Random, keeps_types: bool) -> tuple[str, bytes]:
    """What was done, and the damaged bytes."""
    place = draw.randrange(len(content))
    kind = draw.choice(
        ["flip", "flip", "flip", "cut", "cut", "empty", "zeros", "utf-16", "bom", "other", "type", "key", "twice"]
    )
    if kind == "type" and keeps_types:
        kind = "key"
    if kind == "flip":
        return kind, content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    if kind == "cut":
        return kind, content[:place]
    if kind == "zeros":
        return kind, content[:place] + bytes(len(content) - place)
    if kind in ("utf-16", "bom"):
        return kind, content.decode("latin-1").encode("utf-16" if kind == "utf-16" else "utf-8-sig")
    if kind == "other":
        return kind, draw.choice(
            [b"null", b"[]", b"{}", b"0", b'"text"', b"[" * 5000, b"NaN", b"\xff", b"\x80\x04.", b"a,b\n1"]
        )
    if kind == "twice":
        return kind, content + content
    if kind in ("type", "key"):
        try:
            value = json.loads(content)
        except ValueError:
            return "flip", content[:place] + b"\x00" + content[place + 1 :]
        parent: Any = value
        while isinstance(parent, dict | list) and parent:
            key = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
            if not isinstance(parent[key], dict | list) or not parent[key] or draw.random() < 0.4:
                if kind == "key":
                    del parent[key]
                else:
                    parent[key] = draw.choice([None, -1, "text", [], {}, [1], {"a": 1}, True, 1e308, "../../x"])
                break
            parent = parent[key]
        return kind, json.dumps(value).encode()
    return "empty", b""


def main(seed: int, seconds: float) -> int:
    make_what_is_missing()
    draw, start, num, failures = random.Random(seed), time.monotonic(), 0, 0
    sentences: dict[str, str] = {}
    intact = {path: path.read_bytes() for path in READERS}
    for reader in dict.fromkeys(READERS.values()):  # undamaged, each works
        reader()
    names = list(READERS)
    while time.monotonic() - start < seconds or num < 4 * len(names):
        path = names[num % len(names)]
        kind, content = damaged(intact[path], draw, path in TYPES_KEPT)
        path.write_bytes(content)
        num += 1
        try:
            READERS[path]()
        except (ValueError, OSError) as error:
            if files.relative(path.parent) not in str(error) and path.name not in str(error):
                failures += 1
                print(f"NOT NAMED: {files.relative(path)} ({kind}): {one_line(error)}")
            sentences[path.name] = one_line(error)
        except BaseException:
            failures += 1
            print(f"FAILED: {files.relative(path)} ({kind}): {content[:200]!r}\n{traceback.format_exc(limit=-3)}")
        finally:
            path.write_bytes(intact[path])
        if failures > 40:
            break
    print(f"{num} damaged files of {len(names)}, {failures} failures; seed {seed}")
    for name, sentence in sentences.items():
        print(f"  {name}: {sentence[:200]}")
    return 1 if failures else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    EXPECTED_CODE = code_dependencies.fingerprint_code("train", modules_of("tiny", load_workload("tiny")))
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))

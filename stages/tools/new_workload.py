"""Make a workload of a table: `python -m stages.tools.new_workload NAME TABLE [options]`.

In: a table (CSV, CSV.gz or Parquet) and params.yaml. Out: data/raw/NAME/ (a copy of the table, and a README to complete), and in
params.yaml the block NAME and its name in `workloads`; `dvc repro` does the rest. What the columns are is inferred
(stages/tools/infer_schema.py), said with the reasons, and overridden by options; docs/own-data.md walks through it.

  many sequences, with one label each (classify) or one per row (detect):
    python -m stages.tools.new_workload gesture gesture.csv
    python -m stages.tools.new_workload gesture gesture.csv --sequence clip --step frame --label gesture --features x,y

  one long series (forecast):
    python -m stages.tools.new_workload power power.parquet --time hour --target megawatt --horizon 24 --input-steps 168

Everything is tried before anything is written: the block is parsed, and the table goes through the preparation that preprocess does.
Nothing that is there is ever overwritten, and a failure leaves everything as it was.
"""

import csv
import json
import os
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages import files
from stages.data import Prepared, open_source
from stages.data.tables import SPLIT_COLUMN, find_table, open_csv, present, read_table
from stages.files import relative, replacing, sha256_file, write_text
from stages.params import loading, parsing, schema
from stages.tools.infer_schema import Columns, Guess, guess, shortened

BLOCK = """\
# {headline}
{name}:
  task: {task}
  preprocess: # data/raw/README.md has its keys, and what else they may say
{preprocess}
  preload:
    residency: auto
  train:
    model: {model}
    augment: {{group: 1, mix: 0.0, shift: 0.0, warp: 0.0}} # 0 turns one off (stages/training/augment.py)
    seed: 0
    epochs: {epochs}
    warmup_epochs: {warmup_epochs} # kept out of the timing statistics
    batch_size: {batch_size}
    accumulation: 1
    precision: fp32
    on_out_of_memory: stop # when nothing helps any more; cpu: a training of device auto finishes there
    step: eager # graph: as one CUDA graph; compile: torch.compile
    probe: true # spend a second or two before the first epoch on what bounds it, and what would help
    learning_rate: {learning_rate}
    weight_decay: 0.01
    schedule: one-cycle
    clip_norm: 1.0
    label_smoothing: {label_smoothing}
    threads: 1
    deterministic: true
  evaluate:
    weights: {weights} # best, by validation loss, or last
"""
README = """\
# {name}: what it is, in a few words

{size}.

| | |
|---|---|
| source | to fill in: who made it, and where it can be had |
| licence | to fill in |
| citation | to fill in |
| {table} | sha256 `{sha256}` |

What was done: to fill in. `python -m stages.tools.new_workload` copied the table as it was and took it for this:

| what | which | why |
|---|---|---|
{guesses}
"""


@dataclass(frozen=True)
class Plan:
    """A workload that works, before anything is written."""

    name: str
    table: Path
    block: str  # for params.yaml
    workload: schema.Workload
    summary: dict[str, Any]  # of the preparation that was tried
    message: list[tuple[str, str, str]]  # what was chosen, which, and why


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    try:
        check_free(options.name)
        plan = make_plan(options)
        print("\n".join([f"{plan.table.name} as the workload {plan.name}:", *described(plan)]), flush=True)
        write(plan)
        print("\n".join(["", *what_next(plan)]))
        return 0
    except KeyboardInterrupt:
        print("error: interrupted; nothing is changed", file=sys.stderr)
        return 130
    except OSError as error:
        reason = f"{error.filename}: {(error.strerror or '').lower()}" if error.filename else str(error)
        print(f"error: {reason}; nothing is changed", file=sys.stderr)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        "python -m stages.tools.new_workload",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="of the workload: letters, digits, _ and -")
    parser.add_argument("table", metavar="TABLE", type=Path, help="the file to copy into the project")
    parser.add_argument("--task", choices=("classify", "forecast", "detect"), help="what is to be learned")
    parser.add_argument("--features", metavar="A,B,C", type=lambda text: text.split(","), help="else all other numbers")
    parser.add_argument("--missing", choices=("refuse", "interpolate", "skip"), help="what to do with empty cells")
    parser.add_argument("--model", choices=("gru", "transformer", "conv_gru", "seq2seq"), help="else the usual one")
    parser.add_argument("--epochs", type=int, help="else by the size of the data")
    many = parser.add_argument_group("many sequences")
    many.add_argument("--sequence", metavar="COLUMN", help="which sequence a row belongs to")
    many.add_argument("--step", metavar="COLUMN", help="the row's place in it")
    many.add_argument("--label", metavar="COLUMN", help="the class of the sequence, or the event of the row")
    one = parser.add_argument_group("one series")
    one.add_argument("--time", metavar="COLUMN", help="of a row")
    one.add_argument("--target", metavar="COLUMN", help="what is forecast")
    one.add_argument("--interval", help="between two rows, e.g. 15min; else the most frequent difference")
    one.add_argument("--transform", choices=("log-return", "difference"), help="from levels to changes")
    one.add_argument("--horizon", type=int, metavar="STEPS", help="how far ahead to forecast")
    one.add_argument("--input-steps", type=int, metavar="STEPS", help="how far back the model looks")
    return parser


# Trying it out.


def make_plan(options: Namespace) -> Plan:
    """Guess, prepare the table as preprocess will, choose settings, parse the block. Writes nothing.

    Raises ValueError, in one sentence, for whatever is wrong.
    """
    name, path = options.name, options.table
    asked = {what: value for what, value in vars(options).items() if value is not None}
    found = guess(Columns(read_frame(path), path.name), asked)
    found, summary = tried(name, path, found)
    usual = {"classify": "gru", "detect": "conv_gru", "forecast": "seq2seq"}[found.task]
    model, why = (options.model, "asked for") if options.model else (usual, f"the one for {found.task}")
    settings = train_settings(found.task, model, summary, options.epochs)
    block = BLOCK.format(
        headline=f"{' '.join(path.name.split())}: {size_of(summary)}; settings by the rules of thumb in docs/own-data.md",
        name=name,
        task=found.task,
        preprocess="\n".join(f"    {key}: {flow(value)}" for key, value in found.preprocess.items()),
        **{key: flow(value) for key, value in settings.items()},
    )
    workload = loading.parse_block(name, from_yaml(block)[name], {})
    return Plan(name, path, block, workload, summary, found.but("model", model, why).message)


def read_frame(path: Path) -> pd.DataFrame:
    """The whole table, as the preparation reads it; without what pandas saves of its index, columns that have no name of their own."""
    find_table(path.parent, path.name)
    try:
        if path.suffix == ".parquet":
            header = pyarrow.parquet.read_schema(path).names
        else:
            with open_csv(path) as file:
                header = next(csv.reader(file), [])
    except (pa.ArrowException, csv.Error, OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read as a table: {' '.join(str(error).split())}") from None
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise ValueError(
            f"{path.name} has one column, {header[0]!r}; its cells must be separated by commas, e.g. "
            "pandas.read_csv(path, sep=None, engine='python').to_csv(new_path, index=False)"
        )
    names = [column for column in header if not re.match(r"$|Unnamed: |__index_level_", column)]
    present(path.name, header, names)  # raises where one is there twice
    table = read_table(path, (), (), [column for column in names if column != SPLIT_COLUMN])
    return pa.table(table.columns).to_pandas()


def tried(name: str, path: Path, found: Guess) -> tuple[Guess, dict[str, Any]]:
    """The guess, and the summary of what it comes to. Gaps in a series are skipped, or filled where that would lose most windows."""
    missing, why = found.choices["missing"]
    if why:
        return found, try_out(name, path, found)
    summary, more = None, ""
    with suppress(ValueError):  # if it is not the gaps, the next attempt fails too, and says so
        summary = try_out(name, path, found)
    if summary is None or summary["num_windows_skipped"] > summary["num_sequences"]:
        missing, more = "interpolate", ", too many to skip; the last value stays until the next one"
        summary = try_out(name, path, found.but("missing", missing, more))
    gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete{more}"
    return found.but("missing", missing, gaps), summary


def try_out(name: str, path: Path, found: Guess) -> dict[str, Any]:
    """What preprocess would put into summary.json."""
    section = parsing.parse(schema.Preprocess, found.preprocess, f"{name}.preprocess")
    source = open_source(section.source)
    prepared: Prepared = source.prepare(section, path.parent, per_step=found.task == "detect")
    return prepared.summary


def train_settings(task: str, model: str, summary: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    """What BLOCK leaves open, by rules of thumb from the size of the data alone; docs/own-data.md has them as a table."""
    num, is_forecast = summary["num_per_split"]["train"], task == "forecast"
    batch_size = max(8, min(128, 2 ** int(np.log2(max(num, 8) / 8))))
    if epochs is None:  # 2,000 updates or 20 million time steps, whichever is less
        epochs = max(10, min(100, 2000 * batch_size // num, 20_000_000 // (num * summary["max_steps"])))
    is_large = num >= 1000 or len(summary.get("classes", ())) > 50
    width = 32 if is_forecast else 128 if num >= 10_000 else 96 if is_large else 64
    dropout = 0.2 if is_forecast else 0.1 if num >= 1000 else 0.3
    linear = {"start": 1.0, "end": 0.0, "decay": "linear"}
    of_model: dict[str, dict[str, Any]] = {
        "gru": {"bidirectional": True, "dropout": dropout},
        "transformer": {
            "num_layers": 2,
            "num_heads": 4,
            "feedforward_size": 2 * width,
            "dropout": 0.1,
            "checkpoint_activations": False,
        },
        "conv_gru": {"num_convolutions": 2, "kernel_size": 5, "dropout": dropout},
        "seq2seq": {"dropout": dropout, "cell": "native", "teacher_forcing": linear},
    }
    return {
        "model": {"name": model, "hidden_size": width, "num_layers": 1, **of_model[model]},
        "epochs": epochs,
        "warmup_epochs": int(epochs > 1),
        "batch_size": batch_size,
        "learning_rate": 4e-3 if model in ("gru", "conv_gru") else 1e-3,
        "label_smoothing": 0.1 if task == "classify" else 0.0,
        "weights": "best" if is_forecast else "last",
    }


# params.yaml as text.


def flow(value: Any) -> str:
    """A value as YAML in flow style: JSON without the quotes that are not needed, in further lines where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    text = re.sub(
        r'(?<!\\)"(?!(?:null|true|false)")([a-z_][a-z0-9_.-]*|[1-9][0-9]*[a-z]+)"',
        r"\1",
        text,
        flags=re.IGNORECASE | re.ASCII,
    )
    return re.sub(r"(.{115,}?,) (?! )", r"\1\n      ", text)


def from_yaml(text: str) -> Any:
    return YAML(typ="safe").load(text)


def with_workload(text: str, name: str, block: str) -> str:
    """params.yaml with `name` in `workloads` and its `block` after the others; every other character stays.

    Raises ValueError where the result would not be the old params and the new block.
    """
    before = from_yaml(text)
    after = {**before, "workloads": [*before["workloads"], name], **from_yaml(block)}
    newline = "\r\n" if "\r\n" in text else "\n"
    block = block.replace("\n", newline)
    nodes = {key.value: (key.start_mark.index, value) for key, value in YAML().compose(text).value}
    if list(nodes)[-1] == "presets":  # stays last, with the comment above it
        place = len(re.sub(r"(^#.*\n)*\Z", "", text[: nodes["presets"][0]], flags=re.MULTILINE))
        block += newline
    else:
        place = len(text)
        block = newline * (1 if text.endswith(newline) else 2) + block
    workloads = nodes["workloads"][1]
    end, entry = workloads.value[-1].end_mark.index, f", {name}"
    if not workloads.flow_style:  # a line of its own, behind the last one's comment
        end += len(re.split(r"[\r\n]", text[end:], maxsplit=1)[0])
        entry = f"{newline}{' ' * workloads.start_mark.column}- {name}"
    for index, inserted in sorted([(place, block), (end, entry)], key=lambda insertion: insertion[0], reverse=True):
        text = text[:index] + inserted + text[index:]
    with suppress(YAMLError):
        if from_yaml(text) == after:
            loading.parse_params(after)
            return text
    raise ValueError(
        "params.yaml is laid out in a way that cannot be added to; write `workloads` as a list in brackets on one line and run again"
    )


# What is written.


def check_free(name: str) -> None:
    """Raises ValueError where `name` cannot be used or is used already, and where params.yaml is wrong as it is."""
    parsing.check_name(name, "workload")
    if name in (*loading.TOP_LEVEL, "all") or from_yaml(name) != name:
        raise ValueError(f"{name!r} means something else in params.yaml; choose another name for the workload")
    before = loading.read_yaml(files.ROOT / "params.yaml")
    loading.parse_params(before)
    if name in before:
        raise ValueError(f"params.yaml has a block {name!r} already; choose another name, or change that block by hand")
    if (folder := files.raw_dir(name)).exists():
        raise ValueError(f"{relative(folder)} is there already; choose another name, or move that folder away")


def write(plan: Plan) -> None:
    """The folder first and params.yaml last, each in one step, so that params.yaml never names what is not there."""
    path, folder = files.ROOT / "params.yaml", files.raw_dir(plan.name)
    with TemporaryDirectory(prefix=f".{plan.name}.", dir=folder.parent) as temporary:
        made = Path(temporary) / plan.name
        made.mkdir()
        shutil.copyfile(plan.table, made / plan.table.name)
        write_text(made / "README.md", readme(plan, sha256_file(made / plan.table.name)))
        changed = with_workload(path.read_bytes().decode(), plan.name, plan.block)
        os.rename(made, folder)
        try:
            with replacing(path) as new:
                new.write_bytes(changed.encode())  # as bytes: line endings stay
        except BaseException:
            shutil.rmtree(folder)
            raise


def readme(plan: Plan, sha256: str) -> str:
    guesses = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in plan.message)
    size, table = size_of(plan.summary), plan.table.name
    return README.format(name=plan.name, size=size, table=table, sha256=sha256, guesses=guesses)


# What is said.


def size_of(summary: dict[str, Any]) -> str:
    num, low, high = f"{summary['num_sequences']:,}", summary["min_steps"], summary["max_steps"]
    if "horizon" in summary:
        return f"{num} windows of {high:,} steps of {summary['interval']}, {summary['horizon']:,} ahead"
    lengths = f"{high:,} steps" if low == high else f"{low:,} to {high:,} steps"
    return f"{num} sequences of {lengths}, {len(summary['classes']):,} classes"


def described(plan: Plan) -> list[str]:
    """What was guessed and what came of it, a line each."""
    summary, train = plan.summary, plan.workload.train
    rows = [(what, f"{which}: {why}") for what, which, why in plan.message]
    rows.append(("size", size_of(summary)))
    if "classes" in summary:
        unit = " steps" if plan.workload.task == "detect" else ""
        each = {name: sum(part[str(name)] for part in summary["num_per_class"].values()) for name in summary["classes"]}
        rows.append(("classes", shortened([f"{name} ({num:,}{unit})" for name, num in each.items()])))
    sizes = summary["num_per_split"]
    rows.append(("split", ", ".join(f"{name} {num:,}" for name, num in sizes.items())))
    batches = f"{-(-sizes['train'] // train.batch_size):,} batches of {train.batch_size}"
    rows.append(("training", f"{train.epochs} epochs of {batches}, width {train.model.hidden_size}"))
    return aligned(rows)


def what_next(plan: Plan) -> list[str]:
    device = loading.load_params(files.ROOT / "params.yaml").devices[0]
    results = f"results/runs/{plan.name}/{device}/"
    commands = [
        ("dvc repro", "trains it, and whatever else is not up to date; results/report.html shows everything"),
        (f"dvc repro evaluate@{plan.name}-{device}", f"this one alone; {results} has the results"),
        (f"git add data/raw/{plan.name} params.yaml", "keeps it"),
        ("make ui", "MLflow and Prefect in the browser"),
    ]
    done = f"Written: data/raw/{plan.name}/, whose README.md wants a source and a licence, and the block {plan.name} in params.yaml."
    return [done, *aligned(commands)]


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}  {right}" for left, right in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

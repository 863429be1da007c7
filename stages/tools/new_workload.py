"""Make a workload of a table: `python -m stages.tools.new_workload NAME TABLE [options]`.

In: a table (CSV, CSV.gz or Parquet) and params.yaml. Out: data/raw/NAME/ (a copy of the table, and a README to
complete), and in params.yaml the block NAME and its name in `workloads`; `dvc repro` does the rest. The command infers
what the columns are (stages/tools/infer_schema.py) and prints it with the reasons; options override it.
docs/own-data.md walks through it.

  many sequences, with one label each (classify) or one per row (detect):
    python -m stages.tools.new_workload gesture gesture.csv
    python -m stages.tools.new_workload gesture gesture.csv --sequence clip --step frame --label gesture --features x,y

  one long series (forecast):
    python -m stages.tools.new_workload power power.parquet --time hour --target megawatt --horizon 24 --input-steps 168

Before anything is written, the block is parsed and the table goes through the preparation of preprocess. The command
never overwrites anything, and a failure leaves everything as it was.
"""

import csv
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

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from stages import files
from stages.data import prepare
from stages.data.tables import SPLIT_COLUMN, find_table, is_plain, open_csv, present, read_table
from stages.files import relative, replacing, sha256_file, write_text
from stages.params import loading, parsing, schema
from stages.tools.columns import Choices, Columns, shortened
from stages.tools.infer_schema import choice_rows, infer_schema, preprocess_section
from stages.tools.params_block import from_yaml, make_block, with_workload
from stages.tools.recipe import model_for, train_settings, training_sentence

README = """\
# {plan.name}: what it is, in a few words

{size}.

| | |
|---|---|
| source | to fill in: who made it, and where it can be had |
| licence | to fill in |
| citation | to fill in |
| {plan.table.name} | sha256 `{sha256}` |

What was done: to fill in. `python -m stages.tools.new_workload` copied the table as it was and inferred this:

| what | which | why |
|---|---|---|
{choices}
"""


@dataclass(frozen=True)
class Plan:
    """A workload that works, before anything is written."""

    name: str
    table: Path
    block: str  # for params.yaml
    workload: schema.Workload
    summary: dict[str, Any]  # of the dry run
    choices: list[tuple[str, str, str]]  # key, value and reason


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    try:
        check_free(options.name)
        plan = make_plan(options)
        print("\n".join([f"{plan.table.name} as the workload {plan.name}:", *summary_lines(plan)]), flush=True)
        write(plan)
        print("\n".join(["", *next_steps(plan)]))
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
    command, form = "python -m stages.tools.new_workload", RawDescriptionHelpFormatter
    parser = ArgumentParser(command, description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME", help="of the workload: letters, digits, _ and -")
    parser.add_argument("table", metavar="TABLE", type=Path, help="the file to copy into the project")
    parser.add_argument("--task", choices=tuple(schema.MODELS), help="what to learn")
    parser.add_argument("--features", metavar="A,B,C", type=lambda text: text.split(","), help="else all other numbers")
    parser.add_argument("--missing", choices=("refuse", "interpolate", "skip"), help="what to do with empty cells")
    models = tuple(dict.fromkeys(name for names in schema.MODELS.values() for name in names))
    parser.add_argument("--model", choices=models, help="else the usual one")
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


def make_plan(options: Namespace) -> Plan:
    """Infer the schema, prepare the table as preprocess does, choose settings, parse the block. Writes nothing.

    Raises ValueError, in one sentence, for whatever is wrong.
    """
    name, path = options.name, options.table
    given = {key: value for key, value in vars(options).items() if value is not None}
    choices, summary = dry_run(name, path, infer_schema(Columns(read_frame(path), path.name), given))
    task = choices["task"][0]
    choices["model"] = (options.model, "asked for") if options.model else model_for(task, summary)
    model = choices["model"][0]
    headline = f"{' '.join(path.name.split())}: {size_of(summary)}; settings by the rules of thumb in docs/own-data.md"
    settings = train_settings(task, model, summary, options.epochs)
    block = make_block(name, headline, task, preprocess_section(path.name, choices), settings)
    workload = loading.parse_block(name, from_yaml(block)[name], {})
    return Plan(name, path, block, workload, summary, choice_rows(choices))


def read_frame(path: Path) -> pd.DataFrame:
    """The whole table as preprocess reads it, without lists and the like, and without the columns in which pandas saves
    an index that has no name.
    """
    find_table(path.parent, path.name)
    try:
        if path.suffix == ".parquet":
            header = [field.name for field in pyarrow.parquet.read_schema(path) if is_plain(field.type)]
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


def dry_run(name: str, path: Path, choices: Choices) -> tuple[Choices, dict[str, Any]]:
    """The choices and the summary of preparation. Gaps in a series are skipped, or filled if most windows have one."""
    missing, why = choices["missing"]
    if why:
        return choices, summarize(name, path, choices)
    summary, more = None, ""
    with suppress(ValueError):  # an error that is not about gaps comes again in the next attempt
        summary = summarize(name, path, choices)
    if summary is None or summary["num_windows_skipped"] > summary["num_sequences"]:
        missing, more = "interpolate", ", too many to skip; the last value stays until the next one"
        summary = summarize(name, path, {**choices, "missing": (missing, more)})
    gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete{more}"
    return {**choices, "missing": (missing, gaps)}, summary


def summarize(name: str, path: Path, choices: Choices) -> dict[str, Any]:
    """What preprocess would put into summary.json."""
    section = parsing.parse(schema.Preprocess, preprocess_section(path.name, choices), f"{name}.preprocess")
    return prepare(choices["task"][0], section, path.parent).summary


def check_free(name: str) -> None:
    """Raises ValueError if `name` cannot be used or is taken, and if params.yaml is invalid as it is."""
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
    """The folder first and params.yaml last, each in one step: params.yaml never names a folder that is missing."""
    path, folder = files.ROOT / "params.yaml", files.raw_dir(plan.name)
    with TemporaryDirectory(prefix=f".{plan.name}.", dir=folder.parent) as temporary:
        made = Path(temporary) / plan.name
        made.mkdir()
        shutil.copyfile(plan.table, made / plan.table.name)
        size, sha256 = size_of(plan.summary), sha256_file(made / plan.table.name)
        rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in plan.choices)
        write_text(made / "README.md", README.format(plan=plan, size=size, sha256=sha256, choices=rows))
        changed = with_workload(path.read_bytes().decode(), plan.name, plan.block)
        os.rename(made, folder)
        try:
            with replacing(path) as new:
                new.write_bytes(changed.encode())  # as bytes: line endings stay
        except BaseException:
            shutil.rmtree(folder)
            raise


def size_of(summary: dict[str, Any]) -> str:
    num, low, high = f"{summary['num_sequences']:,}", summary["min_steps"], summary["max_steps"]
    if "horizon" in summary:
        return f"{num} windows of {high:,} steps of {summary['interval']}, {summary['horizon']:,} ahead"
    lengths = f"{high:,} steps" if low == high else f"{low:,} to {high:,} steps"
    labels = f"{len(summary['classes']):,} classes" if "classes" in summary else "a number each"
    return f"{num} sequences of {lengths}, {labels}"


def summary_lines(plan: Plan) -> list[str]:
    """The choices and what follows from them, a line each."""
    summary, train = plan.summary, plan.workload.train
    rows = [(key, f"{value}: {why}") for key, value, why in plan.choices]
    rows.append(("size", size_of(summary)))
    if "classes" in summary:
        unit = " steps" if plan.workload.task == "detect" else ""
        each = {name: sum(part[str(name)] for part in summary["num_per_class"].values()) for name in summary["classes"]}
        rows.append(("classes", shortened([f"{name} ({num:,}{unit})" for name, num in each.items()])))
    sizes = summary["num_per_split"]
    rows.append(("split", ", ".join(f"{name} {num:,}" for name, num in sizes.items())))
    rows.append(("training", training_sentence(train, sizes["train"])))
    return aligned(rows)


def next_steps(plan: Plan) -> list[str]:
    params = loading.load_params(files.ROOT / "params.yaml")
    device, seed = params.devices[0], params.seeds[0]
    results = f"results/runs/{plan.name}/{device}/{seed}/"
    commands = [
        ("dvc repro", "trains it, and whatever else is not up to date; results/report.html shows everything"),
        (f"dvc repro evaluate@{plan.name}-{device}-{seed}", f"this one alone; {results} has the results"),
        (f"git add data/raw/{plan.name} params.yaml", "keeps it"),
        ("make ui", "MLflow and Prefect in the browser"),
    ]
    folder = f"data/raw/{plan.name}/, whose README.md wants a source and a licence"
    return [f"Written: {folder}, and the block {plan.name} in params.yaml.", *aligned(commands)]


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}  {right}" for left, right in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

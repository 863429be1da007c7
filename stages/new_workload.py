"""Make a workload of a table: `python -m stages.new_workload NAME TABLE [options]`.

In: a table (CSV, CSV.gz or Parquet) and params.yaml. Out: data/raw/NAME/ (a copy of the table, and a README to complete), and in
params.yaml the block NAME and its name in `workloads`. What the columns are is guessed, said, and overridden by options
(docs/own-data.md).

Everything is tried before anything is written: the block is parsed, and the table goes through the preparation that preprocess does.
Nothing that is there is ever overwritten, and a failure leaves everything as it was.

Shapes: R rows of the table, N sequences or windows.
"""

import csv
import json
import os
import re
import shutil
import sys
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet

from stages import params, sequences, series
from stages.params import nearest
from stages.runtime import store
from stages.runtime.store import relative, replacing, sha256_file, write_text
from stages.tables import ENDINGS, SPLIT_COLUMN, open_csv, present, ragged_line, read_table

HELP = f"""\
Reads TABLE ({", ".join(ENDINGS)}), guesses what its columns are, says what it guessed and why, tries everything out, and then
writes data/raw/NAME/ and a block NAME in params.yaml. `dvc repro` does the rest. No code.

  many sequences, with one label each (classify) or one per row (detect):
    python -m stages.new_workload gesture gesture.csv
    python -m stages.new_workload gesture gesture.csv --sequence clip --step frame --label gesture --features x,y

  one long series (forecast):
    python -m stages.new_workload power power.parquet --time hour --target megawatt --horizon 24 --input-steps 168

docs/own-data.md walks through the first one."""

# The options that only one kind of table has.
OF_SEQUENCES = ("sequence", "step", "label")
OF_SERIES = ("time", "target", "interval", "transform", "horizon", "input_steps")
# A column whose name holds one of these words is tried first, in this order.
SEQUENCE_NAMES = "sequence seq series trial recording session clip track episode case sample id".split()
STEP_NAMES = "step frame tick t time timestamp datetime date index".split()
LABEL_NAMES = "label class category event activity gesture target type kind outcome".split()
TIME_NAMES = "time timestamp datetime date".split()
TARGET_NAMES = "close target value price y".split()
UNIT_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
LIST_WIDTH, CONTINUED = 80, "\n      "  # where a list of columns is broken in params.yaml

BLOCK = """\
# {headline}
{name}:
  task: {task}
  preprocess:
{preprocess}
  preload:
    residency: auto
  train:
    model: {model}
    augment: {{group: 1, mix: 0.0, shift: 0.0, warp: 0.0}} # 0 turns one off (stages/augment.py)
    seed: 0
    epochs: {epochs}
    warmup_epochs: {warmup_epochs} # kept out of the timing statistics
    batch_size: {batch_size}
    accumulation: 1
    precision: fp32
    step: eager # graph: as one CUDA graph; compile: torch.compile
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
SEQUENCES = """\
    source: sequences
    table: {table}
    columns: {columns}
    split: {{train: 0.7, val: 0.15, test: 0.15}} # shares, or whole numbers of sequences; a column `split` in the table wins
    seed: 0
    velocity: {velocity} # append each feature's difference from the step before
    missing: {missing} # an empty cell of a feature: refuse, or interpolate"""
SERIES = """\
    source: series
    table: {table}
    columns: {columns}
    interval: {interval}
    transform: {transform} # of target and features, from step to step: log-return, or difference
    missing: {missing} # windows that touch a missing row: skip, refuse, or interpolate (the last value stays)
    input_steps: {input_steps}
    horizon: {horizon}
    stride: 1
    split: {{train: 0.7, val: 0.15, test: 0.15}} # shares of the time, in this order"""

README = """\
# {name}: what it is, in a few words

{size}.

| | |
|---|---|
| source | to fill in: who made it, and where it can be had |
| licence | to fill in |
| citation | to fill in |
| {table} | sha256 `{sha256}` |

What was done: to fill in. `python -m stages.new_workload` copied the table as it was and took it for this:

| what | which | why |
|---|---|---|
{guesses}
"""

Said = tuple[str, Any, str]  # what was chosen, which, and why


@dataclass(frozen=True)
class Guess:
    """What a table is taken for; `values` go into SEQUENCES or SERIES."""

    task: str
    values: dict[str, Any]
    said: tuple[Said, ...]

    @property
    def preprocess(self) -> str:
        template = SERIES if self.task == "forecast" else SEQUENCES
        return template.format(**{key: flow(value) for key, value in self.values.items()})


@dataclass(frozen=True)
class Plan:
    """A workload that works, before anything is written."""

    name: str
    table: Path
    block: str  # for params.yaml
    workload: params.Workload
    summary: dict[str, Any]  # of the preparation that was tried
    said: tuple[Said, ...]


class Columns:
    """A table's columns, and what each holds: number, time, text, flag (true or false), list, or nothing at all (empty)."""

    def __init__(self, frame: pd.DataFrame, name: str):
        self.frame, self.name = frame, name
        self.kinds = {column: kind_of(frame[column]) for column in frame.columns if column != SPLIT_COLUMN}

    def of_kind(self, *kinds: str, but: Sequence[str] = ()) -> list[str]:
        return [column for column, kind in self.kinds.items() if kind in kinds and column not in but]

    def named(self, names: Sequence[str]) -> list[str]:
        """The columns whose name holds one of the words `names`, in the order of these."""
        words = {column: re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column) for column in self.kinds}
        found = [column for name in names for column in words if name in map(str.lower, words[column])]
        return list(dict.fromkeys(found))

    def numbers(self, column: str) -> pd.Series:
        """(R,) numbers, times as nanoseconds; NaN where a cell holds neither."""
        cells = self.frame[column]
        if self.kinds[column] == "time":
            times = pd.to_datetime(cells.astype(str), format="ISO8601", errors="coerce", utc=True)
            return times.astype("int64").where(times.notna())
        return pd.to_numeric(cells, errors="coerce")

    def is_whole(self, column: str) -> bool:
        return self.kinds[column] == "number" and bool((self.numbers(column).dropna() % 1 == 0).all())

    def codes(self, column: str) -> np.ndarray:
        """(R,) the same number for the same cell."""
        return pd.factorize(self.frame[column])[0]

    def num_distinct(self, column: str) -> int:
        return int(self.frame[column].nunique())

    def checked(self, column: str) -> str:
        if column not in self.kinds:
            raise ValueError(f"{self.name} has no column {column!r}{nearest(column, self.kinds)}")
        return column


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
        "python -m stages.new_workload",
        description=HELP,
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


# What a table is taken for.


def make_plan(options: Namespace) -> Plan:
    """Guess, prepare the table as preprocess will, choose settings, parse the block. Writes nothing.

    Raises ValueError, in one sentence, for whatever is wrong.
    """
    name, path = options.name, options.table
    guess, summary = tried(name, path, make_guess(Columns(read_frame(path), path.name), path, options), options)
    for_task = {"classify": "gru", "detect": "conv_gru", "forecast": "seq2seq"}[guess.task]
    model, why = choose(options.model, for_task, f"the one for {guess.task}")
    settings = train_settings(guess.task, model, summary, options.epochs)
    headline = f"{' '.join(path.name.split())}: {size_of(summary)}; settings by the rules of thumb in docs/own-data.md"
    block = BLOCK.format(
        headline=headline,
        name=name,
        task=guess.task,
        preprocess=guess.preprocess,
        **{key: flow(value) for key, value in settings.items()},
    )
    workload = params.parse_block(name, from_yaml(block)[name], {})
    return Plan(name, path, block, workload, summary, (*guess.said, ("model", model, why)))


def tried(name: str, path: Path, guess: Guess, options: Namespace) -> tuple[Guess, dict[str, Any]]:
    """The guess, and the summary of what preprocess would write. A forecast finds out here how to deal with gaps."""
    if guess.task != "forecast" or options.missing:
        return guess, try_out(name, path, guess)
    try:
        summary = try_out(name, path, guess)
        skipped, kept = summary["num_windows_skipped"], summary["num_sequences"]
        gaps = f"{summary['num_missing']:,} of {summary['num_grid_points']:,} points are missing or incomplete"
        if skipped <= kept:
            return replace(guess, said=(*guess.said, ("missing", "skip", f"{gaps}"))), summary
        obstacle = f"{gaps}, and skipping them would lose {skipped:,} of {skipped + kept:,} windows"
    except ValueError:  # which says itself what is wrong if it is not the gaps: the next attempt fails too
        obstacle = "skipping what is missing leaves too little"
    said = ("missing", "interpolate", f"{obstacle}; the last value stays until the next one")
    guess = Guess(guess.task, {**guess.values, "missing": "interpolate"}, (*guess.said, said))
    return guess, try_out(name, path, guess)


def try_out(name: str, path: Path, guess: Guess) -> dict[str, Any]:
    """What preprocess would put into summary.json."""
    section = from_yaml(f"preprocess:\n{guess.preprocess}")["preprocess"]
    preprocess = params.parse(params.Preprocess, section, f"{name}.preprocess")
    if isinstance(preprocess, params.Series):
        return series.summarize(series.prepare(path, preprocess))
    return sequences.summarize(sequences.prepare(path, preprocess, per_step=guess.task == "detect"))


def read_frame(path: Path) -> pd.DataFrame:
    """The whole table as pandas sees it: for guessing alone, the preparation reads it again in its own way.

    What is left of a pandas index, a column that counts rows and has no name, is left out.
    """
    if not path.name.endswith(ENDINGS):
        raise ValueError(f"{path.name} is no table that can be read here; accepted endings: {', '.join(ENDINGS)}")
    if not path.is_file():
        raise ValueError(f"{path} is not there; give the place of a table")
    try:
        if path.suffix == ".parquet":
            frame: pd.DataFrame = pyarrow.parquet.read_table(path).to_pandas(ignore_metadata=True)
            return frame[[column for column in frame.columns if not column.startswith("__index_level_")]]
        with open_csv(path) as file:
            header = next(csv.reader(file), [])
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # more cells than the header has
            frame = pd.read_csv(path, keep_default_na=False, na_values=[""], index_col=False, low_memory=False)
    except (ValueError, OSError, EOFError, csv.Error, pd.errors.ParserWarning) as error:
        why = None if path.suffix == ".parquet" else ragged_line(path)
        raise ValueError(f"{path.name} cannot be read as a table: {why or ' '.join(str(error).split())}") from None
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise ValueError(
            f"{path.name} has one column, {header[0]!r}; its cells must be separated by commas, e.g. "
            "pandas.read_csv(path, sep=None, engine='python').to_csv(new_path, index=False)"
        )
    if frame.empty:
        raise ValueError(f"{path.name} has a header but no rows; at least one sequence per class and split is needed")
    present(path.name, header, [column for column in header if column])  # raises where one is there twice
    return frame[[column for column in frame.columns if not column.startswith("Unnamed: ")]]


def kind_of(cells: pd.Series) -> str:
    there = cells.dropna()
    if there.empty:
        return "empty"
    if not pd.api.types.is_hashable(there.iloc[0]):
        return "list"
    if pd.api.types.is_bool_dtype(there):
        return "flag"
    if pd.api.types.is_datetime64_any_dtype(there):
        return "time"
    if pd.api.types.is_numeric_dtype(there):
        return "number"
    sample = there.iloc[:: max(1, len(there) // 1000)].astype(str)
    if sample.str.match(r"\d{4}-\d\d-\d\d").all():
        return "time"
    # Mostly numbers, and some cells `NA` or `-`: meant as a feature; the preparation will name the cell.
    return "number" if pd.to_numeric(sample, errors="coerce").notna().mean() > 0.5 else "text"


def make_guess(columns: Columns, path: Path, options: Namespace) -> Guess:
    """Many sequences, or one series. Raises ValueError that names the options where the table is neither."""
    of_sequences, of_series = (
        [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
        for names in (OF_SEQUENCES, OF_SERIES)
    )
    as_sequences, as_series = options.task in ("classify", "detect"), options.task == "forecast"
    if (as_sequences or of_sequences) and (as_series or of_series):
        task = [f"--task {options.task}"] if options.task else []
        raise ValueError(
            f"{', '.join([*task, *of_sequences, *of_series])} do not go together: --sequence, --step and --label are for many sequences "
            "(classify, detect), --time and --target for one series (forecast); leave one or the other out"
        )
    if as_series or of_series:
        return guess_series(columns, path, options)
    if as_sequences or of_sequences:
        return guess_sequences(columns, options)
    found, times = find_sequence(columns, options), find_times(columns)
    if times and not (found and found[1] and found[0] in columns.named(SEQUENCE_NAMES)):
        return guess_series(columns, path, options)
    return guess_sequences(columns, options)


def choose(asked: Any, guessed: Any, why: str) -> tuple[Any, str]:
    return (guessed, why) if asked is None else (asked, "asked for")


def find_features(columns: Columns, taken: Sequence[str], options: Namespace) -> tuple[list[str], str]:
    """The columns, and where they come from in words."""
    if options.features is not None:
        return [columns.checked(column) for column in options.features], "asked for"
    features = columns.of_kind("number", but=taken)
    others = [f"{column} ({columns.kinds[column]})" for column in columns.kinds if column not in (*features, *taken)]
    return features, "all other numeric columns" + (f"; left out: {shortened(others)}" if others else "")


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names in a line, the middle of a long list left out."""
    return ", ".join([*names[: most - 1], "...", names[-1]] if len(names) > most else names)


# Many sequences.


def guess_sequences(columns: Columns, options: Namespace) -> Guess:
    found = find_sequence(columns, options)
    if not found:
        raise ValueError(
            f"{columns.name} ({shortened(list(columns.kinds))}) has no column that tells sequences apart, nor one of times that differ; "
            "name them: --sequence and --step for many sequences, --time for one series"
        )
    sequence, step, step_why = found
    if not step:
        raise ValueError(
            f"{columns.name} has no column that orders the rows of a sequence ({sequence!r}); name it with --step, or add one that counts "
            f"them: table['step'] = table.groupby({sequence!r}).cumcount(); if only several columns tell sequences apart, join them to one"
        )
    num, is_named = columns.num_distinct(sequence), sequence in columns.named(SEQUENCE_NAMES)
    sequence_why = f"{num:,} values, {len(columns.frame) / max(num, 1):.1f} rows each on average"
    label, label_why = find_label(columns, sequence, step, options)
    task, task_why = find_task(columns, sequence, label, options.task)
    features, left_out = find_features(columns, (sequence, step, label), options)
    if not features:
        raise ValueError(
            f"{columns.name} has no numeric column besides {sequence!r}, {step!r} and {label!r}; a feature must hold numbers, in digits"
        )
    num_empty = sum(int(columns.numbers(column).isna().sum()) for column in features)
    missing, missing_why = choose(
        options.missing,
        "interpolate" if num_empty else "refuse",
        f"{num_empty:,} of {len(columns.frame) * len(features):,} cells are empty" if num_empty else "no cell is empty",
    )
    values = {
        "table": columns.name,
        "columns": {"sequence": sequence, "step": step, "features": features, "label": label},
        # Of few features, speeds tell much; of many, they double the width. `dx` may be there already.
        "velocity": len(features) <= 8 and not {f"d{name}" for name in features} & set(features),
        "missing": missing,
    }
    said = (
        ("task", task, task_why),
        ("sequence", *choose(options.sequence, sequence, f"{'named so; ' if is_named else ''}{sequence_why}")),
        ("step", step, step_why),
        ("label", label, label_why),
        ("features", shortened(features), f"{len(features)}, {left_out}"),
        ("missing", missing, missing_why),
    )
    return Guess(task, values, said)


def find_sequence(columns: Columns, options: Namespace) -> tuple[str, str | None, str] | None:
    """The column of ids, the one that orders their rows (None: there is none) and why; None where nothing looks like ids."""
    candidates = [columns.checked(options.sequence)] if options.sequence else sequence_candidates(columns)
    for column in candidates:
        step, why = find_step(columns, column, options)
        if step:
            return column, step, why
    return (candidates[0], None, "") if candidates else None


def sequence_candidates(columns: Columns) -> list[str]:
    """Columns that repeat: those with a telling name first, then those whose equal cells stand together, then texts; more ids first."""
    names, ranked = columns.named(SEQUENCE_NAMES), []
    for column in columns.of_kind("text", "number", "time"):
        codes, is_text = columns.codes(column), columns.kinds[column] == "text"
        num = int(codes.max()) + 1
        if not 2 <= num <= len(codes) / 2 or (columns.kinds[column] == "number" and not columns.is_whole(column)):
            continue
        apart = int((codes[1:] != codes[:-1]).sum()) + 1 > num
        if column in names or is_text or not apart:
            # Of two with a name (trial, sample), the ids stand together, and the steps come round again and again.
            ranked.append((column not in names, apart, names.index(column) if column in names else -num, column))
    return [column for *_, column in sorted(ranked)]


def find_step(columns: Columns, sequence: str, options: Namespace) -> tuple[str | None, str]:
    """The column that orders the rows of a sequence, and why: with a telling name, or rising in every sequence."""
    if options.step:
        return columns.checked(options.step), "asked for"
    codes = columns.codes(sequence)
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    names = columns.named(STEP_NAMES)
    others = columns.of_kind("number", "time", but=names)
    others.sort(key=lambda column: not is_place(columns, column))
    for column in (*names, *others):
        if column == sequence or columns.kinds[column] not in ("number", "time"):
            continue
        values = columns.numbers(column).to_numpy()
        if (np.diff(values[order])[same] > 0).all() and not np.isnan(values).any():
            return column, "it rises from row to row in every sequence"
        if column in names and is_place(columns, column) and not columns.frame.duplicated([sequence, column]).any():
            return column, "named so, and never twice the same in a sequence"
    return None, ""


def is_place(columns: Columns, column: str) -> bool:
    return columns.kinds[column] == "time" or columns.is_whole(column)


def find_label(columns: Columns, sequence: str, step: str, options: Namespace) -> tuple[str, str]:
    if options.label:
        return columns.checked(options.label), "asked for"
    texts = columns.of_kind("text", "flag", but=(sequence, step))
    whole = [column for column in columns.of_kind("number", but=(sequence, step)) if columns.is_whole(column)]
    if names := [column for column in columns.named(LABEL_NAMES) if column in (*texts, *whole)]:
        return names[0], "named so"
    groups = columns.frame.groupby(columns.codes(sequence))
    steady = [
        column
        for column in (*texts, *whole)
        if 2 <= columns.num_distinct(column) <= groups.ngroups / 3 and (groups[column].nunique() <= 1).all()
    ]
    for found, why in (
        ([column for column in steady if column in texts], "a text column, the same throughout a sequence"),
        (texts, "a text column"),
        (steady, "a column of few whole numbers, the same throughout a sequence"),
    ):
        if found:
            return found[-1], why + (f"; others: {shortened(found[:-1])} (--label chooses)" if found[1:] else "")
    raise ValueError(
        f"{columns.name} has sequences ({sequence!r}) and no column that could be their label, text or few whole numbers; name it with "
        f"--label, or for a forecast keep the rows of a single {sequence!r} and give --time"
    )


def find_task(columns: Columns, sequence: str, label: str, asked: str | None) -> tuple[str, str]:
    """classify where the label is the same throughout a sequence, detect where it names events in some rows, and why.

    Raises ValueError where the label changes and no cell says that nothing happens.
    """
    cells, none = columns.frame[label], sequences.NO_EVENT
    events = cells.astype("string").fillna("").str.strip()
    changes = events.groupby(columns.codes(sequence)).transform("nunique") > 1
    if events.nunique() < 2:
        raise ValueError(
            f"{columns.name}: {label!r} holds one value only; a label needs two, or name another column with --label"
        )
    if asked == "classify" or (asked is None and not changes.any()):
        return "classify", "asked for" if asked else f"{label!r} is the same throughout every sequence"
    most, share = events.value_counts(normalize=True).index[0], events.value_counts(normalize=True).iloc[0]
    is_blank = events.isin(("", none))
    if (events == none).any() or most == "" or (asked and is_blank.any()):
        why = f"{label!r} names an event in {1 - is_blank.mean():.1%} of the rows, the others are empty or {none!r}"
        return "detect", "asked for" if asked else why
    if asked is None and (is_blank.any() or (changes.mean() < 0.1 and events[~changes].nunique() > 1)):
        return "classify", f"{label!r} is the same throughout nearly every sequence"  # the preparation names the row
    if share > 0.5:
        background = cells[events == most].iloc[:1].tolist()[0]
        raise ValueError(
            f"{columns.name}: {label!r} is {most!r} in {share:.1%} of the rows, which looks like no event; such cells must be empty or "
            f"{none!r}, so save the table again after table[{label!r}] = table[{label!r}].replace({background!r}, {none!r})"
        )
    raise ValueError(
        f"{columns.name}: {label!r} changes within a sequence and is never empty; classify needs one label per sequence, detect needs "
        f"cells that are empty or {none!r} where nothing happens; correct that, or name another column with --label"
    )


# One series.


def guess_series(columns: Columns, path: Path, options: Namespace) -> Guess:
    times = [columns.checked(options.time)] if options.time else find_times(columns) or columns.of_kind("time")
    if not times:
        raise ValueError(
            f"{columns.name} ({shortened(list(columns.kinds))}) has no column of times; name it with --time: {series.TIME_FORMS}"
        )
    time, num_rows = times[0], len(columns.frame)
    if columns.num_distinct(time) < 0.95 * num_rows:
        raise ValueError(
            f"{columns.name}: {time!r} holds {columns.num_distinct(time):,} different times in {num_rows:,} rows; if there are several "
            "series in the table keep the rows of one, or name another column with --time"
        )
    target, target_why = find_target(columns, time, options)
    if columns.num_distinct(target) < 2:
        raise ValueError(
            f"{columns.name}: {target!r} never changes, so there is nothing to forecast; name another --target"
        )
    features, left_out = find_features(columns, (time, target), options)
    interval, interval_why = (options.interval, "asked for") if options.interval else find_interval(path, time)
    above_zero = all((columns.numbers(column).dropna() > 0).all() for column in (target, *features))
    transform, transform_why = choose(
        options.transform,
        "log-return" if above_zero else "difference",
        f"the columns are {'all' if above_zero else 'not all'} above 0",
    )
    input_steps, input_why = choose(
        options.input_steps, max(8, min(48, num_rows // 50)), "a fiftieth of the rows, 8 to 48"
    )
    horizon, horizon_why = choose(options.horizon, max(1, input_steps // 12), "a twelfth of the input steps")
    values = {
        "table": columns.name,
        "columns": {"time": time, "target": target, "features": features},
        "interval": interval,
        "transform": transform,
        "missing": options.missing or "skip",
        "input_steps": input_steps,
        "horizon": horizon,
    }
    said = (
        ("task", *choose(options.task, "forecast", f"{time!r} makes it one series")),
        ("time", *choose(options.time, time, "its times differ from row to row")),
        ("target", target, target_why),
        ("features", shortened(features) or "none", f"{len(features)} besides the target, {left_out}"),
        ("interval", interval, interval_why),
        ("transform", transform, transform_why),
        ("input_steps", input_steps, input_why),
        ("horizon", horizon, horizon_why),
        *([("missing", options.missing, "asked for")] if options.missing else []),
    )
    return Guess("forecast", values, said)


def find_times(columns: Columns) -> list[str]:
    """Columns of times that (nearly) all differ: dates, then whole numbers with a telling name (seconds since 1970)."""
    names = [column for column in columns.named(TIME_NAMES) if columns.is_whole(column)]
    num_rows = len(columns.frame)
    return [
        column for column in (*columns.of_kind("time"), *names) if columns.num_distinct(column) >= 0.95 * num_rows > 0
    ]


def find_target(columns: Columns, time: str, options: Namespace) -> tuple[str, str]:
    if options.target:
        return columns.checked(options.target), "asked for"
    numeric = columns.of_kind("number", but=(time,))
    if not numeric:
        raise ValueError(
            f"{columns.name} has no numeric column besides {time!r}; a target must hold numbers, in digits"
        )
    if names := [column for column in numeric if column in columns.named(TARGET_NAMES)]:
        return names[-1], "named so (--target chooses)"
    first = f"the first of {len(numeric)} numeric columns (--target chooses)"
    return numeric[0], first if numeric[1:] else "the only numeric column"


def find_interval(path: Path, time: str) -> tuple[str, str]:
    """The most frequent difference of two times that follow each other, and why."""
    stamps = np.unique(series.read_times(read_table(path, (time,), ()), time)[0])
    apart, often = np.unique(np.diff(stamps), return_counts=True)
    most = int(apart[often.argmax()])
    fitting = often[apart % most == 0].sum() / often.sum()
    seconds, rest = divmod(most, series.SECOND)
    if rest or fitting < 0.9:
        raise ValueError(
            f"{path.name}: the times in {time!r} are most often {pd.Timedelta(most)} apart, and {fitting:.0%} of all differences are "
            "multiples of that; choose the --interval to put them on, from 1s, e.g. 15min, 1h, 7d"
        )
    unit = next(unit for unit, size in UNIT_SECONDS.items() if seconds % size == 0)
    return f"{seconds // UNIT_SECONDS[unit]}{unit}", f"{often.max() / often.sum():.1%} of the times are so far apart"


# Settings by rule of thumb, from the size of the data alone; docs/own-data.md has them as a table.


def train_settings(task: str, model: str, summary: dict[str, Any], epochs: int | None) -> dict[str, Any]:
    """What BLOCK leaves open in `train` and `evaluate`."""
    num, is_forecast = summary["num_per_split"]["train"], task == "forecast"
    batch_size = max(8, min(128, 2 ** int(np.log2(max(num, 8) / 8))))
    if epochs is None:  # 2,000 updates or 20 million time steps, whichever is less
        epochs = max(10, min(100, 2000 * batch_size // num, 20_000_000 // (num * summary["max_steps"])))
    is_large = num >= 1000 or len(summary.get("classes", ())) > 50
    width = 32 if is_forecast else 128 if num >= 10_000 else 96 if is_large else 64
    common = {"name": model, "hidden_size": width, "num_layers": 1}
    dropout = 0.2 if is_forecast else 0.1 if num >= 1000 else 0.3
    models: dict[str, dict[str, Any]] = {
        "gru": {"bidirectional": True, "dropout": dropout},
        "transformer": {"num_layers": 2, "num_heads": 4, "feedforward_size": 2 * width, "dropout": 0.1},
        "conv_gru": {"num_convolutions": 2, "kernel_size": 5, "dropout": dropout},
        "seq2seq": {
            "dropout": dropout,
            "cell": "native",
            "teacher_forcing": {"start": 1.0, "end": 0.0, "decay": "linear"},
        },
    }
    return {
        "model": {**common, **models[model]},
        "epochs": epochs,
        "warmup_epochs": int(epochs > 1),
        "batch_size": batch_size,
        "learning_rate": 4e-3 if model in ("gru", "conv_gru") else 1e-3,
        "label_smoothing": 0.1 if task == "classify" else 0.0,
        "weights": "best" if is_forecast else "last",
    }


# params.yaml as text.


def flow(value: Any) -> str:
    """A value as YAML in flow style; a long list goes on in further lines."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        lines = [""]
        for word in map(flow, value):
            if len(lines[-1]) + len(word) > LIST_WIDTH:
                lines.append("")
            lines[-1] += f", {word}" if lines[-1] else word
        return f"[{f',{CONTINUED}'.join(lines)}]"
    if isinstance(value, str):
        is_plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", value) and from_yaml(value) == value
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def from_yaml(text: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)


def with_workload(text: str, name: str, block: str) -> str:
    """params.yaml with `name` in `workloads` and its `block` after the others; every other character stays.

    Raises ValueError where the result would not be the old params and the new block.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    before = from_yaml(text)
    nodes = {key.value: (key.start_mark.index, value) for key, value in YAML().compose(text).value}
    newline = "\r\n" if "\r\n" in text else "\n"
    block = block.replace("\n", newline)
    if list(nodes)[-1] == "presets":  # stays last, with the comment above it
        place = nodes["presets"][0]
        while (above := text[:place].splitlines(keepends=True)) and above[-1].startswith("#"):
            place -= len(above[-1])
        insertions = [(place, f"{block}{newline}")]
    else:
        insertions = [(len(text), f"{newline if text.endswith(newline) else 2 * newline}{block}")]
    workloads = nodes["workloads"][1]
    last = workloads.value[-1].end_mark.index
    if workloads.flow_style:
        insertions.append((last, f", {name}"))
    else:  # behind the line's comment
        end = min(index for index in (text.find(newline, last), len(text)) if index >= 0)
        insertions.append((end, f"{newline}{' ' * workloads.start_mark.column}- {name}"))
    changed = text
    for place, inserted in sorted(insertions, key=lambda insertion: insertion[0], reverse=True):
        changed = changed[:place] + inserted + changed[place:]

    after = {**before, "workloads": [*before["workloads"], name], name: from_yaml(block)[name]}
    try:
        is_as_meant = from_yaml(changed) == after
    except YAMLError:
        is_as_meant = False
    if not is_as_meant:
        raise ValueError(
            "params.yaml is laid out in a way that cannot be added to; write `workloads` as a list in brackets on one line and run again"
        )
    params.parse_params(after)
    return changed


# What is written.


def check_free(name: str) -> None:
    """Raises ValueError where `name` cannot be used or is used already, and where params.yaml is wrong as it is."""
    params.check_name(name, "workload")
    if name in (*params.TOP_LEVEL, "all") or from_yaml(name) != name:
        raise ValueError(f"{name!r} means something else in params.yaml; choose another name for the workload")
    before = params.read_yaml(store.ROOT / "params.yaml")
    params.parse_params(before)
    if name in before:
        raise ValueError(f"params.yaml has a block {name!r} already; choose another name, or change that block by hand")
    if (folder := store.raw_dir(name)).exists():
        raise ValueError(f"{relative(folder)} is there already; choose another name, or move that folder away")


def write(plan: Plan) -> None:
    """The folder first and params.yaml last, each in one step, so that params.yaml never names what is not there."""
    path, folder = store.ROOT / "params.yaml", store.raw_dir(plan.name)
    temporary = folder.with_name(f".{plan.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        shutil.copyfile(plan.table, temporary / plan.table.name)
        write_text(temporary / "README.md", readme(plan, sha256_file(temporary / plan.table.name)))
        check_free(plan.name)  # again: others may have come first while a large table was tried out
        changed = with_workload(path.read_bytes().decode(), plan.name, plan.block)
        os.rename(temporary, folder)
        try:
            with replacing(path) as new:
                new.write_bytes(changed.encode())  # as bytes: line endings stay
        except BaseException:
            shutil.rmtree(folder)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def readme(plan: Plan, sha256: str) -> str:
    guesses = "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in plan.said)
    return README.format(
        name=plan.name, size=size_of(plan.summary), table=plan.table.name, sha256=sha256, guesses=guesses
    )


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
    rows = [(what, f"{which}: {why}") for what, which, why in plan.said]
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
    device = params.load_params(store.ROOT / "params.yaml").devices[0]
    commands = [
        ("dvc repro", "trains it, and whatever else is not up to date; results/report.html shows everything"),
        (
            f"dvc repro evaluate@{plan.name}-{device}",
            f"this one alone; results/runs/{plan.name}/{device}/ has the results",
        ),
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

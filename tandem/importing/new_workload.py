"""Create a workload from your data.

PATH is a table, or sequences in another shape. The command creates workloads/NAME/ (the table, and a README to
complete) and adds the block NAME to params.yaml and NAME to its `workloads`. `tandem repro NAME` then trains it, or
`--run` at once. The command infers the meaning of the columns and prints it with the reasons; options override it.
docs/own-data.md has a walk-through.

  many sequences, with one label each (classify) or one per row (detect):
    tandem new gesture gesture.csv
    tandem new gesture gesture.csv --sequence clip --step frame --label gesture --features x,y

  recordings with a label in each row, which are cut into windows (classify):
    tandem new walk walk.csv
    tandem new walk walk.csv --sequence subject --label activity --window 128 --stride 64

  one row per sequence; a folder with a file per sequence; arrays; .ts:
    tandem new gesture wide.csv
    tandem new gesture recordings/ --pattern '{label}_{person}_*' --groups person
    tandem new gesture X_train.npy
    tandem new gesture Gesture_TRAIN.ts

  one long series (forecast):
    tandem new power power.parquet --time hour --target megawatt --horizon 24 --input-steps 168

Before it writes anything, the command parses the block and prepares the data as preprocess does. It never overwrites
a file, and a failure leaves everything unchanged.

Exit status: 0 created, 1 nothing is changed, with the reason, 2 the same with a question that an argument answers;
with --run also that of `tandem repro`.
"""

import os
import re
import shlex
import shutil
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tandem import files
from tandem.data.tables import MISSING, is_number
from tandem.files import relative, replacing, sha256_file, write_text
from tandem.importing import shapes, text_tables, trial
from tandem.importing.columns import TIME_OF_DAY, shortened
from tandem.importing.files_in_folder import files_below
from tandem.importing.infer_schema import choice_rows, preprocess_section
from tandem.importing.infer_series import NO_SEASON
from tandem.importing.long_table import Source
from tandem.importing.params_block import from_yaml, make_block, with_workload
from tandem.importing.recipe import FITTED, model_for, train_settings, training_sentence
from tandem.importing.recordings import kind_of_file
from tandem.importing.text_format import find_format
from tandem.params import loading, parsing, schema
from tandem.params.reading import read_yaml
from tandem.terminal.command import CommandError, Result, WrongArgument, aligned, sentence_of
from tandem.terminal.messages import nearest
from tandem.terminal.progress import ProgressLine

NA_HELP = f"cells without a number, besides {', '.join(filter(None, MISSING))}, e.g. --na=-999,missing"
NO_NUMBER = r"must hold (?:finite )?numbers\b.*, found '?(?!-?inf)([^',;()]+?)'?(?: in line \d+| \(.*)?; "
MOST_WORDS = 10  # that --na is offered for at once
MODEL_HELP = (
    f"{', '.join(schema.BUILT_IN)}; {FITTED}: the best of three models without steps (docs/recipes.md); default: a "
    "network, by the task and the size of the data"
)
FEWEST_SCORED = 5  # test windows of a series
HEADLINE_END = "default settings (docs/own-data.md)"
README = """\
# {plan.name}: add a short description

{size}.

| | |
|---|---|
| source | add the author and the address |
| licence | add |
| citation | add |
| {plan.table.name} | sha256 `{sha256}` |

{plan.provenance} The command inferred:

| key | value | reason |
|---|---|---|
{choices}
"""


@dataclass(frozen=True)
class WorkloadPlan:
    """A complete, tested workload that is not yet written."""

    name: str
    source: Source
    table: Path  # copied, or moved if it was converted
    provenance: str  # how the table was made
    block: str  # added to params.yaml
    workload: schema.Workload
    summary: dict[str, Any]  # from the dry run
    choices: list[tuple[str, str, str]]  # key, value and reason


def main(options: Namespace) -> Result:
    try:
        check_free(options.name)
        folder = files.workload_dir(options.name).parent
        with TemporaryDirectory(prefix=f".{options.name}.", dir=folder) as scratch:
            plan = make_plan(options, Path(scratch))
            shown = options.table.name or str(options.table)
            print("\n".join([f"{shown} as the workload {plan.name}:", *summary_lines(plan), ""]), flush=True)
            write(plan, Path(scratch))
    except MemoryError:
        raise CommandError("the data needs more memory than is free; nothing is changed") from None
    except OSError as error:
        raise CommandError(f"{sentence_of(error)}; nothing is changed") from None
    choices = {key: {"value": value, "reason": reason} for key, value, reason in (*plan.source.notes, *plan.choices)}
    document = {"workload": plan.name, "block": from_yaml(plan.block)[plan.name], "choices": choices}
    then = ("repro", plan.name) if options.run else ()
    return Result("\n".join(next_steps(plan, options.run)), {**document, "summary": plan.summary}, then=then)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the workload: a to z, A to Z, digits, _ and -")
    parser.add_argument("table", metavar="PATH", type=Path, help="a table, an array, or a folder of sequences")
    parser.add_argument("--run", action="store_true", help="then train the workload, without the others")
    parser.add_argument("--task", choices=tuple(schema.MODELS), help="what to learn")
    parser.add_argument(
        "--features", metavar="A,B,C", type=lambda text: text.split(","), help="default: all other numeric columns"
    )
    parser.add_argument(
        "--missing", choices=("refuse", "interpolate", "mask", "skip"), help="what to do with empty cells"
    )
    parser.add_argument("--na", metavar="A,B,C", type=lambda text: text.split(","), help=NA_HELP)
    parser.add_argument("--model", help=MODEL_HELP)
    parser.add_argument("--epochs", type=int, help="default: by the size of the data")
    many = parser.add_argument_group("many sequences")
    many.add_argument("--sequence", metavar="COLUMN", help="which sequence a row belongs to")
    many.add_argument("--step", metavar="COLUMN", help="the position of a row in its sequence")
    many.add_argument("--label", metavar="COLUMN", help="the class of the sequence, or the event of the row")
    many.add_argument("--window", metavar="STEPS", type=int, dest="window_length", help="cut recordings into windows")
    many.add_argument("--stride", metavar="STEPS", type=int, help="from the start of a window to the next one's")
    many.add_argument(
        "--categories", metavar="A,B", type=lambda text: text.split(","), help="columns of words that become features"
    )
    many.add_argument("--rate", type=float, help="resample to so many rows for each second, or unit of the step")
    many.add_argument("--keep-rare", action="store_true", default=None, help="classes with 1 or 2 sequences: in train")
    many.add_argument("--groups", metavar="COLUMN", help="each of its values stays in one split; or none")
    shape = parser.add_argument_group("the shape of the data, if the detection is wrong")
    shapes.add_arguments(shape)
    shape.add_argument("--pattern", metavar="'{label}_{person}_*'", help="what the file names of a folder mean")
    shape.add_argument("--labels", metavar="FILE", type=Path, help="a table with a row per file; for arrays an npy")
    shape.add_argument("--alone", action="store_true", default=None, help="do not read the matching file (_TEST, y)")
    one = parser.add_argument_group("one series")
    one.add_argument("--time", metavar="COLUMN", help="the time of a row")
    one.add_argument("--target", metavar="COLUMN", help="what is forecast")
    one.add_argument("--interval", help="between two rows, e.g. 15min or month; default: inferred from the times")
    one.add_argument("--transform", choices=("log-return", "difference"), help="how levels become changes")
    one.add_argument(
        "--season", type=season, metavar="STEPS", help="number of steps after which the series repeats, or none"
    )
    one.add_argument("--horizon", type=int, metavar="STEPS", help="how far ahead to forecast")
    one.add_argument("--input-steps", type=int, metavar="STEPS", help="how far back the model looks")


def season(text: str) -> int | str:
    return text if text == NO_SEASON else int(text)


def make_plan(options: Namespace, scratch: Path) -> WorkloadPlan:
    """Read the data, infer the schema, prepare the data, choose settings, parse the block. Writes only into the folder
    `scratch`.

    Raises ValueError, in one sentence, for every error.
    """
    name, path = options.name, options.table
    if options.model and options.model not in (accepted := (FITTED, *schema.BUILT_IN)):
        raise WrongArgument(f"--model is {options.model!r}{nearest(options.model, accepted)}")
    options.na = ["--"] if options.na == [] else options.na  # argparse drops it from --na=--
    options.na = options.na and [cell.strip() for cell in options.na]  # cells are read without spaces around them
    given_options = {key: value for key, value in vars(options).items() if value is not None}
    try:
        source = shapes.open_path(path, given_options)
        table = trial.make_table(name, source, scratch)
        choices, summary, has_split = trial.infer(name, table, source, given_options)
    except (ValueError, CommandError) as error:
        message = with_way_out(str(error), path, given_options)
        if path.name == "new.csv":  # of an earlier answer, which code for it must not overwrite
            message = re.sub(r"(> |to_csv\('|give )new\.csv", r"\1newer.csv", message)
        if message == str(error):
            raise
        raise CommandError(message, error.status) if isinstance(error, CommandError) else ValueError(message) from None
    task = choices["task"][0]
    requested = "model_selection" if options.model == FITTED else options.model
    choices["model"] = (requested, "as requested") if requested else model_for(task, summary)
    model = choices["model"][0]
    settings = train_settings(task, model, summary, options.epochs)
    section = preprocess_section(table.name, choices)
    if has_split:
        section["split"] = summary["num_per_split"]
    source_names = " and ".join(file.name for file in source.sources[:2])
    origin = "" if table.name == source_names else f" from {source_names}"
    headline = f"{' '.join(table.name.split())}{origin}: {size_of(summary)}; {HEADLINE_END}"
    block = make_block(name, headline, task, section, settings)
    if has_split:
        comment = "the table's own column `split`, which decides"
        block = re.sub(r"^( +split: .*)", rf"\1 # {comment}", block, flags=re.MULTILINE)
    try:
        with parsing.prefixed("params.yaml"):
            workload = loading.parse_workload(name, from_yaml(block)[name])
    except ValueError as error:  # an option's value: those that Tandem chooses are valid
        raise WrongArgument(str(error)) from None
    detected = "; ".join(f"{key} {value}" for key, value, _ in source.notes)
    provenance = f"converted {', '.join(map(str, source.sources))} ({detected})" if source.read else "copied the table"
    provenance = f"`{shlex.join(['tandem', 'new', *options.words])}` {provenance}."
    return WorkloadPlan(name, source, table, provenance, block, workload, summary, choice_rows(choices))


def with_way_out(message: str, path: Path, options: Mapping[str, Any]) -> str:
    """What is said of the data, with the option that reads a cell as missing, and the rest of the code with `table`."""
    if path.is_dir() and (command := re.search("sed ('.*?') .* > new.csv writes them", message)):
        new = "newer" if path.name == "new" or Path("new").exists() else "new"
        copy = f"cp -r {shlex.quote(str(path))} {new} && find {new} -type f -exec sed -i {command[1]} {{}} +"
        return message.replace(command[0], f"{copy} writes all files, into the folder {new},")
    match = re.search(NO_NUMBER, message)
    if match and not re.fullmatch(TIME_OF_DAY, match[1]) and match[1] not in options.get("na", ()):
        words = words_of_numbers(message, match[1], path, options)
        cells = shlex.quote(",".join([*options.get("na", ()), *words]))
        meaning = "they mean" if words[1:] else f"{match[1]} means"
        return f"{message}, or give --na={cells} if {meaning} that there is none"
    if re.search(r"\btable(\[| = |\.to_csv)", message):
        if shapes.kind_of(path) != "a table":
            kinds = Counter(map(kind_of_file, files_below(path) if path.is_dir() else ()))
            is_of_tables = max(("npy", "text", "parquet"), key=kinds.__getitem__) != "npy"
            return message + " (table: each file, as pandas reads it)" * is_of_tables
        read, write = text_tables.pandas_code(path, options)
        after = "" if "to_csv" in message else f"; after it: {write}"
        hint = ", with dayfirst=True if 01/02/2024 is the first of February"
        message = message.replace(hint, "") if "to_datetime" in read else message
        return f"{message} (before it: import pandas; {read}{after})"
    return message


def words_of_numbers(message: str, word: str, path: Path, options: Mapping[str, Any]) -> list[str]:
    """The cells of the column of `word` that are no numbers; only `word` if they are many."""
    column = re.search(r"column '(.*)' must hold", message)
    if not column or shapes.kind_of(path) != "a table" or path.suffix.lower() == ".parquet":
        return [word]
    rows = text_tables.rewritten(text_tables.with_notation(find_format(path, options), options))
    cells = rows[column[1]].unique().to_pylist() if column[1] in rows.column_names else []
    words = list(dict.fromkeys(cell.strip() for cell in cells if not is_number(cell, options.get("na", ()), True)))
    return words if 0 < len(words) <= MOST_WORDS and not any("," in cell for cell in words) else [word]


def check_free(name: str) -> None:
    """Raises WrongArgument if `name` is invalid or taken, and ValueError if params.yaml is already invalid."""
    try:
        parsing.check_name(name)
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    if name in (*schema.Params.model_fields, "all") or from_yaml(name) != name:
        raise WrongArgument(f"{name!r} means something else in params.yaml; choose another name for the workload")
    params = read_yaml(files.ROOT / "params.yaml")
    loading.parse_params(params, files.ROOT / "params.yaml")
    if name in params:
        raise WrongArgument(
            f"params.yaml has a block {name!r} already; choose another name, or change that block by hand"
        )
    if (folder := files.workload_dir(name)).exists():
        raise WrongArgument(
            f"{relative(folder)} is there already, and params.yaml has no block {name!r}; choose another name, or run "
            f"`mv {relative(folder)} {name}.old` and then the same command, which writes both again"
        )


def write(plan: WorkloadPlan, scratch: Path) -> None:
    """Move the folder first and write params.yaml last, each atomically: params.yaml never names a missing folder.

    A lock keeps the block that another process writes at the same time.
    """
    path, folder = files.ROOT / "params.yaml", files.workload_dir(plan.name)
    draft = scratch / "made"
    (draft / "data").mkdir(parents=True)
    with ProgressLine(f"writing {plan.table.name}", 2, "steps") as progress:
        (os.rename if plan.source.read else shutil.copyfile)(plan.table, draft / "data" / plan.table.name)
        progress.at(1)
        sha256 = sha256_file(draft / "data" / plan.table.name)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (*plan.source.notes, *plan.choices)]
    rows = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    write_text(draft / "README.md", README.format(plan=plan, size=size_of(plan.summary), sha256=sha256, choices=rows))
    with files.locked(files.STATE / "params.lock"):
        check_free(plan.name)
        text = with_workload(path.read_bytes().decode(), plan.name, plan.block)
        os.rename(draft, folder)
        try:
            with replacing(path) as new_file:
                new_file.write_bytes(text.encode())  # as bytes: keeps the line endings
        except BaseException:
            shutil.rmtree(folder)
            raise


def size_of(summary: dict[str, Any]) -> str:
    num, low, high = f"{summary['num_sequences']:,}", summary["min_steps"], summary["max_steps"]
    if "horizon" in summary:
        return f"{num} windows of {high:,} steps of {summary['interval']}, {summary['horizon']:,} ahead"
    lengths = f"{high:,} steps" if low == high else f"{low:,} to {high:,} steps"
    labels = f"{len(summary['classes']):,} classes" if "classes" in summary else "a number each"
    return f"{num} {'windows' if 'window_groups' in summary else 'sequences'} of {lengths}, {labels}"


def summary_lines(plan: WorkloadPlan) -> list[str]:
    """The choices and their consequences, one per line."""
    summary, train = plan.summary, plan.workload.train
    rows = [(key, f"{value}: {why}" if why else value) for key, value, why in (*plan.source.notes, *plan.choices)]
    rows.append(("size", size_of(summary)))
    if "classes" in summary:
        unit = " steps" if plan.workload.task_attributes.target == "class per step" else ""
        sums = {name: sum(part[str(name)] for part in summary["num_per_class"].values()) for name in summary["classes"]}
        rows.append(("classes", shortened([f"{name} ({num:,}{unit})" for name, num in sums.items()])))
    sizes = summary["num_per_split"]
    of_groups = summary.get("num_groups", {})
    notes = {name: f" ({of_groups[name]:,} group{'s' * (of_groups[name] != 1)})" if of_groups else "" for name in sizes}
    suffix = ", by the table's own column" if plan.workload.preprocess.split.are_counts else ""
    if num_crossing := summary.get("num_groups_across_splits"):
        suffix += f", with {num_crossing:,} of the groups in more than one split"
    rows.append(("split", ", ".join(f"{name} {num:,}{notes[name]}" for name, num in sizes.items()) + suffix))
    rows += [
        ("offset", f"{value:.15g} is subtracted from {name}: a 32-bit float would lose its changes")
        for name, value in summary.get("offsets", {}).items()
    ]
    rows += [("remark", remark) for remark in summary.get("remarks", ())]
    if summary.get("horizon", 1) > 1 and sizes["test"] < FEWEST_SCORED:
        rows.append(("remark", "test has so few windows that a score says little; a shorter --horizon makes more"))
    rows.append(("training", training_sentence(train, sizes["train"])))
    return aligned(rows)


def next_steps(plan: WorkloadPlan, is_run: bool) -> list[str]:
    lines = [
        f"Created workloads/{plan.name}/ and the block {plan.name} in params.yaml.",
        f"Add the source and the licence of the data to workloads/{plan.name}/README.md.",
        f"`git add workloads/{plan.name} params.yaml` adds the workload to git.",
    ]
    return lines if is_run else [*lines, f"Train this workload only: tandem repro {plan.name}"]

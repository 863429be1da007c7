"""Apply a trained model to new data.

TABLE is a table with the columns of the workload's own table, or data that `tandem new` converts to such a table:
another encoding, separator or compression, a row per sequence, a folder, arrays, .ts. Labels are not needed. The model
is the one that `evaluate` scores, in results/.

    tandem predict sign new.csv
    tandem predict sign@cuda new.csv -o out.csv
    tandem predict hand recordings/

Exit status: 0 done, 1 no model or bad data, 2 an option has to say which of two readings is right.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from tandem import files
from tandem.data.tables import ENDINGS, read_table
from tandem.importing import shapes, trial
from tandem.params.loading import load_params, load_workload
from tandem.runs.inputs import other_code, other_parameters
from tandem.runs.run import Run, open_folder
from tandem.terminal.command import Result, WrongArgument

if TYPE_CHECKING:
    import pandas

    from tandem.predicting.predictor import Predictor


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="WORKLOAD, or WORKLOAD@DEVICE for the model of one of the devices")
    parser.add_argument("table", metavar="TABLE", type=Path, help="the new table, array or folder")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write CSV to FILE instead of the terminal")
    shapes.add_arguments(parser.add_argument_group("the shape of the data, if the detection is wrong"))


def main(options: Namespace) -> Result:
    folder, weights, run = model_of(options.name)
    with suppress(ValueError, OSError):  # of parameters that are no longer valid
        if differing := other_parameters(run):
            print(f"warning: this model was trained with other parameters: {differing}", file=sys.stderr)
    repro = f"`tandem repro {options.name.partition('@')[0]}`"
    if changed := other_code(run):
        print(f"warning: this model was trained with other code: {', '.join(changed)} changed since, so its "
              f"predictions may be wrong; {repro} trains it again", file=sys.stderr)  # fmt: skip
    if not run.score:
        print(f"warning: this model has no score yet; {repro} evaluates it", file=sys.stderr)
    if not options.table.exists():
        raise WrongArgument(f"there is no table {options.table}")
    from tandem.predicting.predictor import Predictor  # imports torch

    predictor = Predictor(folder, weights)
    shape_options = {key: value for key, value in vars(options).items() if value is not None}
    predictions = predictor.predict(read(predictor, options.table, shape_options))
    for remark in predictor.remarks:
        print(f"warning: {remark}", file=sys.stderr)
    if options.out is None:
        return Result(predictions.to_csv(index=False).rstrip("\n"), {"predictions": predictions.to_dict("records")})
    predictions.to_csv(options.out, index=False)
    document = {"file": str(options.out), "num_predictions": len(predictions)}
    return Result(f"{len(predictions):,} predictions in {options.out}", document)


def read(predictor: "Predictor", path: Path, shape_options: Mapping[str, Any]) -> "pandas.DataFrame":
    """The columns that the model needs. `shape_options`: the options for the shape of the data."""
    from tandem.predicting.predictor import needed_columns, sequence_columns  # imports torch

    texts, inferred, features = needed_columns(predictor.learned)
    options = {"alone": True, "na": predictor.learned.get("na", ()), "num_channels": len(features), **shape_options}
    options |= {"needed": {*inferred, *features}, "times": {*texts, *inferred}}
    if inferred:
        options["step"] = inferred[0]
    try:
        source = shapes.open_path(path, options)
    except ValueError:
        if path.is_dir() or not path.name.lower().endswith(ENDINGS):
            raise
        return predictor.read(path)  # only columns that the model does not need are wrong, or its error has the line
    if not source.read and path.name.lower().endswith(ENDINGS):
        return predictor.read(path)
    for name, value, reason in source.notes:  # how its numbers are read, for example
        print(f"{name}: {value}{f': {reason}' if reason else ''}", file=sys.stderr)
    with TemporaryDirectory() as scratch:
        table = trial.make_table("data", source, Path(scratch))
        try:
            if predictor.is_series or not source.shape_choices:
                return predictor.read(table)
            # The long table has names of its own for the sequence and the step.
            sequence, step = (source.shape_choices[key][0] for key in ("sequence", "step"))
            columns = sequence_columns(predictor.learned)
            if step != columns.step and {"rate", "window"} & {*predictor.learned}:
                raise ValueError(
                    f"{path} has no column {columns.step!r}, by which the training data was cut or resampled; add it"
                )
            of_text = [sequence, *(name for name in texts if name != columns.sequence)]
            has_ids = columns.sequence in {*pa.parquet.read_schema(table).names} - {sequence}
            of_text += [columns.sequence] * has_ids
            cells = pa.table(read_table(table, of_text, features, [step]).columns).to_pandas()
            if has_ids:  # a file may have several sequences
                cells[sequence] = sequences_of_files(cells[sequence], cells.pop(columns.sequence))
            return cells.rename(columns={sequence: columns.sequence, step: columns.step})
        except ValueError as error:
            raise ValueError(trial.about_source(str(error), table, source)) from None


def sequences_of_files(names: "pandas.Series", ids: "pandas.Series") -> "pandas.Series":
    """The `ids` of the rows; with the files' `names` before them if two files have the same id."""
    is_shared = names.groupby(ids, observed=True).nunique().max() > 1
    return names.astype(str) + " " + ids.astype(str) if is_shared else ids


def requested_device(device: str, requested: Sequence[str]) -> str:
    """The device as params.yaml names it: `cpu` may be what `auto` came to. The first one if `device` is empty."""
    if not device or device in requested:
        return device or requested[0]
    kinds = {name: files.hardware_file(name) for name in requested}
    candidates = [name for name, path in kinds.items() if path.exists() and files.read_json(path)["kind"] == device]
    return candidates[0] if candidates else device


def model_of(name: str) -> tuple[Path, str, Run]:
    """The folder of the model's files, the name of its weights, and its run."""
    workload, _, device = name.partition("@")
    params = load_params()
    weights: str = load_workload(workload).evaluate.weights
    device = requested_device(device, params.devices)
    folder = files.seed_dir(workload, device, "train", "result", params.seeds[0])
    if not (folder / "model.json").is_file():
        problem = f"{files.relative(folder)} has no model"
        others = " or ".join(f"{workload}@{requested}" for requested in params.devices if requested != device)
        if device not in params.devices:
            here = f"params.yaml has `devices: [{', '.join(params.devices)}]`"
            raise WrongArgument(f"{problem}; {here}; add {device} there and run `dvc repro`, or name {others}")
        or_name = f", or name another device of params.yaml: {others}" if others else ""
        raise ValueError(f"{problem}; train it with `tandem repro {workload}`{or_name}")
    run = open_folder(folder)
    if run.score:
        weights = run.score["evaluate"]["weights"]  # those that `evaluate` has scored, whatever params.yaml says since
    for file in (f"{weights}.safetensors", "model.json"):
        run.open(file)  # raises ValueError if it is not the recorded one
    return folder, weights, run

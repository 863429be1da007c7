"""Apply a trained model to a new table.

TABLE is CSV or Parquet with the columns of the workload's own table; labels are not needed. The model is the one that
`evaluate` scores, in results/.

    tandem predict sign new.csv
    tandem predict sign@cuda new.csv -o out.csv

Exit status: 0 done, 1 no model or no such table.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from tandem import files
from tandem.command import Result
from tandem.params.loading import load_params, load_workload


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="WORKLOAD, or WORKLOAD@DEVICE for the model of one of the devices")
    parser.add_argument("table", metavar="TABLE", type=Path, help="the new table")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write CSV to FILE instead of the terminal")


def main(options: Namespace) -> Result:
    folder, weights = model_of(options.name)
    if not options.table.is_file():
        raise ValueError(f"there is no table {options.table}")
    from tandem.predictor import Predictor  # imports torch

    predictor = Predictor(folder, weights)
    predictions = predictor.predict(predictor.read(options.table))
    if options.out is None:
        return Result(predictions.to_csv(index=False).rstrip("\n"), {"predictions": predictions.to_dict("records")})
    predictions.to_csv(options.out, index=False)
    about = {"file": str(options.out), "num_predictions": len(predictions)}
    return Result(f"{len(predictions):,} predictions in {options.out}", about)


def requested_device(device: str, requested: Sequence[str]) -> str:
    """The device as params.yaml names it: `cpu` may be what `auto` came to. The first one if `device` is empty."""
    if not device or device in requested:
        return device or requested[0]
    kinds = {name: files.hardware_file(name) for name in requested}
    used = [name for name, path in kinds.items() if path.exists() and files.read_json(path)["kind"] == device]
    return used[0] if used else device


def model_of(name: str) -> tuple[Path, str]:
    """The folder of the model's files, and the name of its weights."""
    workload, _, device = name.partition("@")
    params, weights = load_params(), load_workload(workload).evaluate.weights
    device = requested_device(device, params.devices)
    folder = files.seed_dir(workload, device, "train", "result", params.seeds[0])
    if not (folder / "model.json").is_file():
        if device in params.devices:
            names = " or ".join(f"{workload}@{each}" for each in params.devices)
            fix = f"train it with `dvc repro`, or name another device of params.yaml: {names}"
        else:
            fix = f"params.yaml has `devices: [{', '.join(params.devices)}]`; add {device} there and run `dvc repro`"
        raise ValueError(f"{files.relative(folder)} has no model; {fix}")
    return folder, weights

"""`tandem predict NAME TABLE [-o OUT]`: apply a trained model to a new table.

NAME is a workload, or WORKLOAD@DEVICE for the model of one of several devices. TABLE is CSV or Parquet with the columns
of the workload's own table; labels are not needed. The model is the one that `evaluate` scores, in results/.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tandem import files
from tandem.params.loading import load_params, load_workload
from tandem.params.parsing import nearest


def main(arguments: Sequence[str]) -> int:
    what, _, how = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "tandem predict", description=what, epilog=how, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", help="WORKLOAD or WORKLOAD@DEVICE")
    parser.add_argument("table", metavar="TABLE", type=Path)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write CSV to FILE instead of the terminal")
    options = parser.parse_args(arguments)
    try:
        folder, weights = model_of(options.name)
        if not options.table.is_file():
            raise ValueError(f"there is no table {options.table}")
        from tandem.predictor import Predictor  # imports torch

        predictor = Predictor(folder, weights)
        predictions = predictor.predict(predictor.read(options.table))
        predictions.to_csv(options.out or sys.stdout, index=False)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.out:
        print(f"{len(predictions):,} predictions in {options.out}", file=sys.stderr)
    return 0


def model_of(name: str) -> tuple[Path, str]:
    """The folder of the model's files, and the name of its weights."""
    workload, _, device = name.partition("@")
    params = load_params()
    if workload not in params.blocks:
        raise ValueError(f"workload {workload!r} is not in params.yaml{nearest(workload, params.blocks)}")
    device = device or params.devices[0]
    folder = files.result_dir(workload, device, params.seeds[0]) / "train" / "result"
    if not (folder / "model.json").is_file():
        relative = files.relative(folder)
        raise ValueError(f"{relative} has no model; train it with `dvc repro`, or name a device: {workload}@DEVICE")
    return folder, load_workload(workload).evaluate.weights

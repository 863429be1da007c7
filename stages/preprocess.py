"""Check, split and standardize a workload's raw data: `python -m tandem.stage preprocess WORKLOAD`.

Reads workloads/<workload>/data/ (format: workloads/README.md). Writes data/prepared/<workload>/<split>/*.npy and
summary.json, all deterministic. `preprocess.source` in params.yaml names the module of tandem/data that does the work,
or a function in the workload's directory that returns the data (docs/components.md).
"""

import time

from tandem.data import prepare_data, write_prepared
from tandem.files import prepared_dir, raw_dir, write_json
from tandem.params.loading import load_workload
from tandem.runs.inputs import unchanged


def main(workload: str) -> None:
    start = time.monotonic()
    block = load_workload(workload)
    with unchanged(workload):
        prepared = prepare_data(block.preprocess, raw_dir(workload), block.task_attributes.target)
        summary = write_prepared(prepared_dir(workload), prepared)
    write_json(prepared_dir(workload) / "summary.json", summary)
    print(f"{workload}: {prepared.message}; {time.monotonic() - start:.1f} s")

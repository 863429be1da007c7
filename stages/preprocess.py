"""Check, split and standardize a workload's raw data: `python -m flows.stage preprocess WORKLOAD`.

Reads data/raw/<workload>/ (format: data/raw/README.md) or simulates the data. Writes
data/prepared/<workload>/<split>/*.npy and summary.json, all deterministic. `preprocess.source` in params.yaml names the
module of stages/data that does the work.
"""

import time

from stages.data import prepare, write_prepared
from stages.files import prepared_dir, raw_dir, write_json
from stages.params.loading import load_workload
from stages.records.inputs import unchanged


def main(workload: str) -> None:
    start = time.monotonic()
    block = load_workload(workload)
    with unchanged(workload):
        prepared = prepare(block.task, block.preprocess, raw_dir(workload))
        summary = write_prepared(prepared_dir(workload), prepared)
    write_json(prepared_dir(workload) / "summary.json", summary)
    print(f"{workload}: {prepared.message}; {time.monotonic() - start:.1f} s")

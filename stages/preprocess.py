"""Turn a workload's raw data into arrays: checked, split, standardized.

In: data/raw/<workload>/ (data/raw/README.md is its contract), or a simulation. Out: data/prepared/<workload>/<split>/*.npy and
summary.json, all deterministic. Which source a workload has, `preprocess.source` in params.yaml says: `sequences` and `rally` are in
stages/data/sequences.py, `series` is in stages/data/series.py.
"""

import time
from typing import Any

from stages.data import sequences
from stages.data.tables import find_table
from stages.files import prepared_dir, raw_dir, sha256_file, write_json
from stages.params.loading import load_workload
from stages.params.schema import Rally, Series, Workload


def main(workload: str) -> None:
    start = time.monotonic()
    summary, message = preprocess(workload, load_workload(workload))
    write_json(prepared_dir(workload) / "summary.json", summary)
    print(f"{workload}: {message}; {time.monotonic() - start:.1f} s")


def preprocess(workload: str, block: Workload) -> tuple[dict[str, Any], str]:
    """Write the arrays; return the summary, and what to say of it."""
    params, folder = block.preprocess, prepared_dir(workload)
    if isinstance(params, Rally):
        simulated = sequences.simulate(params)
        summary = {**sequences.summarize(simulated), "sha256": sequences.write_arrays(folder, simulated)}
        return summary, sequences.describe(summary)
    path = find_table(raw_dir(workload), params.table)
    if isinstance(params, Series):
        from stages.data import series

        windows = series.prepare(path, params)
        summary = {**series.summarize(windows), "sha256": series.write_arrays(folder, windows)}
        message = series.describe(summary)
    else:
        prepared = sequences.prepare(path, params, per_step=block.task == "detect")
        summary = {**sequences.summarize(prepared), "sha256": sequences.write_arrays(folder, prepared)}
        message = sequences.describe(summary)
    return {**summary, "table_sha256": sha256_file(path)}, message

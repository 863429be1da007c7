"""What may be said of one workload's runs: their rows of compare.json in, a sentence out.

A speed-up is stated only between runs of the same data and parameters, as an interval. Where they differ, the sentence
says in what.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stages.comparing.statistics import speed_up

# Fields of a row that must agree before two rows' times are compared.
SAME = ("data_sha256", "parameters_sha256", "precision", "torch")


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` are of one workload, one for each kind of device it was measured on."""
    by_kind = {row["device"]: row for row in rows}
    if len(by_kind) < 2:
        message = f"measured on one kind of device ({rows[0]['device']}); nothing to compare it with."
    else:
        message = compare_devices(by_kind["cpu"], by_kind["cuda"])
    return f"{rows[0]['workload']}: {message}"


def compare_devices(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    if reason := why_not_comparable(cpu, gpu):
        return f"no speed-up is stated, because {reason}."
    low, ratio, high = speed_up(cpu["epochs"], gpu["epochs"])
    threads = "1 thread" if cpu["threads"] == 1 else f"{cpu['threads']} threads"
    score = f"{cpu['score_name']} {cpu['score']:.4f} on the CPU ({threads}), {gpu['score']:.4f} on the GPU"
    if low <= 1 <= high:
        return f"no difference in speed can be told ({ratio:.2f} times, 95% interval {low:.2f} to {high:.2f}); {score}."
    faster = "GPU" if ratio > 1 else "CPU"
    low, ratio, high = (low, ratio, high) if ratio > 1 else (1 / high, 1 / ratio, 1 / low)
    return f"an epoch on the {faster} is {ratio:.2f} times as fast (95% interval {low:.2f} to {high:.2f}); {score}."


def why_not_comparable(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """Why the times of the two runs must not be compared; empty where they may."""
    if gpu.get("finished_on", "cuda") != "cuda":
        return "the GPU's memory ran out and its run was finished on the CPU"
    # What is done against it makes the steps slower, from somewhere in the middle of the training on.
    if ran_out := [row["device"] for row in (cpu, gpu) if row.get("out_of_memory")]:
        return f"memory ran out while training on {' and '.join(ran_out)}"
    differing = [
        f"{name.removesuffix('_sha256')} ({str(cpu[name])[:12]} on the CPU, {str(gpu[name])[:12]} on the GPU)"
        for name in SAME
        if cpu[name] != gpu[name]
    ]
    return f"the runs differ in {', '.join(differing)}" if differing else ""

"""Presets: named changes to the blocks of params.yaml."""

from typing import Any


def overrides_of(presets: dict[str, dict[str, dict[str, Any]]], preset: str, workload: str) -> dict[str, Any]:
    """Return the changes of `preset` to the block of `workload`: its values for all workloads, then those
    for this one.
    """
    parts = presets.get(preset, {})
    return {**parts.get("all", {}), **parts.get(workload, {})}


def choose_preset(wanted: str, presets: dict[str, Any], identity: dict[str, Any]) -> str:
    """Return `wanted`; for `auto`, the preset for the memory of the machine's best device, if such a preset exists.

    `identity` is results/hardware/devices/auto.json. small-gpu is meant for GPUs with 6 GB, large-gpu for those with
    over 20 GB.
    """
    if wanted != "auto":
        return wanted
    gib = (identity.get("memory_mib") or 0) / 1024
    fitting = "cpu" if identity["kind"] == "cpu" else "small-gpu" if gib < 8 else "large-gpu" if gib > 20 else "gpu"
    return fitting if fitting in presets else "none"

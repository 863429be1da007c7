"""Presets: named changes to the blocks of params.yaml."""

from typing import Any


def overrides_of(presets: dict[str, dict[str, dict[str, Any]]], preset: str, workload: str) -> dict[str, Any]:
    """What `preset` changes in the block of `workload`: its values for all workloads, then those for this one."""
    parts = presets.get(preset, {})
    return {**parts.get("all", {}), **parts.get(workload, {})}


def choose_preset(wanted: str, presets: dict[str, Any], identity: dict[str, Any]) -> str:
    """`wanted`, or for `auto` the preset that fits the memory of the machine's best device, if there is such a preset.

    `identity` is results/hardware/auto.json. small-gpu is meant for cards of 6 GB, large-gpu for those over 20 GB.
    """
    if wanted != "auto":
        return wanted
    gib = (identity.get("memory_mib") or 0) / 1024
    fitting = "cpu" if identity["kind"] == "cpu" else "small-gpu" if gib < 8 else "large-gpu" if gib > 20 else "gpu"
    return fitting if fitting in presets else "none"

"""Presets: named changes to the blocks of params.yaml."""

from typing import Any

from stages.params.parsing import check_name, nearest, shown


def parse_presets(raw: Any, blocks: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Preset -> `all` or a workload -> dotted name -> value. Checks the names of presets and workloads alone."""
    if not isinstance(raw, dict):
        raise ValueError(f"presets is {shown(raw)}; it must be a mapping of names, `{{}}` for none")
    for preset, parts in raw.items():
        check_name(preset, "preset")
        if preset in ("none", "auto"):
            raise ValueError(f"presets.{preset} has a name that is taken; choose another one")
        for who, values in (parts if isinstance(parts, dict) else {"": parts}).items():
            if who != "all" and who not in blocks:
                raise ValueError(f"presets.{preset} names {who!r}{nearest(str(who), ['all', *blocks])}")
            if not isinstance(values, dict):
                advice = "it must be a mapping such as `train.batch_size: 32`"
                raise ValueError(f"presets.{preset}.{who} is {shown(values)}; {advice}")
    return raw


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

"""params.yaml -> Params, and the block of a workload as it takes effect.

Imports nothing heavy: stages that always run, and flows, read params too.
"""

from functools import cache
from pathlib import Path
from typing import Any

from stages.files import ROOT, preset_file, read_json
from stages.params.checks import check_workload
from stages.params.parsing import check_name, nearest, parse, replaced
from stages.params.presets import overrides_of, parse_presets
from stages.params.schema import Device, Params, Workload

TOP_LEVEL = ("workloads", "devices", "preset", "presets")


def read_yaml(path: Path) -> dict[str, Any]:
    """DVC's own dialect (YAML 1.2, where 1e-3 is a number; PyYAML would read it as text)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.name} is missing in {path.parent}; restore it (git checkout {path.name})"
        ) from None
    except YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise ValueError(
            f"{path.name} holds {type(loaded).__name__}; it must be a mapping of workloads, devices and one block per workload"
        )
    return loaded


def parse_params(raw: dict[str, Any]) -> Params:
    for key, example in {"workloads": "[sign]", "devices": "[auto]", "preset": "none", "presets": "{}"}.items():
        if key not in raw:
            raise ValueError(f"params.yaml: {key} is missing; add e.g. `{key}: {example}`")
    workloads = parse(tuple[str, ...], raw["workloads"], "workloads")
    devices = parse(tuple[Device, ...], raw["devices"], "devices")
    blocks = {key: value for key, value in raw.items() if key not in TOP_LEVEL}
    for name in (*workloads, *blocks):
        check_name(name, "workload")
    for name in workloads:
        if name not in blocks:
            raise ValueError(f"params.yaml: workloads names {name!r}, which has no block{nearest(name, blocks)}")
    presets = parse_presets(raw["presets"], blocks)
    if raw["preset"] not in (accepted := ("none", "auto", *presets)):
        raise ValueError(f"params.yaml: preset is {raw['preset']!r}{nearest(str(raw['preset']), accepted)}")
    parsed = {name: parse_block(name, block, {}) for name, block in blocks.items()}
    for preset in presets:  # a preset that is not in use must not wait with its mistakes until it is
        for name in workloads:
            parse_block(name, blocks[name], overrides_of(presets, preset, name), f"presets.{preset}: ")
    return Params(workloads, devices, raw["preset"], presets, parsed)


def parse_block(name: str, block: Any, overrides: dict[str, Any], what: str = "") -> Workload:
    """The block of one workload with dotted `overrides` put in. Raises ValueError, with `what` in front, for what is wrong in it."""

    def complain(unknown: str) -> str:
        advice = "write a name of its block, such as train.batch_size, or override it for other workloads only"
        return f"{name} has no {unknown!r}; {advice}"

    try:
        changed = replaced(block, overrides, complain)
        parsed: Workload = parse(Workload, changed, name)
        check_workload(name, parsed)
    except ValueError as error:
        raise ValueError(f"params.yaml: {what}{str(error).removeprefix('params.yaml: ')}") from None
    return parsed


@cache
def load_params(path: Path = ROOT / "params.yaml") -> Params:
    return parse_params(read_yaml(path))


def load_workload(name: str) -> Workload:
    """The block of one workload as it takes effect: with the preset that `hardware` chose (results/presets/<name>.json)."""
    params = load_params()
    if name not in params.blocks:
        raise ValueError(f"workload {name!r} is not in params.yaml{nearest(name, params.blocks)}")
    if params.preset == "none":
        return params.blocks[name]
    chosen = read_json(preset_file(name))
    return parse_block(name, read_yaml(ROOT / "params.yaml")[name], chosen["overrides"], f"preset {chosen['preset']}: ")

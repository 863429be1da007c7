"""params.yaml -> Params, and a workload's block as it takes effect, with the preset.

Imports nothing heavy, because flows and a stage that always runs read params too. Every ValueError is one sentence.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from stages.files import ROOT, preset_file, read_json
from stages.params.checks import check_workload
from stages.params.devices import split_device
from stages.params.parsing import check_name, nearest, one_line, parse, prefixed, replaced, shown
from stages.params.presets import overrides_of, parse_presets
from stages.params.schema import Device, Params, Seed, Workload

# The keys that are no workload, each with an example of what to write.
TOP_LEVEL = {"workloads": "[sign]", "devices": "[auto]", "seeds": "[0]", "preset": "none", "presets": "{}"}


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads DVC's dialect (YAML 1.2, where 1e-3 is a number; PyYAML would read it as text)."""
    from ruamel.yaml import YAML

    try:
        loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        advice = f"restore it (git checkout {path.name})"
        raise FileNotFoundError(f"{path.name} is missing in {path.parent}; {advice}") from None
    except OSError:
        raise
    except Exception as error:  # ruamel's own failures on what is no YAML have no base in common
        raise ValueError(yaml_mistake(path.name, error)) from None
    if not isinstance(loaded, dict):
        advice = "it must be a mapping of workloads, devices and one block per workload"
        raise ValueError(f"{path.name} holds {type(loaded).__name__}; {advice}")
    return loaded


def yaml_mistake(name: str, error: Exception) -> str:
    """Where a file stops being YAML and why, in one sentence; the parser's own words quote lines and addresses."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    why = getattr(error, "problem", None) or str(error)
    why = re.sub(r" with value .*", "", one_line(why))  # a key that is there twice, with all that it holds
    at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{name}{at}: not valid YAML: {why}; correct it there or in the line before"


@prefixed("params.yaml")
def parse_params(raw: dict[str, Any]) -> Params:
    for key, example in TOP_LEVEL.items():
        if key not in raw:
            raise ValueError(f"{key} is missing; add e.g. `{key}: {example}`")
    workloads = parse(tuple[str, ...], raw["workloads"], "workloads")
    devices = parse(tuple[Device, ...], raw["devices"], "devices")
    for number, device in enumerate(devices):
        split_device(device, f"devices[{number}]")
    seeds = parse(tuple[Seed, ...], raw["seeds"], "seeds")
    blocks = {key: value for key, value in raw.items() if key not in TOP_LEVEL}
    for name in (*workloads, *blocks):
        check_name(name, "workload")
    for name in workloads:
        if name not in blocks:
            raise ValueError(f"workloads names {name!r}, which has no block{nearest(name, blocks)}")
    presets = parse_presets(raw["presets"], blocks)
    if raw["preset"] not in (accepted := ("none", "auto", *presets)):
        raise ValueError(f"preset is {shown(raw['preset'])}{nearest(raw['preset'], accepted)}")
    parsed = {name: parse_workload(name, block, {}) for name, block in blocks.items()}
    for preset in presets:  # a mistake in a preset shows now, not when the preset is first used
        with prefixed(f"presets.{preset}"):
            for name in blocks:
                parse_workload(name, blocks[name], overrides_of(presets, preset, name))
    return Params(workloads, devices, seeds, raw["preset"], presets, parsed)


def parse_workload(name: str, block: Any, overrides: dict[str, Any]) -> Workload:
    """The block of one workload with the dotted `overrides` put in."""
    advice = "write a name of its block, such as train.batch_size, or override it for other workloads only"
    changed = replaced(block, overrides, lambda unknown: f"{name} has no {unknown!r}; {advice}")
    parsed: Workload = parse(Workload, changed, name)
    check_workload(name, parsed)
    return parsed


parse_block = prefixed("params.yaml")(parse_workload)


@cache
def load_params(path: Path = ROOT / "params.yaml") -> Params:
    return parse_params(read_yaml(path))


def load_workload(name: str) -> Workload:
    """The block of one workload with the preset that `hardware` chose (results/presets/<name>.json)."""
    params = load_params()
    if name not in params.blocks:
        raise ValueError(f"workload {name!r} is not in params.yaml{nearest(name, params.blocks)}")
    if params.preset == "none":
        return params.blocks[name]
    chosen = read_json(preset_file(name))
    with prefixed(f"params.yaml: preset {chosen['preset']}"):
        return parse_workload(name, read_yaml(ROOT / "params.yaml")[name], chosen["overrides"])

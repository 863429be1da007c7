"""Loads params.yaml as `Params`, and a workload's block with the preset applied: named changes to the blocks.

Imports nothing heavy, because flows and a stage that always runs also read params. Every ValueError is one sentence.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tandem.devices.names import is_accelerator
from tandem.files import params_file, read_json
from tandem.params.own_components import params_type, workload_type
from tandem.params.parsing import InvalidParams, literal, parse, prefixed, replaced
from tandem.params.reading import PARAMS, read_yaml
from tandem.params.schema import OPTIONAL, WITH_OWN_LOOP, Params, Workload
from tandem.terminal.command import WrongArgument
from tandem.terminal.messages import nearest

# The sections of a workload's block whose values a stage uses. `train` describes the preprocessing in model.json.
SECTIONS = {
    "preprocess": ("task", "preprocess"),
    "preload": ("preload",),
    "train": ("task", "preprocess", "train"),
    "evaluate": ("evaluate",),
    "speed": ("task", "train"),
}


def parse_params(raw: dict[str, Any], path: Path | None = None) -> Params:
    """Parse `raw`. `path`: the file that contains it; error messages then include the line."""
    try:
        params: Params = parse(params_type(raw), raw)
        for preset in params.presets:  # reports a mistake in a preset now, not at its first use
            try:
                blocks = {name: block_in_force(raw, name, preset) for name in params.blocks}
                parse(params_type(raw | blocks), raw | blocks)
            except ValueError as error:
                raise InvalidParams(f"presets.{preset}: {error}", ["presets", preset]) from None
    except InvalidParams as mistake:
        line = f", line {line_of(path, mistake.keys)}" if path and mistake.keys else ""
        raise ValueError(f"params.yaml{line}: {mistake}") from None
    return params


def line_of(path: Path, keys: Sequence[Any]) -> int:
    """The line of the YAML file `path` in which the value under `keys`, or its key, begins."""
    from ruamel.yaml import YAML

    key_node = node = YAML().compose(path)
    for key in keys:
        if node.id == "mapping":
            parts = {str(name.value): (name, value) for name, value in node.value}
        else:
            parts = {str(index): (value, value) for index, value in enumerate(node.value)}
        if str(key) not in parts:  # it comes from YAML's `<<`
            break
        key_node, node = parts[str(key)]
    return int(key_node.start_mark.line) + 1


def parse_workload(name: str, block: Any) -> Workload:
    parsed: Workload = parse(workload_type(name, block), block, name)
    return parsed


def changed(name: str, block: Any, overrides: dict[str, Any]) -> Any:
    """The block of a workload with the dotted `overrides`."""
    advice = "; write a name of its block, such as train.batch_size, or override it for other workloads only"
    return replaced(block, overrides, OPTIONAL, lambda unknown: f"{name} has no {unknown!r}{advice}")


@cache
def load_params(path: Path = PARAMS) -> Params:
    return parse_params(read_yaml(path), path)


def load_workload(name: str) -> Workload:
    """Return the block of one workload with the preset in force."""
    params = load_params()
    if name not in params.blocks:
        raise WrongArgument(f"workload {name!r} is not in params.yaml{nearest(name, params.blocks)}")
    return with_preset(params, name, preset_in_force(params, name))


def preset_in_force(params: Params, workload: str) -> str:
    """The preset of params.yaml; for `auto`, the one that `hardware` chose for this machine."""
    return params.preset if params.preset != "auto" else str(read_json(params_file("train", workload))["preset"])


def in_force(block: Workload, preset: str) -> dict[str, dict[str, Any]]:
    """Return the content of each stage's `params_file`. The record of a training names the preset."""
    values = {stage: {name: literal(getattr(block, name)) for name in names} for stage, names in SECTIONS.items()}
    return values | {
        "train": {"preset": preset, **values["train"]},
        "baseline": {"task": block.task, "fits": not block.no_fit_reason},
    }


def with_preset(params: Params, name: str, preset: str) -> Workload:
    """Return the block of one workload with the changes of a preset."""
    if not overrides_of(params.presets, preset, name):
        return params.blocks[name]
    with prefixed(f"params.yaml: preset {preset}"):
        return parse_workload(name, block_in_force(read_yaml(PARAMS), name, preset))


def block_in_force(raw: dict[str, Any], workload: str, preset: str) -> Any:
    """The block of `workload` with the changes of `preset`. `raw`: the content of a params.yaml."""
    return changed(workload, raw[workload], preset_changes(raw, workload, preset))


def preset_changes(raw: dict[str, Any], workload: str, preset: str) -> dict[str, Any]:
    return applicable(raw[workload], overrides_of(raw.get("presets") or {}, preset, workload))


def overrides_of(presets: dict[str, dict[str, dict[str, Any]]], preset: str, workload: str) -> dict[str, Any]:
    """The changes of `preset` to the block of `workload`: its values for all workloads, then those for this one."""
    parts = presets.get(preset, {})
    return {**parts.get("all", {}), **parts.get(workload, {})}


def applicable(block: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """A preset's overrides without those that are meant for other blocks: parameters that the block's network or its
    own source does not have, and settings of Tandem's own steps if the block has a loop.
    """
    train = block["train"]
    sections = {"train.model.": train["model"]}
    if ":" in str(block["preprocess"]["source"]):
        sections["preprocess."] = block["preprocess"]
    refused = {f"train.{key}": accepted for key, accepted in WITH_OWN_LOOP.items()} if train.get("loop") else {}

    def is_meant(name: str) -> bool:
        parts = ((name.removeprefix(prefix), params) for prefix, params in sections.items() if name.startswith(prefix))
        return all(key.partition(".")[0] in params for key, params in parts)

    return {name: value for name, value in overrides.items() if is_meant(name) and value in refused.get(name, (value,))}


def choose_preset(requested: str, presets: dict[str, Any], identity: dict[str, Any]) -> str:
    """Return `requested`; for `auto`, the preset for the memory of the machine's best device, if such a preset exists.

    `identity` is results/hardware/devices/auto.json. small-gpu is meant for GPUs with 6 GB, large-gpu for those with
    over 20 GB. A GPU of 8 GB reports 7.8 GiB or less.
    """
    if requested != "auto":
        return requested
    gib = (identity.get("memory_mib") or 0) / 1024
    of_gpu = "small-gpu" if gib < 7 else "large-gpu" if gib > 20 else "gpu"
    fitting = of_gpu if is_accelerator(identity["kind"]) else "cpu"
    return fitting if fitting in presets else "none"

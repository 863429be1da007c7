"""The parameters of the flow `pipeline`: their form in Prefect's UI, and the arguments of DVC that they become. Imports
neither Prefect nor torch.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tandem.devices.hardware import detect_hardware
from tandem.devices.names import SINGLE
from tandem.params.loading import choose_preset, parse_params, preset_changes
from tandem.params.parsing import literal, replaced, value_at
from tandem.params.reading import PARAMS, read_yaml
from tandem.params.schema import Params
from tandem.terminal.messages import abridged, similar


class RunPlan(NamedTuple):
    commands: list[list[str]]  # the arguments of each dvc command
    experiment: str | None  # the DVC experiment that they make; None if they run in the workspace
    overridden: dict[str, tuple[Any, Any]]  # dotted name -> (value of params.yaml, value in this run), if they differ


def make_plan(choices: dict[str, Any], overrides: dict[str, Any], force: bool, name: str) -> RunPlan:
    """The commands for `choices`: workloads, devices, seeds and preset, None for that of params.yaml.

    `name` becomes that of a DVC experiment, if one is needed. Raises ValueError naming the nearest accepted value, or
    for a device that this machine does not have.
    """
    raw = read_yaml(PARAMS)
    params = parse_params(raw, PARAMS)
    items = {key: list(getattr(params, key)) for key in ("workloads", "devices", "seeds")}
    # A value that equals params.yaml's is a form's default, not a choice.
    chosen = {key: list(choice) for key in items if (choice := choices.get(key)) and set(choice) != set(items[key])}
    preset = {"preset": choices["preset"]} if choices.get("preset") not in (None, params.preset) else {}
    if twice := [key for key in chosen | preset if key in overrides]:
        raise ValueError(f"{twice[0]} is given both as a parameter and in overrides; remove one of them")
    flags = ["--force"] if force else []
    values = overrides | preset
    if values or "seeds" in chosen or any(not set(choice) <= set(items[key]) for key, choice in chosen.items()):
        # The params of an experiment define its graph, so they select the stages instead of targets.
        values |= chosen
        complete = with_all_keys(raw, params)
        changed = override(raw, complete, values)
        run_params = parse_params(changed)
        require_devices(run_params.devices)
        in_force = choose_preset(run_params.preset, run_params.presets, detect_hardware("auto"))
        set_by = {f"{name}.{key}" for name in run_params.workloads for key in preset_changes(changed, name, in_force)}
        if without_effect := [key for key in overrides if key in set_by]:
            raise ValueError(f"{without_effect[0]} is given in overrides, but preset {in_force} sets it; remove one")
        overridden = {key: (old, value) for key, value in values.items() if (old := value_at(complete, key)) != value}
        experiment = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "run"
        names = {key: key if value_at(raw, key) is not None else f"++{key}" for key in values}  # ++: adds a key
        sets = [word for key, value in values.items() for word in ("--set-param", f"{names[key]}={hydra(value)}")]
        return RunPlan([["exp", "run", "--temp", "--name", experiment, *flags, *sets]], experiment, overridden)
    require_devices(params.devices)
    if not chosen:
        return RunPlan([["repro", *flags]], None, {})
    workloads = chosen.get("workloads", params.workloads)
    return RunPlan(commands_for(workloads, params, flags, devices=chosen.get("devices")), None, {})


def with_all_keys(raw: dict[str, Any], params: Params) -> dict[str, Any]:
    """params.yaml's content, with the defaults of the keys that its blocks leave out."""
    return raw | {name: literal(block) for name, block in params.blocks.items()}


def commands_for(
    workloads: Iterable[str],
    params: Params,
    options: Sequence[str],
    stages: Sequence[str] = (),
    devices: Iterable[str] | None = None,
) -> list[list[str]]:
    """The arguments of the two DVC commands that run some workloads, and other `stages`. `devices`: if they are not
    those of params.yaml, which `speed` times together.

    DVC's `compare` depends on all workloads. For some of them it runs alone, after their own stages.
    """
    targets = [*stages]
    for workload in workloads:
        targets += [f"evaluate@{workload}-{device}" for device in devices or params.devices]
        if not devices:
            targets.append(f"speed@{workload}")
    return [["repro", *options, *targets], ["repro", *options, "--single-item", "compare"]]


def require_devices(devices: Iterable[str]) -> None:
    """Raises the ValueError of the stage `hardware` if this machine does not have one of `devices`.

    Before that stage, DVC has already removed the outputs of stages that changed.
    """
    for device in devices:
        detect_hardware(device)


def override(raw: dict[str, Any], complete: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of params.yaml's content with `values` replaced. `complete`: the content with all defaults. Raises
    ValueError for an unknown name.
    """
    keys = dotted(complete)

    def unknown(name: str) -> str:
        hint = similar(name, keys) or "; name a key of params.yaml, such as sign.train.epochs"
        return f"overrides names {name!r}, which params.yaml does not have{hint}"

    changed: dict[str, Any] = replaced(raw, values, keys, unknown)
    return changed


def dotted(value: Any, prefix: str = "") -> list[str]:
    """The dotted name of every key at every level."""
    pairs = value.items() if isinstance(value, dict) else ()
    return [name for key, part in pairs for name in (f"{prefix}{key}", *dotted(part, f"{prefix}{key}."))]


def hydra(value: Any) -> str:
    """`value` in the grammar of `--set-param` (https://hydra.cc/docs/advanced/override_grammar/basic/).

    Raises ValueError for a value that DVC would change: it replaces `${oc.env:...}` by the environment.
    """
    if isinstance(value, dict):
        for key in value:
            if not re.fullmatch(r"[\w.-]+", str(key), re.ASCII):
                raise ValueError(f"overrides has the key {abridged(key)}; use a to z, A to Z, digits, _, - and . only")
        return "{" + ",".join(f"{key}:{hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if "${" in value or value == "???" or not value.isprintable():
        advice = "DVC would replace it; write printable text without ${ and other than ???"
        raise ValueError(f"overrides has the value {abridged(value)}; {advice}")
    # Escape a quote and the backslashes directly before it, and nothing else.
    return '"' + re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ("\\" + match[2] if match[2] else ""), value) + '"'


def form_schema(raw: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of the flow's parameters for the content of params.yaml. Raises ValueError if it is invalid.

    Prefect draws the deployment's form from it, in which each choice is a list, and its server rejects parameters that
    do not fit, so a mistyped name fails at once. `Params`, from which it comes, also validates params.yaml.
    """
    params = parse_params(raw)
    keys = ("workloads", "devices", "seeds", "preset")
    properties: dict[str, Any] = {key: Params.model_json_schema()["properties"][key] for key in keys}
    for key in keys:
        default = getattr(params, key)
        properties[key]["default"] = list(default) if isinstance(default, tuple) else default
    properties["workloads"]["items"]["enum"] = list(params.blocks)
    properties["devices"]["items"]["enum"] = list(dict.fromkeys((*SINGLE, *params.devices)))
    properties["preset"]["enum"] = ["none", "auto", *params.presets]
    example = f'{{"{params.workloads[0]}.train.epochs": 5}}'
    complete = with_all_keys(raw, params)
    properties["overrides"] = {
        "title": "Overrides",
        "description": f"Values that replace params.yaml's in this run only, such as {example}. "
        "The run is then a DVC experiment with its name.",
        "type": "object",
        # Below `then`, so that the UI shows one editor instead of a field for each name.
        "if": {},
        "then": {"properties": {name: {} for name in dotted(complete)}, "additionalProperties": False},
    }
    properties["force"] = {
        "title": "Force",
        "description": "Run every stage, even if nothing has changed.",
        "type": "boolean",
        "default": False,
    }
    for position, value in enumerate(properties.values()):
        value["position"] = position
    return {"title": "Parameters", "type": "object", "properties": properties, "required": [], "definitions": {}}

"""Turns the parameters of flows/pipeline.py into arguments of DVC.

Imports no Prefect.
"""

import difflib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tandem import files
from tandem.params.loading import parse_params, read_yaml
from tandem.params.parsing import nearest, one_line, replaced, shown

Names = Sequence[str] | None  # None: those of params.yaml


class RunPlan(NamedTuple):
    commands: list[list[str]]  # the arguments of each dvc command
    experiment: str | None  # the DVC experiment that they make; None if they run in the workspace


def make_plan(
    workloads: Names,
    devices: Names,
    seeds: Sequence[int] | None,
    preset: str | None,
    overrides: dict[str, Any],
    force: bool,
    name: str,
) -> RunPlan:
    """Check all parameters against params.yaml. Raises ValueError naming the nearest accepted value."""
    raw = read_yaml(files.ROOT / "params.yaml")
    params = parse_params(raw, files.ROOT / "params.yaml")
    # A value that equals params.yaml's is a form's default, not a choice.
    chosen = {
        key: list(names)
        for key, names in (("workloads", workloads), ("devices", devices), ("seeds", seeds))
        if names and set(names) != set(getattr(params, key))
    }
    single = {"preset": preset} if preset and preset != params.preset else {}
    for key in chosen | single:
        if key in overrides:
            raise ValueError(f"{key} is given both as a parameter and in overrides; leave one of the two out")
    for workload in workloads or ():
        if workload not in params.blocks:
            raise ValueError(f"workload {workload!r} is not in params.yaml{nearest(workload, params.blocks)}")
    flags = ["--force"] if force else []
    values = overrides | single
    if values or any(not set(names) <= set(getattr(params, key)) for key, names in chosen.items()):
        # The params of an experiment define its graph, so they select the stages instead of targets.
        values |= chosen
        parse_params(override(raw, values))
        experiment = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "run"
        sets = [word for key, value in values.items() for word in ("--set-param", f"{key}={hydra(value)}")]
        return RunPlan([["exp", "run", "--temp", "--name", experiment, *flags, *sets]], experiment)
    if not chosen:
        return RunPlan([["repro", *flags]], None)
    everything = {key: list(getattr(params, key)) for key in ("workloads", "devices", "seeds")}
    targets = [f"evaluate@{'-'.join(map(str, item))}" for item in itertools.product(*(everything | chosen).values())]
    return RunPlan([["repro", *flags, *targets], ["repro", "--single-item", "compare"]], None)


def override(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of params.yaml's content with `values` replaced. Raises ValueError for an unknown name."""

    def complain(name: str) -> str:
        close = difflib.get_close_matches(name, dotted(raw), 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; name a key of params.yaml, such as sign.train.epochs"
        return f"overrides names {name!r}, which params.yaml does not have{hint}"

    changed: dict[str, Any] = replaced(raw, values, complain)
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
                raise ValueError(f"overrides has the key {shown(key)}; use letters, digits, _, - and . only")
        return "{" + ",".join(f"{key}:{hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hydra, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if "${" in value or value == "???" or not value.isprintable():
        advice = "DVC would replace it; write printable text without ${ and other than ???"
        raise ValueError(f"overrides has the value {shown(value)}; {advice}")
    # Escape a quote and the backslashes directly before it, and nothing else.
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" + found[2] if found[2] else ""), value) + '"'


def parse_set(text: str) -> tuple[str, Any]:
    """Parse `sign.train.epochs=5`; the value is YAML, as in params.yaml."""
    from ruamel.yaml import YAML

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-S {text!r} must be KEY=VALUE, such as -S sign.train.epochs=5")
    try:
        return name, YAML(typ="safe").load(value)
    except Exception as error:  # ruamel's exceptions share no base class
        raise ValueError(f"-S {text!r} has a value that is not valid YAML: {one_line(error)}") from None

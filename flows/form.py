"""The form of the pipeline's deployments in Prefect's pages: every choice a list, filled in as params.yaml is now.

Prefect draws a deployment's form from a JSON schema, and its server refuses a run whose parameters do not fit it, so a
mistyped name never waits.
"""

from typing import Any

from flows.plan import dotted
from stages.params.devices import SINGLE
from stages.params.loading import parse_params


def schema(raw: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of the flow `pipeline`, from params.yaml's content. Raises ValueError for a params.yaml that is
    refused.
    """
    params = parse_params(raw)
    example = f'{{"{params.workloads[0]}.train.epochs": 5}}'
    presets = ["none", "auto", *params.presets]
    properties = {
        "workloads": several(list(params.blocks), params.workloads, "What to train and evaluate."),
        "devices": several(
            list(dict.fromkeys((*SINGLE, *params.devices))),
            params.devices,
            "auto: the best one here. cpu and cuda: both, and compared.",
        ),
        "seeds": {
            "description": "A training with each. Three or more give a spread and an interval of the speed-up.",
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 1,
            "uniqueItems": True,
            "default": list(params.seeds),
        },
        "preset": {
            "description": "Values for a kind of machine. none: as params.yaml is. auto: what fits the GPU's memory.",
            "type": "string",
            "enum": presets,
            "default": params.preset,
        },
        "overrides": {
            "description": f"Values that replace params.yaml's in this run only, such as {example}. "
            "The run is then a DVC experiment of its name.",
            "type": "object",
            # Below `then`, so that the page shows one editor and not a field for each name.
            "if": {},
            "then": {"properties": {name: {} for name in dotted(raw)}, "additionalProperties": False},
        },
        "force": {
            "description": "Run every stage, even where nothing has changed.",
            "type": "boolean",
            "default": False,
        },
    }
    for position, (name, value) in enumerate(properties.items()):
        value |= {"title": name.capitalize(), "position": position}
    return {"title": "Parameters", "type": "object", "properties": properties, "required": [], "definitions": {}}


def several(accepted: list[str], now: tuple[str, ...], description: str) -> dict[str, Any]:
    return {
        "description": description,
        "type": "array",
        "items": {"type": "string", "enum": accepted},
        "minItems": 1,
        "uniqueItems": True,
        "default": list(now),
    }

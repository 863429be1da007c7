"""The form of the pipeline's deployment in Prefect's UI: each choice is a list, filled in from params.yaml.

Prefect draws a deployment's form from a JSON schema, and its server rejects parameters that do not fit the schema, so a
mistyped name fails at once. The schema comes from `Params`, which also validates params.yaml.
"""

from typing import Any

from flows.plan import dotted
from tandem.params.devices import SINGLE
from tandem.params.loading import parse_params
from tandem.params.schema import Params


def schema(raw: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of the flow `pipeline` for the content of params.yaml. Raises ValueError if it is invalid."""
    params = parse_params(raw)
    keys = ("workloads", "devices", "seeds", "preset")
    properties: dict[str, Any] = {key: Params.model_json_schema()["properties"][key] for key in keys}
    for key in keys:
        now = getattr(params, key)
        properties[key]["default"] = list(now) if isinstance(now, tuple) else now
    properties["workloads"]["items"]["enum"] = list(params.blocks)
    properties["devices"]["items"]["enum"] = list(dict.fromkeys((*SINGLE, *params.devices)))
    properties["preset"]["enum"] = ["none", "auto", *params.presets]
    example = f'{{"{params.workloads[0]}.train.epochs": 5}}'
    properties["overrides"] = {
        "title": "Overrides",
        "description": f"Values that replace params.yaml's in this run only, such as {example}. "
        "The run is then a DVC experiment of its name.",
        "type": "object",
        # Below `then`, so that the UI shows one editor instead of a field for each name.
        "if": {},
        "then": {"properties": {name: {} for name in dotted(raw)}, "additionalProperties": False},
    }
    properties["force"] = {
        "title": "Force",
        "description": "Run every stage, even where nothing has changed.",
        "type": "boolean",
        "default": False,
    }
    for position, value in enumerate(properties.values()):
        value["position"] = position
    return {"title": "Parameters", "type": "object", "properties": properties, "required": [], "definitions": {}}

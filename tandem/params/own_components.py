"""The components in a workload's directory that its block of params.yaml names, and the type of such a block.

Their keys come from their signatures (tandem/parts.py), so the types are subclasses of those in schema.py, made when
params.yaml is read. No code of a workload is executed.
"""

from collections.abc import Iterator
from dataclasses import MISSING, field, make_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from pydantic import create_model

from tandem.params.parsing import InvalidParams, dotted, value_at
from tandem.params.schema import (
    FITTED_BASELINE,
    FITTED_TRAINER,
    TASKS,
    OwnSequences,
    OwnSeries,
    OwnSource,
    Params,
    Train,
    Workload,
    takes_no_steps,
)
from tandem.params.task_attributes import attributes_of
from tandem.parts import COMPONENT_KINDS, Component, Whole, built_in, find

# Where a block names a component.
REFERENCES = {
    "task": "task",
    "preprocess.source": "source",
    "train.model.name": "model",
    "train.loop": "loop",
    "evaluate.metrics": "metric",  # a list
}
# The keys of a source in a workload's directory, by the first of its task's sources.
OWN_SOURCES: dict[str, Any] = {"sequences": OwnSequences, "series": OwnSeries}


def params_type(raw: Any) -> type[Params]:
    """`Params`, or a subclass if a workload in `raw`, the content of params.yaml, names a component of its own."""
    blocks = raw.items() if isinstance(raw, dict) else ()
    kinds = {str(name): workload_type(str(name), block) for name, block in blocks if isinstance(block, dict)}
    own_types = {name: kind for name, kind in kinds.items() if kind is not Workload}
    return params_with(*own_types.items()) if own_types else Params


@cache
def params_with(*own_types: tuple[str, Any]) -> type[Params]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in own_types}
    return create_model("Params", __base__=Params, **fields)


def workload_type(name: str, block: Any) -> type[Workload]:
    """The type of a workload's block: `Workload`, or a subclass for components in the workload's directory.

    Raises InvalidParams about the name or the signature of a component. `block` may be invalid otherwise.
    """
    components: dict[str, list[Component]] = {}
    fields: list[tuple[str, Any]] = []
    constants: dict[str, Any] = {}
    for kind, value, keys in names_of(block):
        place = [name, *keys]
        try:
            component = find(kind, value, name)
            components.setdefault(kind, []).append(component)
            if kind == "task":
                attributes_of(component)
                fields.append(("task", Literal[component.name]))  # type: ignore[valid-type]
                constants["own_task"] = component
            elif kind == "source":
                task = components["task"][0] if "task" in components else TASKS.get(str(block.get("task")))
                reader = attributes_of(task).sources[0] if task else "sequences"
                fields.append(("preprocess", own_source_type(component, OWN_SOURCES[reader])))
            elif kind == "model":
                fields.append(("train", subclass(Train, ("model", component.schema))))
            elif kind == "metric":
                has_table = value_at(block, "preprocess.source") in COMPONENT_KINDS["source"].tables
                check_metric(component, components["metric"], has_table)
        except ValueError as error:
            raise InvalidParams(f"{dotted('', place)} {error}", place) from None
    return subclass(Workload, *fields, **constants) if fields else Workload


def names_of(block: Any) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Yield (kind, name, keys) of each component that a block names and that is not built in."""
    for place, kind in REFERENCES.items():
        built_ins = (*built_in(kind), *COMPONENT_KINDS[kind].tables)
        value, keys = value_at(block, place), place.split(".")
        for index, name in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(name, str) and name not in built_ins:
                yield kind, name, (*keys, index) if isinstance(value, list) else tuple(keys)


@cache
def own_source_type(component: Component, kind: type[OwnSource]) -> type[OwnSource]:
    """The type of `preprocess` for a source in the workload's directory. Raises ValueError if a parameter of its
    function has the name of a key that has another meaning.
    """
    keys = get_type_hints(kind, include_extras=True)
    parameters: list[Any] = []
    for name, hint, default in component.parameters:
        if name in (*keys, "window", "velocity", "offsets", "usual_step") and name != "seed":
            raise ValueError(
                f"is {component.name!r}; {component.place} has the parameter {name!r}, which is a key of preprocess "
                "with another meaning; rename it"
            )
        if name == "seed" and kind is OwnSequences:
            hint, default = Whole, 0 if default is MISSING else default
        parameters.append((name, hint, field(default=default)))
    own_type: type[OwnSource] = make_dataclass("Preprocess", parameters, bases=(kind,), frozen=True, kw_only=True)
    own_type.component = component
    return own_type


@cache  # pydantic takes milliseconds for each class, and params.yaml is parsed once more for every preset
def subclass(kind: Any, *fields: tuple[str, Any], **constants: Any) -> Any:
    """The dataclass with these fields and class attributes in the place of its own."""
    return make_dataclass(kind.__name__, fields, bases=(kind,), namespace=constants, frozen=True)


def check_metric(metric: Component, metrics: list[Component], has_table: bool) -> None:
    """Raises ValueError if a metric needs a source that is not there, or another one of the workload has its name."""
    if "source" in metric.arguments and has_table:
        raise ValueError(
            f"is {metric.name!r}; {metric.place} has the parameter 'source', and this workload has a table and no "
            "source of its own; remove the parameter"
        )
    if [component.attribute for component in metrics].count(metric.attribute) > 1:
        raise ValueError(f"is {metric.name!r}; two metrics are called {metric.attribute!r}; rename one")


def modules_of(workload: str, block: Workload) -> dict[str, tuple[str, ...]]:
    """The modules of the components that the block of a workload names, by kind, for tandem/code_dependencies.py."""
    reader, component = f"tandem.data.{block.preprocess.reader}", block.preprocess.component
    source = ("tandem.data.own_source", reader, component.module) if component else (reader,)
    metrics = [find("metric", name, workload) for name in block.evaluate.metrics]
    loop = block.train.loop
    requested = {argument for metric in metrics for argument in metric.arguments}
    return {
        "loop": (find("loop", loop, workload).module,) if loop else (),
        "model": (block.train.model.component.module,),
        "baseline": () if block.no_fit_reason else (FITTED_BASELINE,),
        "trainer": (FITTED_TRAINER,) if takes_no_steps(block.train.model) else (),
        "task": (find("task", block.task, workload).module,),
        "source": source,
        "metric": (
            *(metric.module for metric in metrics),
            *((reader,) if "predict" in requested else ()),
            *(source if "source" in requested else ()),
        ),
    }

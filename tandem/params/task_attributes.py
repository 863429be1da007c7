"""What a task's class states in literal attributes, read from its source without importing it.

They validate params.yaml, `tandem new` chooses settings with them, and score.json records those that comparing and
drawing need, so these need neither the class nor its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from pydantic import StrictBool, StrictStr

from tandem.files import ROOT, relative
from tandem.params.parsing import literal, parse
from tandem.parts import Component, Section, built_in, read_component

BASE = "tandem.tasks.Task"
# The methods that a task must have besides those of the base class. Windows have no default for the last two.
REQUIRED: dict[str, tuple[str, ...]] = {"window": ("loss", "score", "evaluate", "tabulate")}
# The attributes that score.json records.
RECORDED = ("paired", "charts", "zero", "baselines")
NEAR = 0.8  # similarity from which a method is taken for a misspelt one (difflib)


@dataclass(frozen=True)
class TaskAttributes(Section):
    """The literal attributes of `tandem.tasks.Task`; the comments there describe them."""

    score_name: StrictStr
    target: Literal["class", "number", "class per step", "window"]
    sources: tuple[StrictStr, ...]
    forbidden_augment: tuple[Literal["mix", "shift", "warp"], ...]
    smooths_labels: StrictBool
    paired: Literal["correct", "events", "errors", "window errors", "scores"]
    charts: tuple[Literal["confusion", "events", "errors_ahead", "last_forecasts", "predicted_numbers"], ...]
    zero: StrictStr
    baselines: dict[StrictStr, StrictStr]
    usual_model: StrictStr
    usual_weights: Literal["best", "last"]
    usual_label_smoothing: float

    @property
    def recorded(self) -> dict[str, Any]:
        """The attributes that score.json records."""
        return {name: literal(getattr(self, name)) for name in RECORDED}


@cache
def attributes_of(component: Component) -> TaskAttributes:
    """The attributes of a task. Raises ValueError if it is not derived from BASE, lacks one, or misspells a method."""
    prefix = f"is {component.name!r}; "
    where = f"{relative(component.path)}: {component.attribute}"
    if BASE not in component.bases:
        raise ValueError(
            f"{prefix}{where} must be a class derived from {BASE} or from a built-in task, such as "
            "tandem.tasks.classify.Task"
        )
    names, constants = [field.name for field in fields(TaskAttributes)], component.constants
    if missing := [name for name in names if name not in constants]:
        raise ValueError(f"{prefix}{where} lacks {missing[0]}; set it to a literal in the class")
    try:
        attributes: TaskAttributes = parse(TaskAttributes, {name: constants[name] for name in names}, where)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None
    if misspelt := misspelt_method(component):
        raise ValueError(f"{prefix}{where} has the method {misspelt} rename it, because no part of Tandem calls it")
    inherited = BASE.rpartition(".")[0]
    required = REQUIRED.get(attributes.target, ("loss", "score"))
    if missing := [name for name in required if component.methods.get(name) in (None, inherited)]:
        raise ValueError(f"{prefix}{where} has no method {missing[0]}; docs/components.md lists them")
    return attributes


def misspelt_method(component: Component) -> str:
    """A public method in the workload's directory that no built-in task has, and the name that it is near to; or "".

    Python would ignore it, and train with the inherited method.
    """
    own_methods = {name for name, module in component.methods.items() if module.startswith("workloads.")}
    base = read_component("task", "", "tandem.tasks", "Task", ROOT / "tandem/tasks/__init__.py")
    task_methods = set(base.methods).union(*(task.methods for task in built_in("task").values()))
    for name in sorted(own_methods - task_methods):
        if not name.startswith("_") and (similar := get_close_matches(name, task_methods, 1, NEAR)):
            return f"{name!r}; did you mean {similar[0]!r}?"
    return ""


def recorded_attributes(task: str, score: Mapping[str, Any] | None) -> dict[str, Any]:
    """The attributes in score.json. A run without a score, or a published one, gets those of its built-in task."""
    if score and "task" in score:
        return dict(score["task"])
    tasks = built_in("task")
    if task in tasks:
        return attributes_of(tasks[task]).recorded
    return {"paired": "", "charts": [], "zero": "", "baselines": {}}

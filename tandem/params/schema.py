"""params.yaml as dataclasses that pydantic validates: every key with its type, limits and usual value, and the valid
combinations.

The types are strict: neither text nor `true` is a number. A key without a default is required. The message about a
missing key suggests its usual value, and `tandem new` writes it. flows/form.py builds Prefect's form from `Params`.
DVC depends on the values in params.yaml, not on this file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    create_model,
    model_validator,
)

from tandem.params.devices import split_device
from tandem.params.intervals import parse_interval
from tandem.params.parsing import MAX_WHOLE, InvalidParams, check_name, dotted, nearest, shown
from tandem.parts import Component, Fraction, Part, Positive, Real, Section, Share, Whole, built_in, find

Entry = TypeVar("Entry")
NO_GROUPS = "none"


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def check_unique(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(entries)) < len(entries):
        raise ValueError(f"names an entry twice: {', '.join(map(str, entries))}")
    return entries


def check_device(name: str) -> str:
    split_device(name, "")
    return name


def usual(value: Any) -> Any:
    """Mark the usual value of a key. It is not a default."""
    return Field(examples=[value])


def usual_values(kind: type) -> dict[str, Any]:
    """Return the usual value of each key of a section that has one."""
    notes = {key: getattr(hint, "__metadata__", ()) for key, hint in get_type_hints(kind, include_extras=True).items()}
    return {key: note.examples[0] for key, found in notes.items() for note in found if getattr(note, "examples", None)}


Unique = Annotated[
    tuple[Entry, ...],
    BeforeValidator(as_tuple),
    AfterValidator(check_unique),
    Field(json_schema_extra={"uniqueItems": True}),
]
Name = Annotated[StrictStr, AfterValidator(check_name)]
Device = Annotated[StrictStr, AfterValidator(check_device)]  # auto, cpu, cuda, or several workers: 2xcpu
Threads = Annotated[int, Field(strict=True, ge=1, le=512)] | Literal["auto"]


@dataclass(frozen=True)
class Columns(Section):
    sequence: StrictStr
    step: StrictStr
    features: Unique[StrictStr]
    label: StrictStr


@dataclass(frozen=True)
class SeriesColumns(Section):
    time: StrictStr
    target: StrictStr  # the forecast column; it is also the first feature
    features: Unique[StrictStr]  # additional columns


@dataclass(frozen=True)
class Split(Section):
    """Shares of the sequences (adding up to 1) or absolute counts."""

    train: Whole | Real
    val: Whole | Real
    test: Whole | Real

    @property
    def sizes(self) -> tuple[float, float, float]:
        return self.train, self.val, self.test

    @property
    def are_counts(self) -> bool:
        return all(isinstance(size, int) for size in self.sizes)


@dataclass(frozen=True)
class SequenceTable(Section):
    """A table of many sequences: one label each (classify), one number each (regress), or one per step (detect)."""

    source: Literal["sequences"]
    table: StrictStr
    columns: Columns
    split: Split
    seed: Annotated[Whole, usual(0)]
    velocity: Annotated[StrictBool, usual(False)]
    missing: Annotated[Literal["refuse", "interpolate"], usual("refuse")]
    # A column such as the person or device. All sequences with one value stay on one side of the split: scikit-learn's
    # `groups`.
    groups: Annotated[StrictStr, usual(NO_GROUPS)]
    na: Unique[StrictStr] = ()  # cells without a number, besides MISSING of tandem/data/tables.py

    @model_validator(mode="after")
    def check(self) -> Self:
        check_table(self.table)
        columns, features = self.columns, self.columns.features
        if not features:
            raise ValueError("columns.features is []; name at least one column of numbers")
        if self.groups != NO_GROUPS and self.groups in features:
            raise ValueError(f"groups is {self.groups!r}, which is among the features; it cannot be both")
        check_columns({key: getattr(columns, key) for key in ("sequence", "step", "label")}, features)
        check_split(self.split)
        return self


@dataclass(frozen=True)
class Series(Section):
    """A table of one long series (tandem/data/series.py), cut into windows."""

    source: Literal["series"]
    table: StrictStr
    columns: SeriesColumns
    interval: StrictStr  # between two steps, e.g. 15min, 1h, 1d, month (tandem/params/intervals.py)
    transform: Literal["log-return", "difference"]
    missing: Annotated[Literal["skip", "interpolate", "refuse"], usual("skip")]
    input_steps: Annotated[int, Field(strict=True, ge=2, le=MAX_WHOLE)]
    horizon: Positive
    stride: Annotated[Positive, usual(1)]
    split: Split
    na: Unique[StrictStr] = ()  # cells without a number, besides MISSING of tandem/data/tables.py
    # Period of the series in steps; None if there is none.
    season: Annotated[int, Field(strict=True, ge=2, le=MAX_WHOLE)] | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        check_table(self.table)
        check_columns({"time": self.columns.time, "target": self.columns.target}, self.columns.features)
        if self.split.are_counts:
            raise ValueError(f"split is {self.split.sizes}; a series is split by shares of its time that add up to 1")
        check_split(self.split)
        parse_interval(self.interval)
        return self


@dataclass(frozen=True)
class Rally(Section):
    """Simulated tennis rallies (tandem/data/rally_simulation.py); there is no table."""

    source: Literal["rally"]
    num_steps: Annotated[int, Field(strict=True, ge=16, le=MAX_WHOLE)]
    noise: Real  # standard deviation of a detected position, pixels
    missed: Annotated[float, Field(strict=True, ge=0, le=0.9)]  # share of the frames in which the ball is not found
    occlusion: Share  # share of the sequences in which the ball is hidden for a while
    split: Split
    seed: Annotated[Whole, usual(0)]

    @model_validator(mode="after")
    def check(self) -> Self:
        if not self.split.are_counts:
            raise ValueError(f"split is {self.split.sizes}; a simulation needs whole numbers of sequences")
        check_split(self.split)
        return self


Preprocess = Annotated[SequenceTable | Series | Rally, Field(discriminator="source")]


def check_table(name: str) -> None:
    """Raises ValueError if the name leads out of the workload's folder. A link inside may lead to another disk."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise ValueError(
            f"table is {name!r}; it must be in the workload's folder `data`; put the table there and give its "
            "name alone"
        )


def check_columns(roles: dict[str, str], features: Sequence[str]) -> None:
    """Raises ValueError if a column has two roles."""
    for role, column in roles.items():
        if column in features:
            more = ", and the target is the first feature anyway" if role == "target" else ""
            raise ValueError(f"columns.features names {column!r}, which is the {role}{more}; take it out of the list")
    for role, column in roles.items():
        if twin := next((other for other in roles if other != role and roles[other] == column), None):
            raise ValueError(f"columns names {column!r} as {role} and as {twin}; they must be different columns")


def check_split(split: Split) -> None:
    if not all(split.sizes):
        raise ValueError(f"split is {split.sizes}; train, val and test each need more than 0")
    if not split.are_counts and abs(sum(split.sizes) - 1) > 1e-6:
        raise ValueError(
            f"split adds up to {sum(split.sizes):g} ({' + '.join(map(str, split.sizes))}); "
            "shares must add up to 1, or give whole numbers of sequences"
        )


@dataclass(frozen=True)
class Preload(Section):
    data_location: Annotated[Literal["auto", "device", "host"], usual("auto")]


BUILT_IN = built_in("model")


def check_model(model: Part) -> Part:
    if model.name in BUILT_IN:  # `hardware` checks the others, because `check` is a workload's code
        model.component.run_check(vars(model))
    return model


if TYPE_CHECKING:
    Model = Part
else:
    Model = Annotated[
        Union[tuple(each.schema for each in BUILT_IN.values())],  # noqa: UP007
        Field(discriminator="name"),
        AfterValidator(check_model),
    ]
Task = Literal["classify", "regress", "forecast", "detect"]
# The sources of each task's data. A network lists its tasks in `tasks`; without it, it is for every task.
TASKS = get_args(Task)
SOURCES = {
    "classify": ("sequences",),
    "regress": ("sequences",),
    "forecast": ("series",),
    "detect": ("sequences", "rally"),
}
# Augmentation changes only the inputs, so it is refused for a task whose targets would have to change with them.
FORBIDDEN_AUGMENT = {"classify": (), "regress": (), "detect": ("warp",), "forecast": ("mix", "shift", "warp")}


@dataclass(frozen=True)
class Augment(Section):
    """Random changes to training sequences (tandem/training/random_draws.py): standard deviations, 0 turns one off."""

    # The number of features that are mixed together, such as 2 for x and y of a point; it divides the number of
    # features.
    coupled_features: Annotated[Positive, usual(1)]
    mix: Annotated[Real, usual(0.0)]  # of each entry added to the identity matrix that maps coupled features
    shift: Annotated[Real, usual(0.0)]  # of a constant added to each coordinate, in training standard deviations
    warp: Annotated[Real, usual(0.0)]  # of the relative change of speed within a sequence


@dataclass(frozen=True)
class Train(Section):
    model: Model
    augment: Annotated[Augment, usual(usual_values(Augment))]
    epochs: Positive
    warmup_epochs: Annotated[Whole, usual(1)]
    batch_size: Positive
    grad_accum_steps: Annotated[Positive, usual(1)]  # parts of a batch, to save memory; the step stays the same
    precision: Annotated[Literal["fp32", "tf32", "bf16", "fp16", "auto"], usual("fp32")]
    step: Annotated[Literal["auto", "eager", "graph", "compile"], usual("auto")]
    probe: Annotated[StrictBool, usual(True)]  # find the bottleneck before the first epoch, in a second or two
    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)]
    weight_decay: Annotated[float, Field(strict=True, ge=0, le=100, examples=[0.01])]
    schedule: Annotated[Literal["cosine", "one-cycle"], usual("one-cycle")]
    max_grad_norm: Annotated[Real, usual(1.0)]
    label_smoothing: Annotated[Fraction, usual(0.0)]
    threads: Annotated[Threads, usual("auto")]  # of the CPU; auto: the fastest number, by measuring
    deterministic: Annotated[StrictBool, usual(True)]
    # For several workers. strong: they share the batch. weak: each has a whole batch, and the learning rate grows with
    # their number (Goyal et al. 2017, arXiv:1706.02677), or with its square root (Krizhevsky 2014, arXiv:1404.5997).
    scaling: Literal["strong", "weak-linear", "weak-sqrt"] = "strong"

    @property
    def num_threads(self) -> int:
        """The number of threads, after tandem/training/auto.py has replaced `auto`."""
        assert self.threads != "auto", "threads: auto has not been measured"
        return self.threads

    @model_validator(mode="after")
    def check(self) -> Self:
        if is_closed_form(self.model):
            self.check_closed_form()
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs} and epochs is {self.epochs}; "
                "at least one epoch must be left to measure"
            )
        if self.grad_accum_steps > self.batch_size:
            raise ValueError(
                f"grad_accum_steps is {self.grad_accum_steps} and batch_size is {self.batch_size}; "
                "a batch cannot be worked through in more parts than it has sequences"
            )
        return self

    def check_closed_form(self) -> None:
        """Refuse settings that a closed-form fit would ignore: it sees every sequence once, unchanged."""
        for key, value, accepted in (
            ("epochs", self.epochs, 1),
            ("warmup_epochs", self.warmup_epochs, 0),
            ("label_smoothing", self.label_smoothing, 0),
            *((f"augment.{name}", getattr(self.augment, name), 0) for name in ("mix", "shift", "warp")),
        ):
            if value != accepted:
                raise ValueError(
                    f"{key} is {value}; it must be {accepted} for {self.model.name}, which is fitted in closed form "
                    "in one epoch, to the sequences as they are"
                )


def is_closed_form(model: Part) -> bool:
    """Whether one epoch fits the network in closed form (tandem/training/closed_form.py)."""
    return bool(model.component.constants.get("is_fitted_in_closed_form"))


def tasks_of(component: Component) -> tuple[str, ...]:
    return tuple(component.constants.get("tasks", TASKS))


# The built-in networks for each task.
MODELS = {task: [name for name, each in BUILT_IN.items() if task in tasks_of(each)] for task in TASKS}


@dataclass(frozen=True)
class Evaluate(Section):
    weights: Annotated[Literal["best", "last"], usual("last")]


@dataclass(frozen=True)
class Workload(Section):
    task: Task
    preprocess: Preprocess
    preload: Annotated[Preload, usual(usual_values(Preload))]
    train: Train
    evaluate: Annotated[Evaluate, usual(usual_values(Evaluate))]

    @model_validator(mode="after")
    def check(self) -> Self:
        """Check that the task matches the source of data, the model, and the augmentation."""
        task, train = self.task, self.train
        models = (
            MODELS
            if train.model.name in BUILT_IN
            else {each: [train.model.name] for each in tasks_of(train.model.component)}
        )
        for key, value, accepted, what in (
            ("preprocess.source", self.preprocess.source, SOURCES, "sources"),
            ("train.model.name", train.model.name, models, "models"),
        ):
            if value not in accepted[task]:
                tasks = ", ".join(other for other in accepted if value in accepted[other])
                raise ValueError(
                    f"task is {task!r} and {key} is {value!r}, which do not go together; "
                    f"{what} for {task}: {', '.join(accepted[task])}; tasks for {value}: {tasks}"
                )
        for key in FORBIDDEN_AUGMENT[task]:
            if strength := getattr(train.augment, key):
                raise ValueError(
                    f"train.augment.{key} is {strength}; it must be 0 for {task}, "
                    "whose targets it would not change with the input"
                )
        if task in ("forecast", "regress") and train.label_smoothing:
            raise ValueError(
                f"train.label_smoothing is {train.label_smoothing}; it must be 0 for {task}, which has no labels"
            )
        return self


# Where a block names a component.
REFERENCES = {
    ("task",): "task",
    ("preprocess", "source"): "source",
    ("train", "model", "name"): "model",
    ("train", "loop"): "loop",
    ("evaluate", "metrics"): "metric",  # a list
}


def own_components(workload: str, block: Any) -> dict[str, list[Component]]:
    """The components in the workload's directory that its block names, by kind. `block` may be invalid.

    Raises InvalidParams about the first that does not exist or whose signature cannot be read.
    """
    found: dict[str, list[Component]] = {}
    for keys, kind in REFERENCES.items():
        value: Any = block
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        for index, name in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(name, str) or ":" not in name:
                continue
            place = [workload, *keys, *([index] if isinstance(value, list) else [])]
            try:
                found.setdefault(kind, []).append(find(kind, name, workload))
            except ValueError as error:
                raise InvalidParams(f"{dotted('', place)} {error}", place) from None
    return found


def model_type(model: Any, workload: str) -> Any:
    """The type of `train.model`: the union of the built-in networks, or that of a network in the workload's directory.

    Raises InvalidParams about the name of the network.
    """
    own = own_components(workload, {"train": {"model": model}})
    return own["model"][0].schema if own else Model


def workload_type(name: str, block: Any) -> type[Workload]:
    """The type of a workload's block: `Workload`, or a subclass for components in the workload's directory.

    Raises InvalidParams about the name of a component.
    """
    own = own_components(name, block)
    fields: list[tuple[str, Any]] = []
    if model := own.get("model"):
        fields.append(("train", make_dataclass("Train", [("model", model[0].schema)], bases=(Train,), frozen=True)))
    return make_dataclass("Workload", fields, bases=(Workload,), frozen=True) if fields else Workload


def params_type(raw: Any) -> type["Params"]:
    """`Params`, or a subclass if a workload in `raw`, the content of params.yaml, names a component of its own."""
    blocks = raw.items() if isinstance(raw, dict) else ()
    kinds = {str(name): workload_type(str(name), block) for name, block in blocks if isinstance(block, dict)}
    own: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items() if kind is not Workload}
    return create_model("Params", __base__=Params, **own) if own else Params


class Params(BaseModel):
    """The whole file. Every key that is not listed here is a workload's block."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Workload]

    workloads: Unique[Name] = Field(min_length=1, examples=[["sign"]], description="What to train and evaluate.")
    devices: Unique[Device] = Field(
        min_length=1, examples=[["auto"]], description="auto: the best one here. cpu and cuda: both, and compared."
    )
    # One training per seed: it sets weights, order and draws. The split has its own seed (preprocess.seed).
    seeds: Unique[Whole] = Field(
        min_length=1,
        examples=[[0]],
        description="A training with each. Three or more give a spread and an interval of the speed-up.",
    )
    preset: str = Field(
        examples=["none"],
        description="Values for a kind of machine. none: as params.yaml is. auto: what fits the GPU's memory.",
    )
    # Preset -> workload or `all` -> dotted name -> value.
    presets: dict[Name, dict[str, dict[str, Any]]] = Field(examples=[{}])

    @property
    def blocks(self) -> dict[str, Workload]:
        """The workloads as written; `load_workload` applies the preset."""
        own = set(type(self).model_fields) - set(Params.model_fields)
        return {**self.__pydantic_extra__, **{name: getattr(self, name) for name in own}}

    @model_validator(mode="after")
    def check(self) -> Self:
        for name in self.blocks:
            check_name(name)
        for name in self.workloads:
            if name not in self.blocks:
                raise ValueError(f"workloads names {name!r}, which has no block{nearest(name, self.blocks)}")
        for preset, parts in self.presets.items():
            if preset in ("none", "auto"):
                raise ValueError(f"presets.{preset} has a name that is taken; choose another one")
            for name in parts:
                if name != "all" and name not in self.blocks:
                    raise ValueError(f"presets.{preset} names {name!r}{nearest(name, ['all', *self.blocks])}")
        if self.preset not in (accepted := ("none", "auto", *self.presets)):
            raise ValueError(f"preset is {shown(self.preset)}{nearest(self.preset, accepted)}")
        return self

"""params.yaml as dataclasses that pydantic validates: every key with its type, limits and default, and the valid
combinations.

The types are strict: neither text nor `true` is a number. A key without a default is required. The message about a
missing key suggests its usual value, and `tandem new` writes it. flows/plan.py builds Prefect's form from `Params`.
Stages depend on the values in force (results/hardware/params/), so a changed default retrains what uses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)

from tandem.devices.names import SINGLE, split_device
from tandem.params.intervals import parse_interval
from tandem.params.parsing import check_name, flatten, literal
from tandem.params.task_attributes import TaskAttributes, attributes_of
from tandem.parts import MAX_WHOLE, Component, Fraction, Part, Positive, Real, Section, Whole, built_in
from tandem.terminal.messages import abridged, nearest

Entry = TypeVar("Entry")
NO_GROUPS = "none"


def check_unique(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(entries)) < len(entries):
        raise ValueError(f"names an entry twice: {', '.join(map(str, entries))}")
    return entries


def check_device(name: str) -> str:
    if name == "gpu":  # the most similar name is cpu
        raise ValueError(f"is 'gpu'; did you mean 'cuda'? accepted: {', '.join(SINGLE)}")
    split_device(name, "")
    return name


def check_table(name: str) -> str:
    """Refuse a name that leads out of the workload's folder. A link inside may lead to another disk."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name:
        raise ValueError(
            f"is {name!r}; it must be in the workload's folder `data`; put the table there and give its name alone"
        )
    return name


def usual(value: Any) -> Any:
    """Mark the usual value of a key that params.yaml must have: dvc.yaml names its section, or people vary it."""
    return Field(examples=[value])


def usual_values(kind: type) -> dict[str, Any]:
    """Return the usual value of each key of a section that has one."""
    marks = {key: getattr(hint, "__metadata__", ()) for key, hint in get_type_hints(kind, include_extras=True).items()}
    return {key: note.examples[0] for key, notes in marks.items() for note in notes if getattr(note, "examples", None)}


Unique = Annotated[
    tuple[Entry, ...],
    AfterValidator(check_unique),
    Field(strict=False, json_schema_extra={"uniqueItems": True}),  # a list of YAML becomes a tuple
]
Name = Annotated[StrictStr, AfterValidator(check_name)]
Device = Annotated[StrictStr, AfterValidator(check_device)]  # auto, cpu, cuda, or several workers: 2xcpu
Table = Annotated[StrictStr, AfterValidator(check_table)]
AtLeastTwo = Annotated[int, Field(strict=True, ge=2, le=MAX_WHOLE)]
NumThreads = Annotated[int, Field(strict=True, ge=1, le=512)] | Literal["auto"]


@dataclass(frozen=True)
class Columns(Section):
    sequence: StrictStr
    step: StrictStr
    features: Unique[StrictStr]
    label: StrictStr


@dataclass(frozen=True)
class Window(Section):
    """A recording with a label in each row is cut into windows of `length` rows that begin every `stride` rows."""

    length: AtLeastTwo
    stride: Positive


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


@dataclass(frozen=True, kw_only=True)
class SequenceKeys(Section):
    """The keys that every source of many sequences has: one label each (classify), one number each (regress), or one
    per step (detect).
    """

    reader: ClassVar[str] = "sequences"  # the module of tandem/data that takes the data
    seed: Whole = 0  # of the random split; a function of the workload's own gets it too if it has a parameter `seed`
    velocity: StrictBool = False
    missing: Literal["refuse", "interpolate", "mask"] = "refuse"
    # A column such as the person or device. All sequences with one value stay on one side of the split: scikit-learn's
    # `groups`.
    groups: StrictStr = NO_GROUPS
    # Rows for each unit of the step column, or for each second if it has times. None: the rows as they are.
    rate: Annotated[float, Field(strict=True, gt=0)] | None = None
    # Features from columns of text: `mode=low` is 1 in the rows in which the column `mode` holds `low`, else 0.
    categories: Unique[StrictStr] = ()
    # Classes with fewer sequences than splits: left out, or in train only. None: an error.
    rare_classes: Literal["omit", "train"] | None = None
    na: Unique[StrictStr] = ()  # cells without a number, besides MISSING of tandem/data/tables.py

    @model_validator(mode="after")
    def check(self) -> Self:
        columns, groups, split = (getattr(self, name) for name in ("columns", "groups", "split"))
        if columns:
            if not columns.features:
                raise ValueError("columns.features is []; name at least one column of numbers")
            if groups != NO_GROUPS and groups in columns.features:
                raise ValueError(f"groups is {groups!r}, which is among the features; it cannot be both")
            check_columns({key: getattr(columns, key) for key in ("sequence", "step", "label")}, columns.features)
            check_columns({"label": columns.label}, columns_of(self.categories))
        if odd := next((name for name in self.categories if "=" not in name), None):
            raise ValueError(f"categories names {odd!r}; accepted: a column and one of its words, such as mode=low")
        if self.rate and getattr(self, "window", None):
            raise ValueError(f"rate is {self.rate:g}, and windows are cut of the rows as they are; remove one of both")
        if split:
            check_split(split)
        return self


@dataclass(frozen=True, kw_only=True)
class SeriesKeys(Section):
    """The keys that every source of one long series has (tandem/data/series.py). It is cut into windows."""

    reader: ClassVar[str] = "series"
    columns: SeriesColumns
    interval: StrictStr  # between two steps, e.g. 15min, 1h, 1d, month (tandem/params/intervals.py)
    transform: Literal["log-return", "difference"]
    input_steps: AtLeastTwo
    horizon: Positive
    split: Split
    missing: Literal["skip", "interpolate", "refuse"] = "skip"
    stride: Positive = 1
    na: Unique[StrictStr] = ()  # cells without a number, besides MISSING of tandem/data/tables.py
    season: AtLeastTwo | None = None  # the period of the series in steps; None if there is none

    @model_validator(mode="after")
    def check(self) -> Self:
        check_columns({"time": self.columns.time, "target": self.columns.target}, self.columns.features)
        if self.split.are_counts:
            raise ValueError(f"split is {self.split.sizes}; a series is split by shares of its time that add up to 1")
        check_split(self.split)
        parse_interval(self.interval)
        return self


class TableSource(Section):
    """A built-in source, which reads the table `table` of the workload."""

    component: ClassVar[Component | None] = None
    table: str


@dataclass(frozen=True, kw_only=True)
class SequenceTable(TableSource, SequenceKeys):
    source: Literal["sequences"]
    table: Table
    columns: Columns
    split: Split
    # For recordings with a label in each row (tandem/data/windows.py). `columns.sequence` then tells the recordings
    # apart; it is `none` if the table is a single one. None: every sequence has one label.
    window: Window | None = None


@dataclass(frozen=True, kw_only=True)
class Series(TableSource, SeriesKeys):
    source: Literal["series"]
    table: Table


class OwnSource(Section):
    """A source in the workload's directory. Its other keys are the parameters of its function (own_components.py)."""

    table: ClassVar[None] = None
    reader: ClassVar[str]
    component: ClassVar[Component]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its function."""
        return {name: getattr(self, name) for name, _, _ in self.component.parameters}


@dataclass(frozen=True, kw_only=True)
class OwnSequences(OwnSource, SequenceKeys):
    window: ClassVar[None] = None
    source: StrictStr
    columns: Columns | None = None  # of a DataFrame; arrays have none
    split: Split | None = None  # not needed if the data says which sequence is in which split


@dataclass(frozen=True, kw_only=True)
class OwnSeries(OwnSource, SeriesKeys):
    source: StrictStr


Preprocess = Annotated[SequenceTable | Series, Field(discriminator="source")]


def columns_of(categories: Sequence[str]) -> list[str]:
    """The columns of text from which features are made."""
    return [*dict.fromkeys(name.partition("=")[0] for name in categories)]


def check_columns(roles: dict[str, str], features: Sequence[str]) -> None:
    """Raises ValueError if a column has two roles."""
    for role, column in roles.items():
        if column in features:
            remark = ", and the target is the first feature anyway" if role == "target" else ""
            raise ValueError(f"columns.features names {column!r}, which is the {role}{remark}; take it out of the list")
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
elif not BUILT_IN:  # a model in MLflow with a network of the workload's own (tandem/predicting/model_package.py)
    Model = Any
else:
    Model = Annotated[
        Union[tuple(network.schema for network in BUILT_IN.values())],  # noqa: UP007
        Field(discriminator="name"),
        AfterValidator(check_model),
    ]
TASKS = built_in("task")
# A model in MLflow with a task of the workload's own contains no built-in one.
Task: Any = str if TYPE_CHECKING or not TASKS else Literal[tuple(TASKS)]


@dataclass(frozen=True)
class Augment(Section):
    """Random changes to training sequences (tandem/training/random_draws.py): standard deviations, 0 turns one off."""

    # The number of features that are mixed together, such as 2 for x and y of a point.
    coupled_features: Positive = 1
    mix: Real = 0.0  # of each entry added to the identity matrix that maps coupled features
    shift: Real = 0.0  # of a constant added to each coordinate, in training standard deviations
    warp: Real = 0.0  # of the relative change of speed within a sequence

    def check_features(self, num: int) -> None:
        """Raises ValueError unless `coupled_features` divides the number of features, without velocities: a coordinate
        would be mixed with the velocity of another one.
        """
        if (self.mix or self.shift or self.warp) and num % self.coupled_features:
            raise ValueError(
                f"train.augment.coupled_features is {self.coupled_features}; it must divide {num}, the number of "
                "features without velocities"
            )


# Settings of Tandem's own steps, with the values that they must have if a loop of the workload's own takes the steps.
WITH_OWN_LOOP: dict[str, tuple[Any, ...]] = {
    "grad_accum_steps": (1,),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "step": ("auto", "eager"),
}


@dataclass(frozen=True, kw_only=True)
class Train(Section):
    model: Model
    augment: Augment = Augment()
    epochs: Positive
    warmup_epochs: Annotated[Whole, usual(1)]
    batch_size: Positive
    grad_accum_steps: Positive = 1  # parts of a batch, to save memory; the step stays the same
    precision: Literal["fp32", "tf32", "bf16", "fp16", "auto"] = "fp32"
    step: Literal["auto", "eager", "graph", "compile"] = "auto"
    probe: StrictBool = True  # find the bottleneck before the first epoch, in a second or two
    learning_rate: Annotated[float, Field(strict=True, gt=0, le=10)]
    weight_decay: Annotated[float, Field(strict=True, ge=0, le=100)] = 0.01
    schedule: Literal["cosine", "one-cycle"] = "one-cycle"
    max_grad_norm: Real = 1.0  # 0: no clipping
    label_smoothing: Fraction = 0.0
    threads: NumThreads = "auto"  # of the CPU; auto: the fastest number at the moment
    deterministic: StrictBool = True
    # For several workers. strong: they share the batch. weak: each has a whole batch, and the learning rate grows with
    # their number (Goyal et al. 2017, arXiv:1706.02677), or with its square root (Krizhevsky 2014, arXiv:1404.5997).
    scaling: Literal["strong", "weak-linear", "weak-sqrt"] = "strong"
    # auto: Tandem's kernels where they are faster (tandem/models/kernels). torch: torch's operations, for a comparison.
    kernels: Literal["auto", "torch"] = "auto"
    # A function of the workload's own that takes the steps (tandem/training/custom_loop.py); None: Tandem's own loop.
    loop: StrictStr | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        if takes_no_steps(self.model):
            self.check_closed_form()
        if self.loop:
            self.check_loop()
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

    def check_loop(self) -> None:
        if takes_no_steps(self.model):
            raise ValueError(
                f"loop is {self.loop!r}, but {self.model.name} is fitted in closed form, without steps; remove the key"
            )
        for key, accepted in WITH_OWN_LOOP.items():
            require(key, getattr(self, key), accepted, "with a loop of your own, which takes the steps")

    def check_closed_form(self) -> None:
        """Refuse settings that a closed-form fit would ignore: it sees every sequence once, unchanged."""
        why = f"for {self.model.name}, which is fitted in closed form in one epoch, to the sequences as they are"
        for key, accepted in {"epochs": 1, "warmup_epochs": 0, "label_smoothing": 0}.items():
            require(key, getattr(self, key), (accepted,), why)
        for key in ("mix", "shift", "warp"):
            require(f"augment.{key}", getattr(self.augment, key), (0,), why)


# By name: without this package, the other networks train as before.
FITTED_TRAINER, FITTED_BASELINE = "tandem.fitted.trainer", "tandem.fitted.baseline"


def require(key: str, value: Any, accepted: tuple[Any, ...], why: str) -> None:
    """Raises ValueError unless `value` is one of `accepted`."""
    if value not in accepted:
        raise ValueError(f"{key} is {value!r}; it must be {' or '.join(map(str, accepted))} {why}")


def check_workers(device: str, workload: str, train: Train) -> None:
    """Raises ValueError if several workers would have to run a loop of the workload's own."""
    num_workers, kind = split_device(device)
    if num_workers > 1 and train.loop:
        raise ValueError(
            f"device {device!r} has several workers, and {workload}.train.loop is {train.loop!r}, which runs in one "
            f"process; accepted: {kind}"
        )


def takes_no_steps(model: Part) -> bool:
    """Whether one epoch fits the network, by the task's `encoded` instead of steps with its loss (FITTED_TRAINER)."""
    return bool(model.component.constants.get("is_fitted_in_closed_form"))


def tasks_of(network: Component) -> tuple[str, ...]:
    """The tasks that a network lists in `tasks`; without it, it is for every task."""
    return tuple(network.constants.get("tasks", TASKS))


def built_in_attributes(task: str) -> TaskAttributes:
    return attributes_of(TASKS[task])


def models_for(task: str, attributes: TaskAttributes) -> list[str]:
    """The built-in networks for a task."""
    return [name for name, network in BUILT_IN.items() if is_for(network, task, attributes)]


def is_for(network: Component, task: str, attributes: TaskAttributes) -> bool:
    """Whether a network is for a task: it lists the task, or a built-in one with the same kind of target."""
    names = tasks_of(network)
    return task in names or attributes.target in {built_in_attributes(name).target for name in names if name in TASKS}


# The built-in networks for each built-in task.
MODELS = {name: models_for(name, built_in_attributes(name)) for name in TASKS}


@dataclass(frozen=True)
class Evaluate(Section):
    weights: Annotated[Literal["best", "last"], usual("last")]
    metrics: Unique[StrictStr] = ()  # functions in the workload's directory (tandem/training/own_metrics.py)


@dataclass(frozen=True)
class Workload(Section):
    task: Task
    preprocess: Preprocess  # or one of OWN_SOURCES
    preload: Annotated[Preload, usual(usual_values(Preload))]
    train: Train
    evaluate: Annotated[Evaluate, usual(usual_values(Evaluate))]

    own_task: ClassVar[Component | None] = None  # the task, if it is in the workload's directory

    @property
    def task_class(self) -> Component:
        return self.own_task or TASKS[self.task]

    @property
    def task_attributes(self) -> TaskAttributes:
        return attributes_of(self.task_class)

    @property
    def has_fitted_targets(self) -> bool:
        """Whether the task says what to fit in closed form: the class with its loss has `encoded` too."""
        methods = self.task_class.methods
        return methods.get("encoded") == methods["loss"]

    @property
    def no_fit_reason(self) -> str:
        """Why no fitted model is compared with the network (stages/baseline.py); empty if one is."""
        if takes_no_steps(self.train.model):
            return f"the workload's own model, {self.train.model.name}, is fitted"
        if not self.has_fitted_targets:
            return f"none exists for the task {self.task}"
        return "" if find_spec(FITTED_BASELINE.rpartition(".")[0]) else "this project has no folder tandem/fitted"

    @model_validator(mode="after")
    def check(self) -> Self:
        """Check that the task matches the source of data, the model, and the augmentation."""
        task, attributes, train = self.task, self.task_attributes, self.train
        source = self.preprocess.source
        if source not in attributes.sources and not self.preprocess.component:
            tasks = [name for name in TASKS if source in built_in_attributes(name).sources]
            raise mismatch(task, "preprocess.source", source, "sources", attributes.sources, tasks)
        if getattr(self.preprocess, "window", None) and attributes.target != "class":
            raise ValueError(f"task is {task!r}, and preprocess.window is for a task with classes, such as classify")
        model, network = train.model.name, train.model.component
        if not is_for(network, task, attributes):
            raise mismatch(task, "train.model.name", model, "models", models_for(task, attributes), tasks_of(network))
        if takes_no_steps(train.model) and not self.has_fitted_targets:
            raise ValueError(
                f"train.model.name is {model!r}, which is fitted in closed form, without the loss of {task}; use "
                "another network, or define `encoded` and `scale_of` beside `loss` (tandem/tasks/__init__.py)"
            )
        for key in attributes.forbidden_augment:
            why = f"for {task}, whose targets it would not change with the input"
            require(f"train.augment.{key}", getattr(train.augment, key), (0,), why)
        if getattr(self.preprocess, "categories", ()) or getattr(self.preprocess, "missing", "") == "mask":
            why = "because preprocess adds columns of 0 and 1, which would be mixed with measured ones"
            require("train.augment.coupled_features", train.augment.coupled_features, (1,), why)
        if columns := self.preprocess.columns:  # Arrays have none, and are checked in the first step
            train.augment.check_features(len(columns.features) + hasattr(columns, "target"))
        if not attributes.smooths_labels:
            require("train.label_smoothing", train.label_smoothing, (0,), f"for {task}, whose loss has no labels")
        return self


def mismatch(task: str, key: str, value: str, noun: str, accepted: Sequence[str], tasks: Sequence[str]) -> ValueError:
    """The error that a task and the value of another key do not go together."""
    return ValueError(
        f"task is {task!r} and {key} is {value!r}, which do not go together; "
        f"{noun} for {task}: {', '.join(accepted)}; tasks for {value}: {', '.join(tasks)}"
    )


def defaults_of(kind: Any) -> dict[str, Any]:
    """The keys of a section that params.yaml may leave out, with their defaults."""
    return {field.name: literal(field.default) for field in fields(kind) if field.default is not MISSING}


def with_defaults(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted parameters of a block (see `flatten`) with the defaults of the keys that it leaves out."""
    source = Series if parameters.get("preprocess.source") == "series" else SequenceTable
    return {**flatten({"preprocess": defaults_of(source), "train": defaults_of(Train)}), **parameters}


# The dotted names of the keys that a block may leave out.
OPTIONAL = {"train.augment"}.union(*(with_defaults({"preprocess.source": name}) for name in ("sequences", "series")))


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
        names = set(type(self).model_fields) - set(Params.model_fields)
        return {**self.__pydantic_extra__, **{name: getattr(self, name) for name in names}}

    @model_validator(mode="after")
    def check(self) -> Self:
        for name in self.blocks:
            check_name(name)
        for name in self.workloads:
            if name not in self.blocks:
                raise ValueError(f"workloads names {name!r}, which has no block{nearest(name, self.blocks)}")
        for device in self.devices:
            for name in self.workloads:
                check_workers(device, name, self.blocks[name].train)
        for preset, parts in self.presets.items():
            if preset in ("none", "auto"):
                raise ValueError(f"presets.{preset} has a name that is taken; choose another one")
            for name in parts:
                if name != "all" and name not in self.blocks:
                    raise ValueError(f"presets.{preset} names {name!r}{nearest(name, ['all', *self.blocks])}")
        if self.preset not in (accepted := ("none", "auto", *self.presets)):
            raise ValueError(f"preset is {abridged(self.preset)}{nearest(self.preset, accepted)}")
        return self

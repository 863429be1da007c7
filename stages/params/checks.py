"""Values of a workload's block that are valid one by one and cannot go together."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from stages.params.intervals import parse_interval
from stages.params.schema import (
    MODELS,
    NO_GROUPS,
    SOURCES,
    ConvGRU,
    Preprocess,
    Rally,
    Rocket,
    Series,
    Train,
    Transformer,
    Workload,
)

NAME_ALONE = "it must lie in the workload's folder of data/raw/; put the table there and give its name alone"
# Augmentation changes the inputs alone, so a task whose targets would have to change with them refuses it.
FORBIDDEN_AUGMENT = {"classify": (), "regress": (), "detect": ("warp",), "forecast": ("mix", "shift", "warp")}


def check_workload(name: str, block: Workload) -> None:
    """Raises ValueError for the first conflict."""
    of_data = (
        *table_conflicts(block.preprocess),
        *split_conflicts(block.preprocess),
        *series_conflicts(block.preprocess),
    )
    for conflict in (*combination_conflicts(name, block), *of_data, *train_conflicts(block)):
        raise ValueError(f"{name}.{conflict}")


def combination_conflicts(name: str, block: Workload) -> Iterator[str]:
    """The task with its source of data, its model, and what training may do to its sequences."""
    task, source, model, augment = block.task, block.preprocess.source, block.train.model.name, block.train.augment
    for key, value, accepted, what in (
        ("preprocess.source", source, SOURCES, "sources"),
        ("train.model.name", model, MODELS, "models"),
    ):
        if value not in accepted[task]:
            tasks = ", ".join(other for other in accepted if value in accepted[other])
            yield (
                f"task is {task!r} and {name}.{key} is {value!r}, which do not go together; "
                f"{what} for {task}: {', '.join(accepted[task])}; tasks for {value}: {tasks}"
            )
    for key in FORBIDDEN_AUGMENT[task]:
        if strength := getattr(augment, key):
            yield (
                f"train.augment.{key} is {strength}; it must be 0 for {task}, "
                "whose targets it would not change with the input"
            )
    if task in ("forecast", "regress") and (smoothing := block.train.label_smoothing):
        yield f"train.label_smoothing is {smoothing}; it must be 0 for {task}, which has no labels"


def table_conflicts(preprocess: Preprocess) -> Iterator[str]:
    """The table's place, and columns that cannot be two things at once."""
    if isinstance(preprocess, Rally):
        return
    if leaves_folder(preprocess.table):
        yield f"preprocess.table is {preprocess.table!r}; {NAME_ALONE}"
    columns, features = preprocess.columns, preprocess.columns.features
    if isinstance(preprocess, Series):
        roles = {"time": preprocess.columns.time, "target": preprocess.columns.target}
        if re.match(r"\s*[-0]", preprocess.interval):
            yield f"preprocess.interval is {preprocess.interval!r}; it must be above 0, e.g. 15min"
    else:
        roles = {key: getattr(columns, key) for key in ("sequence", "step", "label")}
        if not features:
            yield "preprocess.columns.features is []; name at least one column of numbers"
        if preprocess.groups != NO_GROUPS and preprocess.groups in features:
            yield f"preprocess.groups is {preprocess.groups!r}, which is among the features; it cannot be both"
    for role, column in roles.items():
        if column in features:
            more = ", and the target is the first feature anyway" if role == "target" else ""
            yield f"preprocess.columns.features names {column!r}, which is the {role}{more}; take it out of the list"
    for role, column in roles.items():
        if twin := next((other for other in roles if other != role and roles[other] == column), None):
            yield f"preprocess.columns names {column!r} as {role} and as {twin}; they must be different columns"


def leaves_folder(name: str) -> bool:
    """Whether a table's name leads out of its workload's folder. A link in there may lead to another disk."""
    parts = PurePosixPath(name)
    return parts.is_absolute() or ".." in parts.parts or "\\" in name


def split_conflicts(preprocess: Preprocess) -> Iterator[str]:
    split = preprocess.split
    sizes = (split.train, split.val, split.test)
    are_counts = all(isinstance(size, int) for size in sizes)
    if not all(sizes):
        yield f"preprocess.split is {sizes}; train, val and test each need more than 0"
    elif isinstance(preprocess, Rally) and not are_counts:
        yield f"preprocess.split is {sizes}; a simulation needs whole numbers of sequences"
    elif isinstance(preprocess, Series) and are_counts:
        yield f"preprocess.split is {sizes}; a series is split by shares of its time that add up to 1"
    elif not are_counts and abs(sum(sizes) - 1) > 1e-6:
        yield (
            f"preprocess.split adds up to {sum(sizes):g} ({' + '.join(map(str, sizes))}); "
            "shares must add up to 1, or give whole numbers of sequences"
        )


def series_conflicts(preprocess: Preprocess) -> Iterator[str]:
    if isinstance(preprocess, Series):
        try:
            parse_interval(preprocess.interval)
        except ValueError as error:
            yield str(error)


def train_conflicts(block: Workload) -> Iterator[str]:
    train, model = block.train, block.train.model
    if isinstance(model, Rocket):
        yield from closed_form_conflicts(train)
    if train.warmup_epochs >= train.epochs:
        yield (
            f"train.warmup_epochs is {train.warmup_epochs} and epochs is {train.epochs}; "
            "at least one epoch must be left to measure"
        )
    if train.accumulation > train.batch_size:
        yield (
            f"train.accumulation is {train.accumulation} and batch_size is {train.batch_size}; "
            "a batch cannot be worked through in more parts than it has sequences"
        )
    if isinstance(model, Transformer) and model.hidden_size % model.num_heads:
        yield (
            f"train.model.hidden_size is {model.hidden_size} and num_heads is {model.num_heads}; "
            "the first must be a multiple of the second"
        )
    if isinstance(model, ConvGRU) and model.kernel_size % 2 == 0:
        yield f"train.model.kernel_size is {model.kernel_size}; it must be odd, so that a frame stays in the middle"


def closed_form_conflicts(train: Train) -> Iterator[str]:
    """What a fit in closed form would pass over: it sees every sequence once, as it is."""
    augment = train.augment
    for key, value, accepted in (
        ("epochs", train.epochs, 1),
        ("warmup_epochs", train.warmup_epochs, 0),
        ("label_smoothing", train.label_smoothing, 0),
        *((f"augment.{name}", getattr(augment, name), 0) for name in ("mix", "shift", "warp")),
    ):
        if value != accepted:
            yield (
                f"train.{key} is {value}; it must be {accepted} for {train.model.name}, which is fitted in closed form "
                "in one epoch, to the sequences as they are"
            )

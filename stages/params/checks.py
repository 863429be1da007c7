"""Values of a workload's block that are valid one by one and cannot go together."""

from collections.abc import Iterator

from stages.params.schema import MODELS, SOURCES, ConvGRU, Preprocess, Rally, Series, Transformer, Workload

# Augmentation changes the inputs alone, so a task whose targets would have to change with them refuses it.
FORBIDDEN_AUGMENT = {"classify": (), "detect": ("warp",), "forecast": ("mix", "shift", "warp")}


def check_workload(name: str, block: Workload) -> None:
    """Raises ValueError for the first conflict."""
    for conflict in (*combination_conflicts(name, block), *split_conflicts(block.preprocess), *train_conflicts(block)):
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
    if task == "forecast" and (smoothing := block.train.label_smoothing):
        yield f"train.label_smoothing is {smoothing}; it must be 0 for forecast, which has no labels"


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


def train_conflicts(block: Workload) -> Iterator[str]:
    train, model = block.train, block.train.model
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

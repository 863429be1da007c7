"""What no single key of a workload can tell: pairs that cannot go together."""

from stages.params.schema import MODELS, SOURCES, ConvGRU, Preprocess, Rally, Series, Transformer, Workload


def check_workload(name: str, block: Workload) -> None:
    """What no single key can tell: pairs that cannot go together."""
    preprocess, train = block.preprocess, block.train
    check_combination(name, block)
    check_split(name, preprocess)
    if train.learning_rate <= 0:
        raise ValueError(f"params.yaml: {name}.train.learning_rate is {train.learning_rate}; it must be above 0")
    if train.warmup_epochs >= train.epochs:
        raise ValueError(
            f"params.yaml: {name}.train.warmup_epochs is {train.warmup_epochs} and epochs is {train.epochs}; "
            "at least one epoch must be left to measure"
        )
    if train.accumulation > train.batch_size:
        raise ValueError(
            f"params.yaml: {name}.train.accumulation is {train.accumulation} and batch_size is {train.batch_size}; "
            "a batch cannot be worked through in more parts than it has sequences"
        )
    if isinstance(train.model, Transformer) and train.model.hidden_size % train.model.num_heads:
        raise ValueError(
            f"params.yaml: {name}.train.model.hidden_size is {train.model.hidden_size} and num_heads is {train.model.num_heads}; "
            "the first must be a multiple of the second"
        )
    if isinstance(train.model, ConvGRU) and train.model.kernel_size % 2 == 0:
        raise ValueError(
            f"params.yaml: {name}.train.model.kernel_size is {train.model.kernel_size}; it must be odd, so that a frame stays in the middle"
        )


def check_combination(name: str, block: Workload) -> None:
    """The task, its source of data, its model, and what training may do to its sequences."""
    task, source, model, augment = block.task, block.preprocess.source, block.train.model.name, block.train.augment
    if source not in SOURCES[task]:
        raise ValueError(
            f"params.yaml: {name}.task is {task!r} and {name}.preprocess.source is {source!r}, which do not go together; "
            f"sources for {task}: {', '.join(SOURCES[task])}; tasks for {source}: {', '.join(t for t in SOURCES if source in SOURCES[t])}"
        )
    if model not in MODELS[task]:
        raise ValueError(
            f"params.yaml: {name}.task is {task!r} and {name}.train.model.name is {model!r}, which do not go together; "
            f"models for {task}: {', '.join(MODELS[task])}; tasks for {model}: {', '.join(t for t in MODELS if model in MODELS[t])}"
        )
    unfit = {"classify": (), "detect": ("warp",), "forecast": ("mix", "shift", "warp")}[task]
    for key in unfit:
        if getattr(augment, key):
            raise ValueError(
                f"params.yaml: {name}.train.augment.{key} is {getattr(augment, key)}; it must be 0 for {task}, "
                "whose targets it would not change with the input"
            )
    if task == "forecast" and block.train.label_smoothing:
        raise ValueError(
            f"params.yaml: {name}.train.label_smoothing is {block.train.label_smoothing}; it must be 0 for forecast, which has no labels"
        )


def check_split(name: str, preprocess: Preprocess) -> None:
    split = preprocess.split
    shares = (split.train, split.val, split.test)
    if not all(shares):
        raise ValueError(f"params.yaml: {name}.preprocess.split is {shares}; train, val and test each need more than 0")
    whole_numbers = all(isinstance(share, int) for share in shares)
    if isinstance(preprocess, Rally):
        if not whole_numbers:
            raise ValueError(
                f"params.yaml: {name}.preprocess.split is {shares}; a simulation needs whole numbers of sequences"
            )
    elif not whole_numbers and abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"params.yaml: {name}.preprocess.split adds up to {sum(shares):g} ({split.train} + {split.val} + {split.test}); "
            "shares must add up to 1, or give whole numbers of sequences"
        )
    elif whole_numbers and isinstance(preprocess, Series):
        raise ValueError(
            f"params.yaml: {name}.preprocess.split is {shares}; a series is split by shares of its time that add up to 1"
        )

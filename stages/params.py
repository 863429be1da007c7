"""params.yaml -> frozen dataclasses.

Every key is required and every unknown one refused with the nearest known name, so that a misspelling never trains the wrong
thing silently. Imports nothing heavy: always-run stages and flows read params too. The values are what DVC depends on, not this file.
"""

import copy
import difflib
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from stages.files import ROOT, preset_file, read_json

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Columns:
    sequence: str
    step: str
    features: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class SeriesColumns:
    time: str
    target: str  # what is forecast, and the first feature
    features: tuple[str, ...]  # further ones


@dataclass(frozen=True)
class Split:
    """Shares of the sequences (adding up to 1) or absolute counts."""

    train: float
    val: float
    test: float


@dataclass(frozen=True)
class SequenceTable:
    """A table of many sequences (stages/data/sequences.py): one label each (classify), or one per step (detect)."""

    source: Literal["sequences"]
    table: str
    columns: Columns
    split: Split
    seed: int
    velocity: bool
    missing: Literal["refuse", "interpolate"]


@dataclass(frozen=True)
class Series:
    """A table of one long series (stages/data/series.py), cut into windows."""

    source: Literal["series"]
    table: str
    columns: SeriesColumns
    interval: str  # between two steps: 15min, 1h, 1d
    transform: Literal["log-return", "difference"]
    missing: Literal["skip", "interpolate", "refuse"]
    input_steps: int
    horizon: int
    stride: int
    split: Split


@dataclass(frozen=True)
class Rally:
    """Simulated tennis rallies (stages/data/rally.py); there is no table."""

    source: Literal["rally"]
    num_steps: int
    noise: float  # standard deviation of a detected position, pixels
    missed: float  # share of the frames in which the ball is not found
    occlusion: float  # share of the sequences in which it is hidden for a while
    split: Split
    seed: int


Preprocess = SequenceTable | Series | Rally


@dataclass(frozen=True)
class Preload:
    residency: Literal["auto", "device", "host"]


@dataclass(frozen=True)
class GRU:
    name: Literal["gru"]
    hidden_size: int  # per direction
    num_layers: int
    bidirectional: bool
    dropout: float  # between layers and before the last one


@dataclass(frozen=True)
class Transformer:
    name: Literal["transformer"]
    hidden_size: int
    num_layers: int
    num_heads: int
    feedforward_size: int  # width of the hidden layer inside each block
    dropout: float  # on the output of each sublayer
    checkpoint_activations: bool = False  # computed again in the backward pass instead of kept


@dataclass(frozen=True)
class ConvGRU:
    name: Literal["conv_gru"]
    hidden_size: int  # per direction, and channels of the convolutions
    num_layers: int  # of the GRU
    num_convolutions: int
    kernel_size: int  # odd
    dropout: float


@dataclass(frozen=True)
class TeacherForcing:
    """Share of the decoder's inputs that are the true values, from the first epoch to the last."""

    start: float
    end: float
    decay: Literal["linear", "exponential"]


@dataclass(frozen=True)
class Seq2Seq:
    name: Literal["seq2seq"]
    hidden_size: int
    num_layers: int
    dropout: float
    cell: Literal["native", "manual"]  # nn.LSTM, or the same written by hand
    teacher_forcing: TeacherForcing


# A model's name is its file in stages/models/; a task's name is its file in stages/tasks/.
Model = GRU | Transformer | ConvGRU | Seq2Seq
Task = Literal["classify", "forecast", "detect"]
# What goes together: the models that a task can be trained with, and where its data can come from.
MODELS: dict[str, tuple[str, ...]] = {
    "classify": ("gru", "transformer", "conv_gru"),
    "forecast": ("gru", "transformer", "conv_gru", "seq2seq"),
    "detect": ("gru", "transformer", "conv_gru"),
}
SOURCES: dict[str, tuple[str, ...]] = {
    "classify": ("sequences",),
    "forecast": ("series",),
    "detect": ("sequences", "rally"),
}


@dataclass(frozen=True)
class Augment:
    """Random changes to training sequences (stages/training/augment.py). Strengths are standard deviations; 0 turns one off."""

    group: int  # number of coordinates mixed together; the number of features must be a multiple
    mix: float  # of each entry added to the identity matrix that maps the coordinates of a group
    shift: float  # of a constant added to each coordinate, in training standard deviations
    warp: float  # of the relative change of speed within a sequence


@dataclass(frozen=True)
class Train:
    model: Model
    augment: Augment
    seed: int
    epochs: int
    warmup_epochs: int
    batch_size: int
    accumulation: int  # the batch is worked through in this many parts, to save memory; the step is the same
    precision: Literal["fp32", "tf32", "bf16", "fp16", "auto"]
    on_out_of_memory: Literal["stop", "cpu"]  # when nothing else helps; cpu: device auto finishes there
    step: Literal["eager", "graph", "compile"]
    probe: bool  # spend a second or two before the first epoch on finding out what bounds it
    learning_rate: float
    weight_decay: float
    schedule: Literal["cosine", "one-cycle"]
    clip_norm: float
    label_smoothing: float
    threads: int
    deterministic: bool


@dataclass(frozen=True)
class Evaluate:
    weights: Literal["best", "last"]


@dataclass(frozen=True)
class Workload:
    task: Task
    preprocess: Preprocess
    preload: Preload
    train: Train
    evaluate: Evaluate


@dataclass(frozen=True)
class Params:
    workloads: tuple[str, ...]
    devices: tuple[Device, ...]
    preset: str  # a name of `presets`, or none, or auto
    presets: dict[str, dict[str, dict[str, Any]]]  # preset -> workload or `all` -> dotted name in the block -> value
    blocks: dict[str, Workload]  # as written; `load_workload` applies the preset


TOP_LEVEL = ("workloads", "devices", "preset", "presets")


# What the types cannot say: the smallest value each number may have, and the largest where there is one.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "epochs": (1, float("inf")),
    "warmup_epochs": (0, float("inf")),
    "batch_size": (1, float("inf")),
    "accumulation": (1, float("inf")),
    "input_steps": (2, float("inf")),
    "horizon": (1, float("inf")),
    "stride": (1, float("inf")),
    "num_steps": (16, float("inf")),
    "noise": (0, float("inf")),
    "missed": (0, 0.9),
    "occlusion": (0, 1),
    "num_convolutions": (0, float("inf")),
    "kernel_size": (1, float("inf")),
    "start": (0, 1),
    "end": (0, 1),
    "hidden_size": (1, float("inf")),
    "feedforward_size": (1, float("inf")),
    "num_layers": (1, float("inf")),
    "num_heads": (1, float("inf")),
    "threads": (1, float("inf")),
    "group": (1, float("inf")),
    "mix": (0, float("inf")),
    "shift": (0, float("inf")),
    "warp": (0, float("inf")),
    "dropout": (0, 0.999),
    "weight_decay": (0, float("inf")),
    "clip_norm": (0, float("inf")),
    "label_smoothing": (0, 0.999),
    "train": (0, float("inf")),
    "val": (0, float("inf")),
    "test": (0, float("inf")),
}


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """`; did you mean 'x'? Accepted: x, y` with the guess left out where nothing comes near."""
    known = sorted(known)
    guess = difflib.get_close_matches(str(name), known, n=1)
    return (f"; did you mean '{guess[0]}'?" if guess else ";") + f" accepted: {', '.join(known)}"


def read_yaml(path: Path) -> dict[str, Any]:
    """DVC's own dialect (YAML 1.2, where 1e-3 is a number; PyYAML would read it as text)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loaded = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.name} is missing in {path.parent}; restore it (git checkout {path.name})"
        ) from None
    except YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise ValueError(
            f"{path.name} holds {type(loaded).__name__}; it must be a mapping of workloads, devices and one block per workload"
        )
    return loaded


def parse(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a dataclass, a union of them told apart by their first field, Literal, tuple, or a plain type.

    Raises ValueError.
    """
    origin = typing.get_origin(kind)
    if isinstance(kind, types.UnionType):
        key = fields(typing.get_args(kind)[0])[0].name
        options = {typing.get_args(typing.get_type_hints(option)[key])[0]: option for option in typing.get_args(kind)}
        if not isinstance(value, dict) or key not in value:
            raise ValueError(
                f"params.yaml: {where} must be a mapping with a `{key}`{nearest('', options)}; received {value!r}"
            )
        if value[key] not in options:
            raise ValueError(f"params.yaml: {where}.{key} is {value[key]!r}{nearest(value[key], options)}")
        return parse(options[value[key]], value, where)
    if is_dataclass(kind):
        return parse_dataclass(kind, value, where)
    if origin is Literal:
        if value not in typing.get_args(kind) or isinstance(value, bool):
            raise ValueError(f"params.yaml: {where} is {value!r}{nearest(value, map(str, typing.get_args(kind)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not (value or where.endswith(".preprocess.columns.features")):
            raise ValueError(f"params.yaml: {where} is {value!r}; it must be a list with at least one entry")
        entries = tuple(parse(typing.get_args(kind)[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if len(set(entries)) < len(entries):
            raise ValueError(f"params.yaml: {where} names an entry twice: {', '.join(map(str, entries))}")
        return entries
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        hint = "; write it without quotes" if isinstance(value, str) else ""
        raise ValueError(
            f"params.yaml: {where} is {value!r} ({type(value).__name__}); it must be {kind.__name__}{hint}"
        )
    low, high = LIMITS.get(where.rpartition(".")[2], (float("-inf"), float("inf")))
    if kind in (int, float) and not low <= value <= high:
        raise ValueError(
            f"params.yaml: {where} is {value!r}; it must be at least {low}"
            + ("" if high == float("inf") else f" and at most {high}")
        )
    return value


def parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(
            f"params.yaml: {where} is {value!r}; it must be a mapping of {', '.join(f.name for f in fields(kind))}"
        )
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise ValueError(f"params.yaml: {where}.{key} is not a known key{nearest(key, hints)}")
    missing = [name for name in hints if name not in value]
    if missing:
        raise ValueError(
            f"params.yaml: {where} lacks {', '.join(missing)}; add it (data/raw/README.md shows a whole block)"
        )
    return kind(**{name: parse(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


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


def check_name(name: Any, where: str) -> None:
    """Names become folders: nothing that leaves the project, nothing DVC or a URL would misread."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"params.yaml: {where} {name!r} is not a usable name; use letters, digits, _ and - only")


def parse_params(raw: dict[str, Any]) -> Params:
    for key, example in {"workloads": "[sign]", "devices": "[auto]", "preset": "none", "presets": "{}"}.items():
        if key not in raw:
            raise ValueError(f"params.yaml: {key} is missing; add e.g. `{key}: {example}`")
    workloads = parse(tuple[str, ...], raw["workloads"], "workloads")
    devices = parse(tuple[Device, ...], raw["devices"], "devices")
    blocks = {key: value for key, value in raw.items() if key not in TOP_LEVEL}
    for name in (*workloads, *blocks):
        check_name(name, "workload")
    for name in workloads:
        if name not in blocks:
            raise ValueError(f"params.yaml: workloads names {name!r}, which has no block{nearest(name, blocks)}")
    presets = parse_presets(raw["presets"], blocks)
    if raw["preset"] not in (accepted := ("none", "auto", *presets)):
        raise ValueError(f"params.yaml: preset is {raw['preset']!r}{nearest(str(raw['preset']), accepted)}")
    parsed = {name: parse_block(name, block, {}) for name, block in blocks.items()}
    for preset in presets:  # a preset that is not in use must not wait with its mistakes until it is
        for name in workloads:
            parse_block(name, blocks[name], overrides_of(presets, preset, name), f"presets.{preset}: ")
    return Params(workloads, devices, raw["preset"], presets, parsed)


def parse_presets(raw: Any, blocks: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Preset -> `all` or a workload -> dotted name -> value, checked as far as names go."""
    if not isinstance(raw, dict):
        raise ValueError(f"params.yaml: presets is {raw!r}; it must be a mapping of names, `{{}}` for none")
    for preset, parts in raw.items():
        check_name(preset, "preset")
        if preset in ("none", "auto"):
            raise ValueError(f"params.yaml: presets.{preset} has a name that is taken; choose another one")
        for who, values in (parts if isinstance(parts, dict) else {"": parts}).items():
            if who != "all" and who not in blocks:
                raise ValueError(f"params.yaml: presets.{preset} names {who!r}{nearest(str(who), ['all', *blocks])}")
            if not isinstance(values, dict):
                raise ValueError(
                    f"params.yaml: presets.{preset}.{who} is {values!r}; it must be a mapping such as `train.batch_size: 32`"
                )
    return raw


def overrides_of(presets: dict[str, dict[str, dict[str, Any]]], preset: str, workload: str) -> dict[str, Any]:
    """What `preset` changes in the block of `workload`: what it says for all, and then what it says for this one."""
    parts = presets.get(preset, {})
    return {**parts.get("all", {}), **parts.get(workload, {})}


def parse_block(name: str, block: Any, overrides: dict[str, Any], what: str = "") -> Workload:
    """The block of one workload with dotted `overrides` put in. Raises ValueError, with `what` in front, for what is wrong in it."""

    def complain(unknown: str) -> str:
        advice = "write a name of its block, such as train.batch_size, or override it for other workloads only"
        return f"{name} has no {unknown!r}; {advice}"

    try:
        changed = replaced(block, overrides, complain)
        parsed: Workload = parse(Workload, changed, name)
        check_workload(name, parsed)
    except ValueError as error:
        raise ValueError(f"params.yaml: {what}{str(error).removeprefix('params.yaml: ')}") from None
    return parsed


def replaced(nested: Any, overrides: dict[str, Any], complain: Callable[[str], str]) -> Any:
    """A copy of the nested dict with the dotted `overrides` put in. Raises ValueError with `complain(name)` for a name it lacks."""
    if not overrides or not isinstance(nested, dict):
        return nested
    changed = copy.deepcopy(nested)
    for dotted, value in overrides.items():
        *folders, last = str(dotted).split(".")
        place: Any = changed
        for folder in folders:
            place = place.get(folder) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise ValueError(complain(dotted))
        place[last] = value
    return changed


def choose_preset(wanted: str, presets: dict[str, Any], identity: dict[str, Any]) -> str:
    """`wanted`, or for `auto` what fits the machine's best device (`identity`: results/hardware/auto.json), by its memory.

    The limits are those of the guides: small-gpu was for 6 GB, large-gpu for over 20 GB.
    """
    if wanted != "auto":
        return wanted
    gib = (identity.get("memory_mib") or 0) / 1024
    fitting = "cpu" if identity["kind"] == "cpu" else "small-gpu" if gib < 8 else "large-gpu" if gib > 20 else "gpu"
    return fitting if fitting in presets else "none"


@cache
def load_params(path: Path = ROOT / "params.yaml") -> Params:
    return parse_params(read_yaml(path))


def load_workload(name: str) -> Workload:
    """The block of one workload as it takes effect: with the preset that `hardware` chose (results/presets/<name>.json)."""
    params = load_params()
    if name not in params.blocks:
        raise ValueError(f"workload {name!r} is not in params.yaml{nearest(name, params.blocks)}")
    if params.preset == "none":
        return params.blocks[name]
    chosen = read_json(preset_file(name))
    return parse_block(name, read_yaml(ROOT / "params.yaml")[name], chosen["overrides"], f"preset {chosen['preset']}: ")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dataclasses as dotted keys, as MLflow and `dvc exp run -S` write them."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {key: leaf for name, part in pairs for key, leaf in flatten(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: ",".join(map(str, value)) if isinstance(value, tuple) else value}

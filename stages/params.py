"""params.yaml -> frozen dataclasses.

Every key is required and every unknown one refused with the nearest known name, so that a misspelling never trains the wrong
thing silently. Imports nothing heavy: always-run stages and flows read params too. The values are what DVC depends on, not this file.
"""

import difflib
import re
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from stages.runtime.store import ROOT

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Columns:
    sequence: str
    step: str
    features: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Split:
    """Shares of the sequences (adding up to 1) or absolute counts."""

    train: float
    val: float
    test: float


@dataclass(frozen=True)
class Preprocess:
    table: str
    columns: Columns
    split: Split
    seed: int
    velocity: bool


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


# A model's name is its file in stages/models/; a task's name is its file in stages/tasks/.
Model = GRU | Transformer


@dataclass(frozen=True)
class Augment:
    """Random changes to training sequences (stages/augment.py). Strengths are standard deviations; 0 turns one off."""

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
    task: Literal["classify"]
    preprocess: Preprocess
    preload: Preload
    train: Train
    evaluate: Evaluate


@dataclass(frozen=True)
class Params:
    workloads: tuple[str, ...]
    devices: tuple[Device, ...]
    blocks: dict[str, Workload]


# What the types cannot say: the smallest value each number may have, and the largest where there is one.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "epochs": (1, float("inf")),
    "warmup_epochs": (0, float("inf")),
    "batch_size": (1, float("inf")),
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
    """`value` as `kind`: a dataclass, a union of them told apart by `name`, Literal, tuple, or a plain type. Else ValueError."""
    origin = typing.get_origin(kind)
    if isinstance(kind, types.UnionType):
        if not isinstance(value, dict) or "name" not in value:
            raise ValueError(f"params.yaml: {where} must be a mapping with a `name`; received {value!r}")
        options = {
            typing.get_args(typing.get_type_hints(option)["name"])[0]: option for option in typing.get_args(kind)
        }
        if value["name"] not in options:
            raise ValueError(f"params.yaml: {where}.name is {value['name']!r}{nearest(value['name'], options)}")
        return parse(options[value["name"]], value, where)
    if is_dataclass(kind):
        return parse_dataclass(kind, value, where)
    if origin is Literal:
        if value not in typing.get_args(kind) or isinstance(value, bool):
            raise ValueError(f"params.yaml: {where} is {value!r}{nearest(value, map(str, typing.get_args(kind)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list) or not value:
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
    split, train = block.preprocess.split, block.train
    shares = (split.train, split.val, split.test)
    whole_numbers = all(isinstance(share, int) for share in shares)
    if not whole_numbers and abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"params.yaml: {name}.preprocess.split adds up to {sum(shares):g} ({split.train} + {split.val} + {split.test}); "
            "shares must add up to 1, or give whole numbers of sequences"
        )
    if train.learning_rate <= 0:
        raise ValueError(f"params.yaml: {name}.train.learning_rate is {train.learning_rate}; it must be above 0")
    if train.warmup_epochs >= train.epochs:
        raise ValueError(
            f"params.yaml: {name}.train.warmup_epochs is {train.warmup_epochs} and epochs is {train.epochs}; "
            "at least one epoch must be left to measure"
        )
    if isinstance(train.model, Transformer) and train.model.hidden_size % train.model.num_heads:
        raise ValueError(
            f"params.yaml: {name}.train.model.hidden_size is {train.model.hidden_size} and num_heads is {train.model.num_heads}; "
            "the first must be a multiple of the second"
        )


def check_name(name: Any, where: str) -> None:
    """Names become folders: nothing that leaves the project, nothing DVC or a URL would misread."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"params.yaml: {where} {name!r} is not a usable name; use letters, digits, _ and - only")


def parse_params(raw: dict[str, Any]) -> Params:
    for key in ("workloads", "devices"):
        if key not in raw:
            raise ValueError(
                f"params.yaml: {key} is missing; add e.g. `{key}: [{'sign' if key == 'workloads' else 'auto'}]`"
            )
    workloads = parse(tuple[str, ...], raw["workloads"], "workloads")
    devices = parse(tuple[Device, ...], raw["devices"], "devices")
    blocks = {key: value for key, value in raw.items() if key not in ("workloads", "devices")}
    for name in (*workloads, *blocks):
        check_name(name, "workload")
    for name in workloads:
        if name not in blocks:
            raise ValueError(f"params.yaml: workloads names {name!r}, which has no block{nearest(name, blocks)}")
    parsed = {name: parse(Workload, block, name) for name, block in blocks.items()}
    for name, block in parsed.items():
        check_workload(name, block)
    return Params(workloads, devices, parsed)


@cache
def load_params(path: Path = ROOT / "params.yaml") -> Params:
    return parse_params(read_yaml(path))


def load_workload(name: str) -> Workload:
    blocks = load_params().blocks
    if name not in blocks:
        raise ValueError(f"workload {name!r} is not in params.yaml{nearest(name, blocks)}")
    return blocks[name]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dataclasses as dotted keys, as MLflow and `dvc exp run -S` write them."""
    if is_dataclass(value):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {key: leaf for name, part in pairs for key, leaf in flatten(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: ",".join(map(str, value)) if isinstance(value, tuple) else value}

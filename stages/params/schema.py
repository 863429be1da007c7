"""params.yaml as frozen dataclasses: every key there is, and what goes together.

Imports nothing. The values are what DVC depends on, not this file.
"""

from dataclasses import dataclass
from typing import Any, Literal

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

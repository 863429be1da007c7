"""params.yaml as frozen dataclasses: every key with its type, limits and usual value, and what goes together.

Imports nothing of the project. DVC depends on the values in params.yaml, not on this file.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal


@dataclass(frozen=True)
class Limits:
    """Of a number. Without them, it must be at least 0."""

    low: float = 0
    high: float | None = None
    above: bool = False  # `low` itself is not allowed


@dataclass(frozen=True)
class Usual:
    """The value that a refusal suggests for a missing key (in a params.yaml of an older version), and that
    stages/tools/new_workload.py writes. Parsing never fills it in.
    """

    value: Any


@dataclass(frozen=True)
class MayBeAbsent:
    """Of a key that params.yaml may leave out; its default holds then."""


Device = str  # auto, cpu, cuda, or several workers: 2xcpu (stages/params/devices.py reads it)
Positive = Annotated[int, Limits(1)]
Share = Annotated[float, Limits(high=1)]
Fraction = Annotated[float, Limits(high=0.999)]
Seed = Annotated[int, Limits(high=2**63 - 1), Usual(0)]
Strength = Annotated[float, Usual(0.0)]
Threads = int | Literal["auto"]
NO_GROUPS = "none"


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
    """A table of many sequences (stages/data/sequences.py): one label each (classify), a
    number each (regress), or a label per step (detect).
    """

    source: Literal["sequences"]
    table: str
    columns: Columns
    split: Split
    seed: Seed
    velocity: Annotated[bool, Usual(False)]
    missing: Annotated[Literal["refuse", "interpolate"], Usual("refuse")]
    # A column, each of whose values (a person, a device) stays on one side of the split: scikit-learn's `groups`.
    groups: Annotated[str, Usual(NO_GROUPS)] = NO_GROUPS


@dataclass(frozen=True)
class Series:
    """A table of one long series (stages/data/series.py), cut into windows."""

    source: Literal["series"]
    table: str
    columns: SeriesColumns
    interval: str  # between two steps, e.g. 15min, 1h, 1d, month (stages/params/intervals.py)
    transform: Literal["log-return", "difference"]
    missing: Annotated[Literal["skip", "interpolate", "refuse"], Usual("skip")]
    input_steps: Annotated[int, Limits(2)]
    horizon: Positive
    stride: Annotated[Positive, Usual(1)]
    split: Split
    # Steps after which the series resembles itself; left out: none.
    season: Annotated[int | None, Limits(2), MayBeAbsent()] = None


@dataclass(frozen=True)
class Rally:
    """Simulated tennis rallies (stages/data/tennis.py); there is no table."""

    source: Literal["rally"]
    num_steps: Annotated[int, Limits(16)]
    noise: float  # standard deviation of a detected position, pixels
    missed: Annotated[float, Limits(high=0.9)]  # share of the frames in which the ball is not found
    occlusion: Share  # of the sequences in which it is hidden for a while
    split: Split
    seed: Seed


Preprocess = SequenceTable | Series | Rally


@dataclass(frozen=True)
class Preload:
    residency: Annotated[Literal["auto", "device", "host"], Usual("auto")]


@dataclass(frozen=True)
class GRU:
    name: Literal["gru"]
    hidden_size: Positive  # per direction
    num_layers: Positive
    bidirectional: bool
    dropout: Fraction  # between layers and before the last one


@dataclass(frozen=True)
class Transformer:
    name: Literal["transformer"]
    hidden_size: Positive
    num_layers: Positive
    num_heads: Positive
    feedforward_size: Positive  # width of the hidden layer inside each block
    dropout: Fraction  # on the output of each sublayer
    checkpoint_activations: Annotated[bool, Usual(False)] = False  # computed again in the backward pass, not kept


@dataclass(frozen=True)
class ConvGRU:
    name: Literal["conv_gru"]
    hidden_size: Positive  # per direction, and channels of the convolutions
    num_layers: Positive  # of the GRU
    num_convolutions: int
    kernel_size: Positive  # odd
    dropout: Fraction


@dataclass(frozen=True)
class TeacherForcing:
    """Share of the decoder's inputs that are the true values, from the first epoch to the last."""

    start: Annotated[Share, Usual(1.0)]
    end: Annotated[Share, Usual(0.0)]
    decay: Annotated[Literal["linear", "exponential"], Usual("linear")]


@dataclass(frozen=True)
class Seq2Seq:
    name: Literal["seq2seq"]
    hidden_size: Positive
    num_layers: Positive
    dropout: Fraction
    cell: Annotated[Literal["native", "manual"], Usual("native")]  # nn.LSTM, or the same written by hand
    teacher_forcing: TeacherForcing


@dataclass(frozen=True)
class Rocket:
    """Fixed convolutions with a linear layer that is fitted in closed form: one epoch, and no learning rate."""

    name: Literal["rocket"]
    num_kernels: Annotated[int, Limits(84), Usual(10_000)]  # of MiniRocket, a feature each
    num_groups: Annotated[int, Limits(0), Usual(64)]  # of HYDRA's competing kernels, in each dilation; 0: without HYDRA


@dataclass(frozen=True)
class Hybrid:
    """A linear forecast in closed form, and a network for what it leaves (stages/models/hybrid.py)."""

    name: Literal["hybrid"]
    hidden_size: int  # of the network's one hidden layer; 0: there is none
    dropout: Fraction


# A model's name is its file in stages/models/; a task's name is its file in stages/tasks/.
Model = GRU | Transformer | ConvGRU | Seq2Seq | Rocket | Hybrid
Task = Literal["classify", "regress", "forecast", "detect"]
# What goes together: the models that a task can be trained with, and where its data can come from.
ANY_TASK = ("gru", "transformer", "conv_gru")
MODELS = {
    "classify": (*ANY_TASK, "rocket"),
    "regress": (*ANY_TASK, "rocket"),
    "forecast": (*ANY_TASK, "seq2seq", "hybrid"),
    "detect": ANY_TASK,
}
SOURCES = {
    "classify": ("sequences",),
    "regress": ("sequences",),
    "forecast": ("series",),
    "detect": ("sequences", "rally"),
}


@dataclass(frozen=True)
class Augment:
    """Random changes to training sequences (stages/training/augment.py): standard deviations, 0 turns one off."""

    # How many features belong together, as x and y of a point do, and are mixed; divides their number.
    coupled_features: Annotated[Positive, Usual(1)]
    mix: Strength  # of each entry added to the identity matrix that maps the features that belong together
    shift: Strength  # of a constant added to each coordinate, in training standard deviations
    warp: Strength  # of the relative change of speed within a sequence


@dataclass(frozen=True)
class Train:
    model: Model
    augment: Augment
    epochs: Positive
    warmup_epochs: Annotated[int, Usual(1)]
    batch_size: Positive
    accumulation: Annotated[Positive, Usual(1)]  # number of parts of a batch, to save memory; the step is the same
    precision: Annotated[Literal["fp32", "tf32", "bf16", "fp16", "auto"], Usual("fp32")]
    step: Annotated[Literal["auto", "eager", "graph", "compile"], Usual("auto")]
    probe: Annotated[bool, Usual(True)]  # spend a second or two before the first epoch to find out what bounds it
    learning_rate: Annotated[float, Limits(above=True, high=10)]
    weight_decay: Annotated[float, Limits(high=100), Usual(0.01)]
    schedule: Annotated[Literal["cosine", "one-cycle"], Usual("one-cycle")]
    clip_norm: Annotated[float, Usual(1.0)]
    label_smoothing: Annotated[Fraction, Usual(0.0)]
    threads: Annotated[
        Threads, Limits(1, high=512), Usual("auto")
    ]  # of the CPU; auto: as many as are fastest, by measuring
    deterministic: Annotated[bool, Usual(True)]
    # Of several workers. strong: they share the batch. weak: each has a whole one, and the learning rate grows with
    # their number (Goyal et al. 2017, arXiv:1706.02677), or with its root (Krizhevsky 2014, arXiv:1404.5997).
    scaling: Annotated[Literal["strong", "weak-linear", "weak-sqrt"], MayBeAbsent()] = "strong"

    @property
    def num_threads(self) -> int:
        """Of a training that has begun: stages/training/auto.py has put a number in the place of `auto`."""
        assert self.threads != "auto", "threads: auto has not been measured"
        return self.threads


@dataclass(frozen=True)
class Evaluate:
    weights: Annotated[Literal["best", "last"], Usual("last")]


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
    seeds: tuple[Seed, ...]  # one training each: weights, order and draws; the split has its own (preprocess.seed)
    preset: str  # a name of `presets`, or none, or auto
    presets: dict[str, dict[str, dict[str, Any]]]  # preset -> workload or `all` -> dotted name -> value
    blocks: dict[str, Workload]  # as written; `load_workload` applies the preset

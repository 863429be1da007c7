"""A small training without files: random sequences, and a trainer at its start."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.params.schema import Augment, Train
from tests.networks import GRU, Transformer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from tandem.training.batches import Split
    from tandem.training.trainer import Trainer

SETTINGS = Train(
    model=GRU(name="gru", hidden_size=8, num_layers=2, bidirectional=True, dropout=0.2),
    augment=Augment(coupled_features=2, mix=0.1, shift=0.1, warp=0.1),
    epochs=4, warmup_epochs=1, batch_size=16, grad_accum_steps=1, precision="fp32",
    step="eager", probe=False,
    learning_rate=1e-2, weight_decay=0.01, schedule="one-cycle", max_grad_norm=1.0,
    label_smoothing=0.1, threads=1, deterministic=True,
)  # fmt: skip
TRANSFORMER = Transformer(
    name="transformer", hidden_size=64, num_layers=2, num_heads=4, feedforward_size=256, dropout=0.0,
    checkpoint_activations=False,
)  # fmt: skip


SUMMARIES: dict[str, dict[str, Any]] = {
    "classify": {"classes": ["a", "b", "c"]},
    "regress": {"target": {"name": "x", "mean": 5.0, "std": 2.0}},
    "detect": {
        "classes": ["none", "hit", "bounce"],
        "features": ["x", "y", "z"],
        "num_per_class": {"train": {"none": 50, "hit": 9, "bounce": 8}},
    },
    "forecast": {"num_outputs": 3, "mean": [0.0], "std": [1.0], "target": {"name": "x", "transform": "difference"}},
}


def tensors(num_sequences: int = 50, num_steps: int = 9, task: str = "classify") -> dict[str, "Tensor"]:
    """Random sequences of 4 features and of unequal lengths, except the windows of a forecast; of `detect`, each with
    one event.
    """
    import torch

    draw = torch.Generator().manual_seed(3)
    values = torch.randn(num_sequences, num_steps, 4, generator=draw)
    lengths = torch.randint(3, num_steps + 1, (num_sequences, 1), generator=draw)
    if task == "forecast":
        lengths = torch.full_like(lengths, num_steps)
    mask = torch.arange(num_steps) < lengths
    targets = torch.randint(0, 3, (num_sequences,), generator=draw)
    if task == "detect":
        frames = torch.rand(num_sequences, 1, generator=draw) * lengths
        targets = (torch.arange(num_steps) == frames.long()) * (1 + targets[:, None] % 2)
    if task in ("regress", "forecast"):
        targets = torch.randn(num_sequences, *([3] if task == "forecast" else []), generator=draw)
    values = values.masked_fill(~mask.unsqueeze(2), 0.0)
    return {"values": values, "mask": mask, "targets": targets}


def full_tensors(num_steps: int, features: int = 4) -> dict[str, "Tensor"]:
    """64 sequences of three classes, without padding."""
    import torch

    torch.manual_seed(0)
    values, mask = torch.randn(64, num_steps, features), torch.ones(64, num_steps, dtype=torch.bool)
    return {"values": values, "mask": mask, "targets": torch.arange(64) % 3}


def identity(device: str) -> dict:
    return {"kind": device, "name": device, "driver": None}


def trainer_on(
    split: "Split", settings: Train, task_name: str = "classify", model: "Module | None" = None, seed: int = 0
) -> "Trainer":
    """A training on a split, from its start, on one thread."""
    import torch

    from tandem import models
    from tandem.tasks import open_task
    from tandem.training.opening import trainer_class

    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, (_, num_steps, features) = open_task(task_name, SUMMARIES[task_name]), split.tensors["values"].shape
    shape = models.Shape(features, task.num_outputs, num_steps, task.per_step)
    model = models.build(settings.model, shape) if model is None else model
    return trainer_class(settings.model)(model.to(split.device.torch_device), split, split, settings, task, seed)


def new_trainer(device: str, data_location: str, folder: Path, settings: Train = SETTINGS) -> "Trainer":
    """A small training on random sequences in a file, from its start."""
    from safetensors.torch import save_file

    from tandem.training.batches import load_split
    from tandem.training.execution import open_device

    opened = open_device(identity(device), threads=1, deterministic=True, precision=settings.precision)
    path = folder / "split.safetensors"
    if not path.exists():
        save_file(tensors(), path)
    split = load_split(path, opened)
    if data_location == "device":
        split.make_resident()
    return trainer_on(split, settings)


Outcome = tuple[dict[str, "Tensor"], list[float]]  # the weights, and the training loss of each epoch


def finish(trainer: "Trainer") -> Outcome:
    """Train to the end."""
    losses = []
    while trainer.epochs_done < trainer.settings.epochs:
        losses.append(trainer.train_epoch().train_loss)
    return {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}, losses


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    assert one[1] == other[1] and one[0].keys() == other[0].keys()
    for name, weight in one[0].items():
        assert weight.equal(other[0][name]), name

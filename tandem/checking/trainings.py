"""The checks that train a network for some steps."""

import io
import math
import time
from bisect import bisect_right
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tandem.checking import Finding
from tandem.checking.outputs import OTHER
from tandem.checking.reads import record_reads
from tandem.checking.subject import BATCH_SIZE, ROUNDING, Subject, relative_difference, train
from tandem.diagnosis.sweep import measure_size
from tandem.models import Shape
from tandem.params.schema import BUILT_IN
from tandem.parts import Part
from tandem.training.batches import Batch
from tandem.training.context import small_batch_refusal
from tandem.training.graphs import NUM_WARMUPS
from tandem.training.optimizer import AdamW
from tandem.training.trainer import Trainer

NUM_GRADIENTS = 3  # steps in which every parameter must get a gradient; a last layer of zeros passes none at first
FAR = 2.0  # times the loss of outputs that are all 0
NUM_OVERFIT, NUM_BETWEEN, OVERFIT_SECONDS = 300, 10, 10.0  # steps, steps between two evaluations, time limit
USUAL_RATE = 1e-2  # learning rate of the overfitting check
OVERFITTED = 0.5  # of the loss of the best constant outputs
NEGLIGIBLE = 0.01  # if the loss of constant outputs is smaller, all targets are equal
CONSTANT_STEPS, CONSTANT_RATE = 200, 0.1  # of the optimizer that finds these outputs
FACTOR = 5.0  # times the step time or memory of the built-in network
MAX_HIDDEN = 2**15  # of that network
NUM_ROUNDS, ROUND_SECONDS = 3, 0.1


def repeatability(subject: Subject) -> Finding:
    """The network takes the smallest batch of the real training, and two short trainings give the same bits."""
    trainer = subject.trainer()
    if not trainer.closed_form:
        refusal = small_batch_refusal(trainer.model, trainer.train_split, subject.num_sequences, subject.settings)
        if refusal:
            return Finding("fail", refusal)
    losses, weights = subject.trained
    if not all(map(math.isfinite, losses)):
        return Finding("fail", f"the loss of a short training is {losses[-1]}")
    if subject.device.type == "cuda" and not subject.settings.deterministic:
        return Finding("skip", "params.yaml sets train.deterministic to false")
    if differing := first_difference(subject.trained, train(subject.trainer())):
        return Finding("fail", f"two trainings from the same seed differ in {differing}, so no run can be repeated")
    return Finding("pass", f"two trainings of {len(losses)} epochs give the same {len(weights)} tensors, to the bit")


def resume(subject: Subject) -> Finding:
    """A training that is resumed after an epoch gives the bits of an uninterrupted one."""
    first, saved = subject.trainer(), io.BytesIO()
    losses = [first.epoch().train_loss]
    torch.save(first.state(), saved)
    saved.seek(0)
    second = subject.trainer()
    second.restore(torch.load(saved, weights_only=True))
    more, weights = train(second)
    if differing := first_difference(subject.trained, (losses + more, weights)):
        return Finding(
            "fail",
            f"a training resumed after an epoch differs from an uninterrupted one in {differing}; keep all state in "
            "parameters or buffers",
        )
    return Finding("pass", "a training resumed after an epoch gives the bits of an uninterrupted one")


def first_difference(one: tuple[list[float], dict[str, Tensor]], other: tuple[list[float], dict[str, Tensor]]) -> str:
    """What differs first between two trainings, or ""."""
    for number, (loss, other_loss) in enumerate(zip(one[0], other[0], strict=True), 1):
        if loss != other_loss:
            return f"the loss of epoch {number} ({loss!r} and {other_loss!r})"
    return next((name for name, tensor in one[1].items() if not torch.equal(tensor, other[1][name])), "")


def batch_statistics(subject: Subject) -> Finding:
    """In training mode, the output of a sequence does not depend on the other sequences in the batch."""
    values, mask = subject.inputs()
    half = max(1, len(values) // 2)
    outputs = []
    for inputs in (values, torch.cat([values[:half], OTHER * values[half:]])):
        network = subject.network().train()
        torch.manual_seed(0)  # dropout draws the same
        with torch.no_grad():
            outputs.append(network(inputs, mask)[:half])
    found = relative_difference(outputs[1], outputs[0])
    if found <= ROUNDING:
        return Finding("pass", "in training mode an output does not depend on the other sequences in the batch")
    modules = network.named_modules()
    norms = [name for name, module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    named = f" ({', '.join(norms)})" if norms else ""
    return Finding(
        "warn",
        f"in training mode other sequences in the batch change an output by {found:.0%} of the largest one{named}, so "
        "micro-batches (grad_accum_steps, out-of-memory fallbacks) and several workers change the result",
    )


def device_reads(subject: Subject) -> Finding:
    """A step reads nothing from the device, and on a GPU it can be captured."""
    trainer = subject.trainer()
    batch = trainer.one_batch(BATCH_SIZE)
    with record_reads(subject.device) as reads:
        trainer.step.update(batch)
    if reads:
        lines = ", ".join(f"{line} ({what})" for line, what in reads.items())
        return Finding(
            "warn", f"a step reads from the device in {lines}: each read waits for the GPU and prevents a CUDA graph"
        )
    if subject.device.type == "cuda":
        captured = subject.trainer(step="auto")
        step = captured.step.repeated(batch)
        for _ in range(NUM_WARMUPS + 1):
            step()
        if captured.step.gave_up_reason:
            return Finding("warn", f"a step is not captured as a CUDA graph, because {captured.step.gave_up_reason}")
        taken = captured.step.eager_reason or "it is captured as a CUDA graph"
        return Finding("pass", f"a step reads nothing from the device; {taken}")
    return Finding("pass", "a step reads nothing from the device")


def gradients(subject: Subject) -> Finding:
    """Every parameter gets a gradient in one of the first steps."""
    trainer = subject.trainer()
    batch = trainer.one_batch(BATCH_SIZE)
    left = {name: each for name, each in trainer.model.named_parameters() if each.requires_grad}
    num = len(left)
    for _ in range(NUM_GRADIENTS):
        trainer.step.update(batch)
        left = {name: each for name, each in left.items() if each.grad is None or not each.grad.any()}
    if left:
        return Finding(
            "warn",
            f"no gradient reaches {', '.join(left)}: these parameters keep their initial values, and several workers "
            "cannot train a network with unused parameters",
        )
    return Finding("pass", f"a gradient reaches each of {num} parameters")


def initial_loss(subject: Subject) -> Finding:
    """Before training, the loss is about that of outputs that are all 0."""
    trainer = subject.trainer()
    batch = trainer.one_batch(BATCH_SIZE)
    with torch.no_grad():
        outputs = trainer.model(*batch.inputs())
        loss, guessing = (
            trainer.task.loss(each, batch.targets, batch.mask, 0.0).item()
            for each in (outputs, torch.zeros_like(outputs))
        )
    if loss <= FAR * guessing:
        return Finding("pass", f"the initial loss is {loss:.3g}; if all outputs are 0 it is {guessing:.3g}")
    return Finding(
        "warn",
        f"the initial loss is {loss:.3g}, but {guessing:.3g} if all outputs are 0, so the first epochs only reduce "
        "large outputs; scale the last layer's initial weights down",
    )


def overfitting(subject: Subject) -> Finding:
    """The network overfits one batch, with the workload's learning rate or with a usual one."""
    trainer = subject.trainer()
    batch = trainer.one_batch(BATCH_SIZE)
    constant, deadline = constant_loss(subject, trainer, batch), time.monotonic() + OVERFIT_SECONDS
    if hasattr(trainer.model, "fit_initial"):
        return Finding("skip", f"{subject.model.name} starts from weights that are fitted to the data")
    if constant < NEGLIGIBLE:
        return Finding("skip", "all targets of the batch are equal")
    for rate in (subject.settings.learning_rate, USUAL_RATE):
        num_steps, loss = overfit(subject.trainer(), batch, rate, OVERFITTED * constant, deadline)
        reached = (
            f"{num_steps} steps at a learning rate of {rate:g} bring the loss of {len(batch)} sequences to {loss:.3g}; "
            f"with the best constant outputs it is {constant:.3g}"
        )
        if loss <= OVERFITTED * constant:
            return Finding("pass", reached)
        if time.monotonic() > deadline:
            return Finding("skip", f"{reached}, and more steps would take longer than {OVERFIT_SECONDS:g} s")
    return Finding("warn", f"{reached}; a network that cannot learn one batch cannot learn the data")


def overfit(trainer: Trainer, batch: Batch, rate: float, enough: float, deadline: float) -> tuple[int, float]:
    """Train on one batch until its loss in eval mode is `enough`. Returns the number of steps and the loss."""
    optimizer = AdamW(trainer.model.parameters(), lr=rate, weight_decay=0.0)
    num_steps, loss = 0, math.inf
    while num_steps < NUM_OVERFIT and not loss <= enough and time.monotonic() < deadline:
        trainer.model.train()
        for _ in range(NUM_BETWEEN):
            optimizer.zero_grad()
            loss_of(trainer, batch).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            optimizer.step()
        num_steps += NUM_BETWEEN
        trainer.model.eval()
        with torch.no_grad():
            loss = loss_of(trainer, batch).item()
    return num_steps, loss


def loss_of(trainer: Trainer, batch: Batch) -> Tensor:
    """The loss of a batch without teacher forcing or label smoothing."""
    return trainer.task.loss(trainer.model(batch.values, batch.mask), batch.targets, batch.mask, 0.0)


def constant_loss(subject: Subject, trainer: Trainer, batch: Batch) -> float:
    """The smallest loss of outputs that are the same for all sequences and steps."""
    shape = subject.shape.outputs(*batch.mask.shape)
    constant = nn.Parameter(torch.zeros(shape[-1], device=trainer.device))
    optimizer = AdamW([constant], lr=CONSTANT_RATE, weight_decay=0.0)
    for _ in range(CONSTANT_STEPS):
        optimizer.zero_grad()
        loss = trainer.task.loss(constant.expand(shape), batch.targets, batch.mask, 0.0)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def cost(subject: Subject) -> Finding:
    """Step time and memory, compared with a GRU of the same number of parameters."""
    size = subject.settings.batch_size
    own = subject.trainer(step="auto")
    num = num_parameters(own.model)
    model = gru_of(num, subject.shape)
    other = subject.trainer(step="auto", model=model)
    rounds = [[measure_size(trainer, size, ROUND_SECONDS) for trainer in (own, other)] for _ in range(NUM_ROUNDS)]
    (seconds, mib), (gru_seconds, gru_mib) = (
        min(((size / point.samples_per_second, point.peak_mib) for point in points if point), default=(math.inf, 0.0))
        for points in zip(*rounds, strict=True)
    )
    if math.isinf(seconds):
        return Finding("warn", f"a step with the batch of {size} does not fit into memory, so the training splits it")
    summary = (
        f"a step of {size} sequences takes {1000 * seconds:.3g} ms and {mib:.3g} MiB; a gru with "
        f"{num_parameters(other.model):,} parameters takes {1000 * gru_seconds:.3g} ms and {gru_mib:.3g} MiB"
    )
    if seconds > FACTOR * gru_seconds or mib > FACTOR * gru_mib:
        return Finding("warn", f"{summary}: look for Python loops over steps and for large intermediate tensors")
    return Finding("pass", summary)


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def gru_of(num: int, shape: Shape) -> Part:
    """A built-in GRU with at most `num` parameters, if possible."""

    def config(hidden_size: int) -> Part:
        schema: Callable[..., Part] = BUILT_IN["gru"].schema
        return schema(name="gru", hidden_size=hidden_size, num_layers=1, bidirectional=True, dropout=0.1)

    def count(hidden_size: int) -> int:
        with torch.device("meta"):
            return num_parameters(config(hidden_size).build(shape))

    return config(max(1, bisect_right(range(1, MAX_HIDDEN), num, key=count)))

"""The checks that train a network for some steps."""

import io
import math

import torch
from torch import Tensor, nn

from tandem.checking import Finding
from tandem.checking.outputs import OTHER
from tandem.checking.subject import BATCH_SIZE, ROUNDING, Subject, relative_difference, train
from tandem.training.network_checks import small_batch_refusal
from tandem.training.step import take_step
from tandem.training.trials import one_batch, without_trace

MAX_NAMED = 4  # parameters
NUM_GRADIENTS = 3  # steps in which every parameter must get a gradient; a last layer of zeros passes none at first


def repeatability(subject: Subject) -> Finding:
    """The network takes the smallest batch of the real training, and two short trainings give the same bits."""
    trainer = subject.trainer()
    if not trainer.is_fitted:
        refusal = small_batch_refusal(trainer.model, trainer.train_split, subject.num_sequences, subject.settings)
        if refusal:
            return Finding("fail", refusal)
    losses, weights = subject.trained
    if not all(map(math.isfinite, losses)):
        return Finding("fail", f"the loss of a short training is {losses[-1]}")
    if subject.device.is_accelerator and not subject.settings.deterministic:
        return Finding("skip", "params.yaml sets train.deterministic to false")
    if differing := first_difference(subject.trained, train(subject.trainer())):
        return Finding("fail", f"two trainings from the same seed differ in {differing}, so no run can be repeated")
    return Finding("pass", f"two trainings of {len(losses)} epochs give the same {len(weights)} tensors, to the bit")


def resume(subject: Subject) -> Finding:
    """A training that is resumed after an epoch gives the bits of an uninterrupted one."""
    interrupted, saved = subject.trainer(), io.BytesIO()
    losses = [interrupted.train_epoch().train_loss]
    torch.save(interrupted.state(), saved)
    saved.seek(0)
    resumed = subject.trainer()
    resumed.restore(torch.load(saved, weights_only=True))
    later_losses, weights = train(resumed)
    if differing := first_difference(subject.trained, (losses + later_losses, weights)):
        return Finding(
            "fail",
            f"a training resumed after an epoch differs from an uninterrupted one in {differing}; keep all state in "
            "parameters or buffers",
        )
    return Finding("pass", "a training resumed after an epoch gives the bits of an uninterrupted one")


def first_difference(
    first: tuple[list[float], dict[str, Tensor]], second: tuple[list[float], dict[str, Tensor]]
) -> str:
    """What differs first between two trainings, or ""."""
    for number, (loss, other_loss) in enumerate(zip(first[0], second[0], strict=True), 1):
        if loss != other_loss:
            return f"the loss of epoch {number} ({loss!r} and {other_loss!r})"
    return next((name for name, tensor in first[1].items() if not torch.equal(tensor, second[1][name])), "")


def threads(subject: Subject) -> Finding:
    """The number of threads changes no bit of a step on the CPU."""
    if subject.device.is_accelerator:
        return Finding("skip", "the GPU computes, and one thread launches its work")
    trainer = subject.trainer(batch_size=subject.settings.batch_size)
    batch, results = one_batch(trainer, subject.settings.batch_size), []
    for number in (1, 2):
        with without_trace(trainer):
            torch.set_num_threads(number)
            loss = take_step(trainer.step, batch)
            gradients = {
                key: weight.grad.clone() for key, weight in trainer.model.named_parameters() if weight.grad is not None
            }
            results.append({"the loss": loss, **gradients})
    if differing := [name for name, tensor in results[0].items() if not torch.equal(tensor, results[1][name])]:
        return Finding(
            "warn",
            f"two threads change the last bits of {', '.join(differing[:MAX_NAMED])}, so `threads: auto` keeps the "
            "number with which it begins, and the result depends on it",
        )
    return Finding("pass", "two threads give the gradients of one thread, to the bit")


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
    change = relative_difference(outputs[1], outputs[0])
    if change <= ROUNDING:
        return Finding("pass", "in training mode an output does not depend on the other sequences in the batch")
    modules = network.named_modules()
    norms = [name for name, module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    named = f" ({', '.join(norms)})" if norms else ""
    return Finding(
        "warn",
        f"in training mode other sequences in the batch change an output by {change:.0%} of the largest one{named}, so "
        "micro-batches (grad_accum_steps, out-of-memory fallbacks) and several workers change the result",
    )


def gradients(subject: Subject) -> Finding:
    """Every parameter gets a gradient in one of the first steps."""
    trainer = subject.trainer()
    batch = one_batch(trainer, BATCH_SIZE)
    unused = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    num_parameters = len(unused)
    for _ in range(NUM_GRADIENTS):
        with trainer.execution.active():
            take_step(trainer.step, batch)
        unused = {name: weight for name, weight in unused.items() if weight.grad is None or not weight.grad.any()}
    if unused:
        return Finding(
            "warn",
            f"no gradient reaches {', '.join(unused)}: these parameters keep their initial values, and several workers "
            "cannot train a network with unused parameters",
        )
    return Finding("pass", f"a gradient reaches each of {num_parameters} parameters")

"""The checks of a network's outputs in eval mode, without gradients."""

import torch
from torch import Tensor, nn

from tandem.checking import Finding
from tandem.checking.subject import DEVICE_ROUNDING, ROUNDING, Subject, outputs_of, relative_difference
from tandem.devices.graphs import with_line
from tandem.devices.memory import is_out_of_memory, shorten

GARBAGE = 123.0  # a value in the padding that no standardized data has
OTHER = -3.0  # factor of the sequences that are replaced in a batch


def build(subject: Subject) -> Finding:
    """The network can be built from its parameters."""
    network = subject.trainer().model
    if not isinstance(network, nn.Module):
        return Finding("fail", f"{subject.model.name} returns {type(network).__name__}, which is not a torch.nn.Module")
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    return Finding("pass", f"{subject.model.name} has {num_parameters:,} parameters")


def output(subject: Subject) -> Finding:
    """Shape, dtype and finite values, for a batch and for a single sequence."""
    network, shape = subject.network(), subject.shape
    for values, mask in (subject.inputs(), subject.inputs(1)):
        outputs = outputs_of(network, values, mask)
        if not isinstance(outputs, Tensor):
            return Finding("fail", f"forward returns {type(outputs).__name__} instead of a tensor")
        expected_shape = shape.outputs(*mask.shape)
        if outputs.shape != expected_shape:
            inputs = f"for values {tuple(values.shape)} and mask {tuple(mask.shape)}"
            return Finding("fail", f"forward returns {tuple(outputs.shape)} instead of {expected_shape} {inputs}")
        if outputs.dtype != torch.float32:
            return Finding("fail", f"forward returns {outputs.dtype} instead of torch.float32")
        if not real(outputs, mask, subject).isfinite().all():
            return Finding("fail", f"forward returns NaN or infinity for {len(mask)} sequences of the training split")
    names = "(B, T, num_outputs)" if shape.per_step else "(B, num_outputs)"
    return Finding("pass", f"finite float32 {names}, with num_outputs {shape.num_outputs}")


def randomness(subject: Subject) -> Finding:
    """Two passes in eval mode give the same bits."""
    network, inputs = subject.network(), subject.inputs()
    differ = relative_difference(outputs_of(network, *inputs), outputs_of(network, *inputs))
    if differ == 0:
        return Finding("pass", "two passes in eval mode give the same bits")
    return Finding("fail", f"two passes in eval mode differ by {differ:.2g} of the largest output, at random")


def padding(subject: Subject) -> Finding:
    """Neither the values in the padding nor more padding change the outputs of real steps."""
    values, mask = subject.inputs()
    num_steps = mask.shape[1]
    if not subject.has_padding:
        return Finding("skip", "the windows of a series have no padding")
    if num_steps == 1:
        return Finding("skip", "the sequences have a single step, so there is no padding")
    network = subject.network()
    longest = num_steps - max(1, num_steps // 4)
    mask = shortened(mask, longest)
    values = values.masked_fill(~mask.unsqueeze(2), 0.0)
    short, short_mask = values[:, :longest].contiguous(), mask[:, :longest].contiguous()
    try:
        expected = real(outputs_of(network, short, short_mask), short_mask, subject)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        message = f"{longest} instead of {num_steps} steps, as in a table for `tandem predict`, raise {shorten(error)}"
        return Finding("fail", with_line(error, message))
    garbage = short.masked_fill(~short_mask.unsqueeze(2), GARBAGE)
    by_values = relative_difference(real(outputs_of(network, garbage, short_mask), short_mask, subject), expected)
    by_length = relative_difference(real(outputs_of(network, values, mask), mask, subject), expected)
    if by_values <= ROUNDING and by_length <= ROUNDING:  # false for NaN
        return Finding("pass", f"padding changes an output by {max(by_values, by_length):.2g} of the largest one")
    return Finding(
        "fail",
        f"{GARBAGE:g} instead of 0 in the padding changes real outputs by {by_values:.2g} of the largest one, and "
        f"{num_steps - longest} more padded steps by {by_length:.2g}; use `mask` wherever steps are mixed",
    )


def batch_independence(subject: Subject) -> Finding:
    """In eval mode, the output of a sequence depends neither on the other sequences in the batch nor on its place."""
    network, (values, mask) = subject.network(), subject.inputs()
    half, expected = max(1, len(values) // 2), outputs_of(network, values, mask)
    of_last_batch = subject.num_sequences % subject.settings.batch_size or len(values)
    replaced = torch.cat([values[:half], OTHER * values[half:]])
    variants = [outputs_of(network, replaced, mask)[:half]]
    variants += [outputs_of(network, values[:size], mask[:size]) for size in (half, of_last_batch)]
    differences = [relative_difference(outputs, expected[: len(outputs)]) for outputs in variants]
    summary = f"other sequences in the batch change an output by {max(differences):.2g} of the largest one"
    if not all(difference <= ROUNDING for difference in differences):  # true for NaN
        return Finding("fail", f"in eval mode {summary}, so predictions depend on the batch size")
    reversed_batch = outputs_of(network, values.flip(0), mask.flip(0)).flip(0)
    by_place = relative_difference(reversed_batch, expected)
    if not by_place <= ROUNDING:
        return Finding(
            "fail",
            f"in eval mode the place of a sequence in the batch changes its output by {by_place:.2g} of the largest "
            "one, so predictions depend on the order of the sequences; the first dimension is the batch (B, T, F)",
        )
    return Finding("pass", f"{summary}, and its place in the batch by {by_place:.2g}, which is rounding")


def devices(subject: Subject) -> Finding:
    """The CPU and the GPU give the same outputs, up to rounding."""
    if not subject.device.is_accelerator:
        return Finding("skip", "this check needs a GPU")
    network, (values, mask) = subject.network(), subject.inputs()
    on_gpu = real(outputs_of(network, values, mask), mask, subject).cpu()
    mask = mask.cpu()
    on_cpu = real(outputs_of(network.cpu(), values.cpu(), mask), mask, subject)
    difference = relative_difference(on_gpu, on_cpu)
    summary = f"the GPU's outputs differ from the CPU's by {difference:.2g} of the largest one"
    if difference <= DEVICE_ROUNDING:
        return Finding("pass", f"{summary}, which is rounding")
    return Finding("fail", f"{summary}, which is more than rounding")


def shortened(mask: Tensor, longest: int) -> Tensor:
    """Limit the real steps (B, T) to `longest`, and those of every second sequence to half of it."""
    steps, rows = torch.arange(mask.shape[1], device=mask.device), torch.arange(len(mask), device=mask.device)
    limits = torch.where(rows % 2 == 0, longest, max(1, longest // 2))
    return mask & (steps < limits.unsqueeze(1))


def real(outputs: Tensor, mask: Tensor, subject: Subject) -> Tensor:
    """The outputs of real steps, or all outputs if there is one per sequence."""
    return outputs[mask] if subject.shape.per_step else outputs

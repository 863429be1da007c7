"""The learning rates, and torch's AdamW without importing torch._dynamo and without starting CUDA in a CPU training.

torch decorates the methods of its optimizers for torch.compile. The first call of each imports torch._dynamo, which
takes as long as `import torch`. No training here compiles its optimizer (`step: compile` compiles the model), so the
methods below are torch's own without the decorator.

If a GPU is visible, torch checks before each step whether the current CUDA stream is capturing. In a CPU training this
creates a context on the GPU: hundreds of MiB, and a process that `speed` would count as another user of the GPU. The
check prevents captures with `capturable=False`; `make_optimizer` sets `capturable` if steps are captured.
"""

import math
from inspect import unwrap

import torch
from torch import Tensor, nn

from tandem.params.schema import Train

WARMUP_SHARE = 0.3  # share of the steps of a one-cycle in which the rate rises
FIRST_SHARE, LAST_SHARE = 1 / 25, 1 / 250_000  # first and last rate of a one-cycle, relative to the largest


class UncompiledAdamW(torch.optim.AdamW):
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)

    def _accelerator_graph_capture_health_check(self) -> None:
        pass

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name in older torch versions


def make_optimizer(model: nn.Module, settings: Train, device: torch.device, is_captured: bool) -> UncompiledAdamW:
    """`is_captured`: whether its steps are captured as a CUDA graph, which reads a tensor at every replay. A Python
    number would keep its value from the capture.
    """
    rate = settings.learning_rate
    return UncompiledAdamW(
        # A model that fits itself may have buffers alone, and AdamW refuses an empty list.
        [*model.parameters()] or [nn.Parameter(torch.zeros(0, device=device))],
        lr=torch.tensor(rate, device=device) if is_captured else rate,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=is_captured,
    )


def learning_rates(settings: Train, num_steps: int) -> Tensor:
    """The learning rate of every step: (num_steps,) float32, computed in float64.

    Eager and captured steps both use this table, so their rates are identical.

    cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; one-cycle: Smith and Topin 2019, arXiv:1708.07120. Both equal
    torch's CosineAnnealingLR and OneCycleLR.
    """
    steps = torch.arange(num_steps, dtype=torch.float64)
    largest = settings.learning_rate
    if settings.schedule == "cosine":
        rates = between(largest, 0.0, steps / num_steps)
    else:
        top = WARMUP_SHARE * (num_steps + 1) - 1  # may lie between two steps
        rising = between(FIRST_SHARE * largest, largest, steps / top) if top > 0 else steps
        falling = between(largest, LAST_SHARE * largest, (steps - top) / (num_steps - top))
        rates = torch.where(steps <= top, rising, falling)
    return rates.to(torch.float32)


def between(first: float, last: float, done: Tensor) -> Tensor:
    """Interpolate from `first` to `last` on half a cosine; `done` runs from 0 to 1."""
    return last + (first - last) / 2 * (1 + torch.cos(math.pi * done))

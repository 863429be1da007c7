"""What changes by a plan: the learning rate from step to step, the share of teacher forcing from epoch to epoch."""

import torch

from stages.params.schema import TeacherForcing, Train

EXPONENTIAL_FLOOR = 0.01  # where an exponential decay towards 0 ends: a geometric series never reaches 0


def make_schedule(
    optimizer: torch.optim.Optimizer, params: Train, num_steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate of every step.

    cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; one-cycle: Smith and Topin 2019, arXiv:1708.07120.
    """
    if params.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
    # One step more than is taken: the scheduler is stepped after the last step too.
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=params.learning_rate, total_steps=num_steps + 1, cycle_momentum=False
    )


def as_numbers(schedule: dict[str, object]) -> dict[str, object]:
    """A schedule's state without tensors: the learning rate of a captured step is one, and the schedule copies it."""

    def number(value: object) -> object:
        return float(value) if isinstance(value, torch.Tensor) else value

    return {
        name: [number(each) for each in value] if isinstance(value, list) else number(value)
        for name, value in schedule.items()
    }


def teacher_share(config: TeacherForcing, epoch: int, epochs: int) -> float:
    """The share of true inputs in `epoch` (from 0) of `epochs`: Bengio et al. 2015, arXiv:1506.03099."""
    done = epoch / max(epochs - 1, 1)
    if config.decay == "linear":
        return config.start + (config.end - config.start) * done
    first, last = (max(share, EXPONENTIAL_FLOOR) for share in (config.start, config.end))
    return float(first * (last / first) ** done) if config.start else 0.0

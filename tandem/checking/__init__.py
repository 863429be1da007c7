"""Test a network before it is trained: `tandem check WORKLOAD`.

A check is a function `(Subject) -> Finding`. `CHECKS` in command.py lists all checks in order. subject.py gives them
the network and the data, outputs.py contains the checks without gradients, and trainings.py those that train.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check: `status` is pass, warn, fail, or skip if the check does not apply."""

    status: str
    evidence: str  # one sentence
    check: str = ""  # `run_checks` sets the name and the device
    device: str = ""

"""The energy that a GPU used in a region, from NVML's counter.

The counter covers the whole GPU, so the energy includes that of other processes. It is read only at the ends of a
region. Energy that is unknown is a sentence with the reason.
"""

import time

from tandem.machine import nvml

METHOD = "NVML's energy counter of the GPU"
# The shortest region: the driver samples power in steps of up to 0.1 s (Yang et al. 2023, arXiv:2312.02741).
MIN_SECONDS = 1.0
OF_CPU = "only a GPU's energy is measured: a processor's counters are readable by root only"


class Meter:
    """Measures the energy of a region, which begins when the meter is created. `uuid`: of the GPU; None on a CPU."""

    def __init__(self, uuid: str | None) -> None:
        self.uuid, self.begin, self.first = uuid, time.monotonic(), energy_of(uuid)

    def joules(self) -> float | str:
        """The energy since the meter was created, or the reason why it is unknown."""
        last, seconds = energy_of(self.uuid), time.monotonic() - self.begin
        if isinstance(self.first, str) or isinstance(last, str):
            return self.first if isinstance(self.first, str) else str(last)
        if seconds < MIN_SECONDS:
            return f"the energy counter needs regions of {MIN_SECONDS:g} s or more, but this one took {seconds:.2g} s"
        return last - self.first


def energy_of(uuid: str | None) -> float | str:
    """The joules since the driver was loaded, or the reason why they are unknown."""
    return nvml.cached_gpu(uuid).ask("energy_joules") if uuid else OF_CPU

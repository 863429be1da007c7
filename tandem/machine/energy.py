"""The energy that a device used in a region: from NVML's counter of a GPU, or from RAPL's of the processor packages.

A counter covers the whole device, so the energy includes that of other processes. It is read only at the ends of a
region. Energy that is unknown is a sentence with the reason.
"""

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tandem.machine import nvml
from tandem.machine.hardware import read_text

POWERCAP = Path("/sys/class/powercap")
FILES = ("energy_uj", "max_energy_range_uj")
MAX_PACKAGE_WATTS = 500.0  # no package draws more for long; decides whether a counter may have wrapped around twice


@dataclass(frozen=True)
class Reading:
    joules: float = 0.0  # since an arbitrary time
    num_gaps: int = 0  # how often the counter may have lost energy by then
    reason: str = ""  # why the energy is unknown


class GpuCounter:
    """The energy since the driver was loaded."""

    method = "NVML's energy counter of the GPU"
    # The shortest region: the driver samples power in steps of up to 0.1 s (Yang et al. 2023, arXiv:2312.02741).
    min_seconds = 1.0

    def __init__(self, uuid: str) -> None:
        self.gpu = nvml.cached_gpu(uuid)

    def read(self) -> Reading:
        found = self.gpu.ask("energy_joules")
        return Reading(reason=found) if isinstance(found, str) else Reading(found)


class CpuCounter:
    """The sum of all processor packages, since the first reading. It lacks main memory outside the packages."""

    method = "RAPL's energy counters of the processor packages"
    min_seconds = 0.02  # RAPL updates its counters about every 1 ms

    def __init__(self, powercap: Path) -> None:
        # Other zones are parts of a package (intel-rapl:0:0), its second interface (intel-rapl-mmio:0) or the whole
        # platform, which includes the packages (psys).
        zones = sorted(powercap.glob("intel-rapl:*"))
        self.packages = [zone for zone in zones if read_text(f"{zone}/name").startswith("package")]
        self.missing = "" if self.packages else f"no RAPL counters in {powercap} (most virtual machines have none)"
        self.last: list[int] = []
        self.joules, self.num_gaps, self.read_at = 0.0, 0, 0.0

    def read(self) -> Reading:
        if self.missing:
            return Reading(reason=self.missing)
        try:
            found, ranges = ([int((zone / name).read_text()) for zone in self.packages] for name in FILES)
        except PermissionError as error:
            return Reading(reason=f"{error.filename} is readable by root only")
        except (OSError, ValueError) as error:
            return Reading(reason=f"RAPL: {error}")
        now = time.monotonic()
        steps = [(new - old) % size for new, old, size in zip(found, self.last, ranges, strict=False)]  # wraps around
        self.joules += sum(steps) / 1e6
        self.num_gaps += bool(self.last) and now - self.read_at > min(ranges) / 1e6 / MAX_PACKAGE_WATTS
        self.last, self.read_at = found, now
        return Reading(self.joules, self.num_gaps)


Counter = GpuCounter | CpuCounter


class Meter:
    """Measures the energy of a region, which begins when the meter is created."""

    def __init__(self, counter: Counter) -> None:
        self.counter, self.begin, self.first = counter, time.monotonic(), counter.read()

    def joules(self) -> float | str:
        """The energy since the meter was created, or the reason why it is unknown."""
        last, seconds = self.counter.read(), time.monotonic() - self.begin
        if reason := self.first.reason or last.reason:
            return reason
        if seconds < self.counter.min_seconds:
            least = self.counter.min_seconds
            return f"the energy counter needs regions of {least:g} s or more, but this one took {seconds:.2g} s"
        if last.num_gaps > self.first.num_gaps:
            return f"the energy counter may have wrapped around more than once between two readings ({seconds:,.0f} s)"
        return last.joules - self.first.joules


@cache
def counter_of(uuid: str | None) -> Counter:
    """Return the counter of the GPU with that UUID; without one, of the CPU."""
    return GpuCounter(uuid) if uuid else CpuCounter(POWERCAP)

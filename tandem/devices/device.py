"""What Tandem asks of a device, and the answers of one that shares the processor's memory: a CPU.

Nothing else compares kinds of device. A new kind is a module of this package with a class `Kind` derived from `Device`
or from another kind; `detect` is all that it must have. Identities are read on every `dvc repro`, so these modules
import torch only when a device is opened.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tandem.devices.hardware import free_memory_bytes, memory_limit_bytes

if TYPE_CHECKING:
    import torch

    from tandem.devices.graphs import Graphs

Readings = dict[str, float | str]  # quantity (its name ends in its unit) -> number, or the reason why there is none


class Driver(Protocol):
    """What measures a device from outside. It raises nothing, because a reading must not end a training."""

    def read(self) -> Readings:
        """The quantities that a thread samples during a training (sampler.py), the same in each call."""

    def ask(self, name: str) -> float | str:
        """One quantity: a sampled one, or `energy_joules` since the driver was loaded."""

    def conditions(self) -> dict[str, Any]:
        """Limits and other processes at this moment, as far as they can be read."""


class Device:
    is_accelerator = False  # whether it has memory of its own, and calls return before their work is done
    collectives = backend = "gloo"  # the library that sums the gradients of several workers, and torch's words for it
    driver: Driver | None = None
    # Why there is no value: of what a driver measures, of the energy, of a CUDA graph.
    unmeasured = "the device is the CPU: there is no GPU to measure"
    no_energy = "only a GPU's energy is measured: a processor's counters are readable by root only"
    why_no_graph = "CUDA graphs need a CUDA device"
    graphs: Callable[[], Graphs]  # what captures steps, if there is no reason in `why_no_graph`
    copied_ahead: Callable[..., Iterator[list[torch.Tensor]]]  # copies batches while the device computes (copies.py)

    def __init__(self, index: int = 0) -> None:
        import torch

        self.torch_device = torch.device("cpu")

    def __repr__(self) -> str:
        return str(self.torch_device)

    @classmethod
    def name(cls) -> str:
        """`cpu`, `cuda`: as in params.yaml."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def detect(cls) -> tuple[dict[str, Any] | None, str]:
        """What does not change between runs, at least `name`; or None and the reason why there is no such device."""
        raise NotImplementedError

    @classmethod
    def require_several(cls, requested: str, num_workers: int, one: dict[str, Any]) -> None:
        """Raises ValueError if this machine has no device for each worker. `one`: what `detect` found."""

    @classmethod
    def require_same(cls, hardware: dict[str, Any]) -> None:
        """Raises ValueError if the device is not the one of results/hardware/devices/<device>.json."""

    def require_usable(self, hardware: dict[str, Any]) -> None:
        """Raises ValueError if torch cannot use what `detect` found."""

    @classmethod
    def versions(cls, hardware: Mapping[str, Any]) -> dict[str, str]:
        """The versions of the software that is for this kind of device only."""
        return {}

    def tags(self, hardware: dict[str, Any]) -> dict[str, str]:
        """The device, machine and software of a run, as flat text (MLflow tags)."""
        import torch

        return {
            "device": hardware["requested"] if "workers" in hardware else self.name(),
            "device.name": hardware["name"],
            "cpu.name": hardware["cpu"]["name"],
            "cpu.cores": f"{hardware['cpu']['cores']:g}",
            "cpu.memory_mib": str(hardware["cpu"]["memory_mib"]),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "os": platform.platform(),
            "host": platform.node(),
            **{name: value for name, value in hardware.items() if name.startswith("why_not_")},
            **({"workers": str(hardware["workers"])} if "workers" in hardware else {}),
        }

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""

    def join_workers(self) -> None:
        """Make this device the one that torch's collective operations use in this process."""

    def random_state(self) -> dict[str, torch.Tensor]:
        """The state of torch's generators. A repeated step or a resumed training needs it to draw the same dropout."""
        import torch

        return {"cpu": torch.get_rng_state()}

    def set_random_state(self, state: dict[str, torch.Tensor]) -> None:
        import torch

        torch.set_rng_state(state["cpu"].cpu())

    def precisions(self) -> tuple[str, ...]:
        """The precisions in which it computes itself, the usual one first; the others are refused or emulated."""
        return ("fp32", "bf16")

    def memory_bytes(self) -> tuple[int, int]:
        """The bytes that can currently be allocated, and all."""
        return free_memory_bytes(), memory_limit_bytes()

    def free_cache(self) -> None:
        """Give the memory that torch caches for it back, that of the device and pinned memory of the host."""

    def reset_peaks(self) -> None:
        """Begin a region whose peaks are measured."""

    def memory_mib(self) -> dict[str, float]:
        """`reserved` by torch now, and the region's peaks as fields of `Measurement`; or nothing: see `unmeasured`."""
        return {}

    def activities(self, step: Callable[[], Any]) -> list[tuple[str, float, float]]:
        """Name, start and end in microseconds of all that the device does in one step.

        Raises RuntimeError or AssertionError if they cannot be recorded.
        """
        return []

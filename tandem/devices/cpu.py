"""The processor and its memory. What `Device` does without being told is what a CPU does."""

from typing import Any

from tandem.devices.device import Device
from tandem.devices.hardware import cpu_name


class Kind(Device):
    @classmethod
    def detect(cls) -> tuple[dict[str, Any] | None, str]:
        return {"name": cpu_name()}, ""

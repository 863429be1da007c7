"""One workload on one device, as the files of the stages before describe it: what train and evaluate begin with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from stages.files import hardware_file, packed_dir, prepared_dir, read_json, run_dir
from stages.params.loading import load_workload
from stages.params.schema import Workload


@dataclass(frozen=True)
class JobFiles:
    workload: str
    device: str
    params: Workload
    identity: dict[str, Any]
    plan: dict[str, Any]
    summary: dict[str, Any]

    @classmethod
    def of(cls, workload: str, device: str) -> Self:
        return cls(
            workload,
            device,
            load_workload(workload),
            read_json(hardware_file(device)),
            read_json(packed_dir(workload, device) / "plan.json"),
            read_json(prepared_dir(workload) / "summary.json"),
            **cls.more(workload, device),
        )

    @classmethod
    def more(cls, workload: str, device: str) -> dict[str, Any]:
        """The fields that a kind of job adds."""
        return {}

    @property
    def folder(self) -> Path:
        return run_dir(self.workload, self.device)

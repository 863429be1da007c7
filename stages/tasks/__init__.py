"""What a workload asks of a model, one module each: the loss to train with, the prediction, the scores. Tasks know no files."""

import importlib
from types import ModuleType


def task_module(name: str) -> ModuleType:
    """The task's module; its name comes checked from stages/params.py."""
    return importlib.import_module(f"{__name__}.{name}")

"""How a stage fails (tandem/stage): one sentence on stderr and in `.tandem/last_error.json`, from an exception.

tandem/stage imports this module only after a failure.
"""

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from tandem.files import LAST_ERROR, REAL_ROOT, ROOT, STATE, own_line, write_text
from tandem.terminal.command import sentence_of
from tandem.terminal.messages import one_line

FAILED_KERNEL = ("device-side assert", "illegal memory access", "unspecified launch failure")  # CUDA's words
NOT_DETERMINISTIC = " does not have a deterministic implementation"  # torch's words


def fail_with(name: str, error: Exception) -> int:
    """Print the reason: one sentence for what a user can cause, a traceback for a mistake in Tandem's code."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] not in ("stages", "tandem", "flows"):
        return fail(name, missing_package(error))
    if isinstance(error, OSError | ValueError):
        return fail(name, sentence_of(error))
    line, (operation, is_random, _) = own_line(error, ROOT / "workloads"), str(error).partition(NOT_DETERMINISTIC)
    if is_random:
        reason = f"{operation} has no kernel on this device that gives the same bits again"
        reason += "; use another operation, or set train.deterministic to false"
        return fail(name, f"{line or 'the network or its loss'}: {reason}{keep_traceback(error)}")
    if any(message in str(error) for message in FAILED_KERNEL):
        reason = (
            "a kernel failed on the GPU, usually because an index or a class is out of range; torch noticed it only"
        )
        step = "train with devices: [cpu], which names the operation"
        return fail(name, f"{reason} at {line or 'a later operation'}; {step}{keep_traceback(error)}")
    if line:
        return fail(name, f"{line}: {type(error).__name__}: {error}{keep_traceback(error)}")
    traceback.print_exc()
    record_error(name, f"{type(error).__name__}: {error}")
    return 1


def missing_package(error: ModuleNotFoundError) -> str:
    """The sentence about a package that is not installed, or a module that is not there."""
    importer = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if importer.is_relative_to(ROOT / "workloads"):
        from tandem.parts import missing_import  # here, because pydantic may be the missing package

        return str(missing_import(importer, error.name or ""))
    return f"the package {error.name!r} is not installed here; `make repro` installs what Tandem needs"


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a file. Returns the end of a sentence that names it; empty if it cannot be written."""
    path = STATE / "last_traceback.txt"
    try:
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return ""
    return f"; {path.relative_to(REAL_ROOT)} has the traceback"


def fail(name: str, message: str, status: int = 1) -> int:
    message = one_line(message)
    print(f"error: {message}", file=sys.stderr, flush=True)
    record_error(name, message)
    return status


def record_error(name: str, message: str) -> None:
    """Write the reason where flows/dvc_run.py reads it. Never raises, because the stage has already failed."""
    # `run` distinguishes errors of this `make repro` or flow from older ones.
    entry = {"stage": name, "message": message, "run": os.environ.get("TANDEM_RUN")}
    with suppress(OSError):
        write_text(LAST_ERROR, json.dumps(entry), is_durable=False)

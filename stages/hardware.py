"""Write the dependencies of results that are not files: the machine, and the code and the parameters of each stage.

results/hardware/ contains

    devices/<device>.json           for every device in params.yaml (`auto`, `cpu`, `cuda`): every measuring stage
                                    depends on it, so DVC's cache never returns one machine's timing on another
    code/<workload>/<stage>.json    the files that the stage executes, each with a fingerprint
                                    (tandem/code_dependencies.py), because dvc.yaml cannot follow imports. For
                                    `compare` it includes the published results, which the report shows
    params/<workload>/<stage>.json  all parameters in force for the stage, with the preset and the defaults. DVC's key
                                    for the values in params.yaml has neither, and it leaves out every key named `size`
                                    or `nfiles` (treeverse/dvc#10296)

This stage runs on every `dvc repro`, so it does not import torch and reads torch's version from its files. It imports
pydantic, which takes 0.2 s, only if a file has changed that decides whether params.yaml is valid. It has its own
stages/dvc.yaml: DVC rewrites the lock of a stage that always runs, and this lock is short.
"""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem import files
from tandem.code_dependencies import Code, check_imports, fingerprint_code
from tandem.devices.cuda import NO_DRIVER
from tandem.devices.hardware import hardware_identity
from tandem.files import code_file, hardware_file, params_file
from tandem.runs import provenance

if TYPE_CHECKING:
    from tandem.parts import Part

write_json = partial(files.write_json, is_durable=False)  # not durable: the next run writes all of it again
# What an error says if this is an experiment in the workspace: DVC has written params.yaml, and removed results if
# workloads or devices changed.
RESTORE = (
    "; DVC has written params.yaml{removed}; to restore {what}, run `{command}`; if params.yaml has other changes to "
    "keep, such as a new workload, edit {values} instead of `git checkout`"
)
OWN = "workloads/"  # files of the workloads
PER_WORKLOAD = (
    "preprocess",
    "baseline",
    "preload",
    "train",
    "evaluate",
    "speed",
)  # `replicate` runs the code of `train`
VALIDATED = files.STATE / "validated.json"  # what the last valid params.yaml requests, with the digest of `inputs`
# The files that decide whether params.yaml is valid, and what it requests.
INPUTS = ("params.yaml", "stages/hardware.py", "tandem/*.py", "tandem/params/*.py", "tandem/models/*.py",
          "tandem/fitted/*.py", "tandem/tasks/*.py", "tandem/devices/*.py", "workloads/*/*.py",
          "workloads/*/data")  # fmt: skip


def main() -> None:
    is_in_place = "DVC_EXP_NAME" in os.environ and files.REAL_ROOT == files.ROOT
    if is_in_place:
        # DVC leaves in git's index the time and size of the params.yaml that it has written. If the committed one has
        # the same size, git takes them for equal, and `git checkout` does nothing, until the time is another second.
        written = (files.ROOT / "params.yaml").stat()
        os.utime(files.ROOT / "params.yaml", ns=(written.st_atime_ns, written.st_mtime_ns - 2 * 10**9))
    if refusal := provenance.refusal():  # said before hours of training
        print(f"warning: {refusal}; until then, a training records no commit and cannot be verified", flush=True)
    try:
        if files.REAL_ROOT != files.ROOT:
            require_data()
        contents = dependencies()
    except ValueError as error:
        raise ValueError(f"{error}{restore() if is_in_place else ''}") from None
    for path, content in contents.items():
        write_json(path, content)
    for path in files.HARDWARE.rglob("*.json"):  # DVC keeps this output, also where the stage fails
        if path not in contents:
            path.unlink()


def require_data() -> None:
    """Raises ValueError if git does not track the data of a workload, so that a copy of the project lacks it."""
    from tandem.params.loading import load_params
    from tandem.parts import absent_text

    for workload in load_params().workloads:
        if not files.raw_dir(workload).is_dir():
            raise ValueError(absent_text(files.raw_dir(workload)))


def restore() -> str:
    """Return how to undo what DVC did before this stage."""
    from tandem.params.reading import PARAMS, read_yaml

    before, now, command = provenance.committed_params(), read_yaml(PARAMS), "git checkout params.yaml"
    changed = [key for key in ("workloads", "devices") if before.get(key) != now.get(key)]
    if changed:
        command += " && dvc checkout --allow-missing"
    return RESTORE.format(
        removed=f" and removed results of other {' and '.join(changed)}" if changed else "",
        what="them" if changed else "it",
        command=command,
        values=" and ".join(f"`{key}`" for key in changed) or "the refused value",
    )


def dependencies() -> dict[Path, Any]:
    """The content of each file. Raises ValueError, before one is written, if params.yaml requests what is not here."""
    machine = hardware_identity("auto")
    requested = validated(machine)
    contents: dict[Path, Any] = {}
    for device in requested["devices"]:
        identity = contents[hardware_file(device)] = machine if device == "auto" else hardware_identity(device)
        print(f"{device}: {identity['kind']}, {identity['name']}")
        if (obstacle := identity.get("why_not_cuda", NO_DRIVER)) != NO_DRIVER:
            print(f"warning: {device} is the CPU, because {obstacle}")
    code = Code()
    for name, workload in requested["workloads"].items():
        if workload["preset"]:
            print(f"{name}: preset {workload['preset']}")
        for stage in PER_WORKLOAD:
            contents[code_file(stage, name)] = fingerprint_code(stage, workload["modules"], code)
            contents[params_file(stage, name)] = workload["params"][stage]
        paths = {file for stage in PER_WORKLOAD for file in contents[code_file(stage, name)] if file.startswith(OWN)}
        for file in sorted(paths):
            if file.endswith(".py"):  # beside the code there may be others, such as weights that it reads
                check_imports(files.ROOT / file)
        contents[code_file("preprocess", name)] |= workload["target"]
    published = {"docs/published.json": files.sha256_file(files.PUBLISHED)} if files.PUBLISHED.exists() else {}
    contents[code_file("compare")] = fingerprint_code("compare", {}, code) | published
    return contents


def validated(machine: dict[str, Any]) -> dict[str, Any]:
    """What `validate` returns, kept from the last run if no file of INPUTS, and not the machine, has changed since."""
    digest = inputs_digest(machine)
    with suppress(OSError, ValueError, LookupError, TypeError):
        cached = json.loads(VALIDATED.read_text(encoding="utf-8"))
        if cached["digest"] == digest:
            return dict(cached["requested"])
    requested = validate(machine)
    with suppress(OSError):  # without it, the next run only takes longer
        write_json(VALIDATED, {"digest": digest, "requested": requested})
    return requested


def inputs_digest(machine: dict[str, Any]) -> str:
    paths = sorted(path for pattern in INPUTS for path in files.ROOT.glob(pattern))
    digests = {files.relative(path): files.sha256_file(path) if path.is_file() else "folder" for path in paths}
    return files.digest([machine, digests])


def validate(machine: dict[str, Any]) -> dict[str, Any]:
    """What params.yaml requests: its devices, and for each workload to train the parameters in force and the modules of
    its components. Raises ValueError with one sentence if it is invalid.
    """
    from tandem.params import loading
    from tandem.params.own_components import modules_of
    from tandem.params.reading import PARAMS, read_yaml
    from tandem.params.schema import BUILT_IN

    params, raw = loading.load_params(), read_yaml(PARAMS)
    preset = loading.choose_preset(params.preset, params.presets, machine)
    workloads = {}
    for name in params.workloads:
        block = loading.with_preset(params, name, preset)
        if block.preprocess.component and not files.raw_dir(name).is_dir():
            folder = files.relative(files.raw_dir(name))
            raise ValueError(f"{folder}, a dependency of DVC, is missing; create it with a file that git tracks")
        if block.train.model.name not in BUILT_IN:  # the schema has checked the others
            check_network(name, block.train.model)
        task = block.own_task  # preprocess reads of it only the kind of target, without importing it
        target = {f"{files.relative(task.path)}: target": block.task_attributes.target} if task else {}
        values = ", ".join(f"{key}={value}" for key, value in loading.preset_changes(raw, name, preset).items())
        workloads[name] = {
            "modules": modules_of(name, block),
            "params": loading.in_force(block, preset),
            "target": target,
            "preset": values and f"{preset} sets {values}",
        }
    return {"devices": params.devices, "workloads": workloads}


def check_network(workload: str, model: "Part") -> None:
    """Run the network's own `check`."""
    from tandem.params.loading import line_of
    from tandem.params.parsing import prefixed
    from tandem.params.reading import PARAMS

    with prefixed(f"params.yaml, line {line_of(PARAMS, [workload, 'train', 'model'])}: {workload}.train.model"):
        model.component.run_check(model.parameters)

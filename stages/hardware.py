"""Write the dependencies of results that are not files: the machine, the code of each stage, and the preset in force.

results/hardware/ contains

    devices/<device>.json           for every device in params.yaml (`auto`, `cpu`, `cuda`): every measuring stage
                                    depends on it, so DVC's cache never returns one machine's timing on another
    code/<workload>/<stage>.json    the files that the stage executes, each with a fingerprint (tandem/closure.py),
                                    because dvc.yaml cannot follow imports. For `compare` it includes the published
                                    results, which the report shows
    presets/<workload>.json         the changes that the preset in force makes to the workload's block

This stage runs on every `dvc repro`, so it does not import torch and reads torch's version from its files. Its imports
take 0.3 s, most of it pydantic. It has its own stages/dvc.yaml: DVC rewrites the lock of a stage that always runs, and
this lock is short.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from tandem import files
from tandem.closure import Code, check_imports, closure, named_by
from tandem.files import code_file, hardware_file, preset_file
from tandem.machine.identity import identify
from tandem.params.loading import PARAMS, choose_preset, line_of, load_params, overrides_of, with_preset
from tandem.params.parsing import literal, prefixed
from tandem.params.schema import BUILT_IN
from tandem.parts import Part

write_json = partial(files.write_json, is_durable=False)  # not durable: the next run writes all of it again
RESTORE = (
    "; DVC has written params.yaml and removed results of other devices; to restore them, run "
    "`git checkout params.yaml && dvc checkout --allow-missing`"
)
OWN = "workloads/"  # files of the workloads
PER_WORKLOAD = ("preprocess", "preload", "train", "evaluate", "speed")


def main() -> None:
    try:
        contents = file_contents()
    except ValueError as error:
        is_experiment = "DVC_EXP_NAME" in os.environ and files.HOME == files.ROOT  # not in a copy
        raise ValueError(f"{error}{RESTORE if is_experiment else ''}") from None
    for path, content in contents.items():
        write_json(path, content)
    for path in files.HARDWARE.rglob("*.json"):  # DVC keeps this output, also where the stage fails
        if path not in contents:
            path.unlink()


def file_contents() -> dict[Path, Any]:
    """The content of each file. Raises ValueError, before one is written, if params.yaml requests what is not here."""
    params = load_params()
    contents: dict[Path, Any] = {}
    for device in params.devices:
        identity = contents[hardware_file(device)] = identify(device)
        print(f"{device}: {identity['kind']}, {identity['name']}")
    machine = identify("auto") if params.preset == "auto" else {}
    preset = choose_preset(params.preset, params.presets, machine)
    overrides: dict[str, Any] = {}
    for name in params.blocks:
        overrides[name] = overrides_of(params.presets, preset, name)
        contents[preset_file(name)] = {"preset": preset, "overrides": overrides[name]}
    code = Code()
    for name in params.workloads:
        block = with_preset(name, preset, overrides[name]) if overrides[name] else params.blocks[name]
        if block.preprocess.component and not files.raw_dir(name).is_dir():
            folder = files.relative(files.raw_dir(name))
            raise ValueError(f"there is no {folder}, on which DVC depends; make it, with a file in it that git keeps")
        if block.train.model.name not in BUILT_IN:  # the schema has checked the others
            check_network(name, block.train.model)
        named = named_by(name, block)
        for stage in PER_WORKLOAD:
            contents[code_file(stage, name)] = closure(stage, named, code)
        own = {file for stage in PER_WORKLOAD for file in contents[code_file(stage, name)] if file.startswith(OWN)}
        for file in sorted(own):
            check_imports(files.ROOT / file)
        if block.own_task:  # preprocess reads of it only the kind of target, without importing it
            target = {f"{files.relative(block.own_task.path)}: target": block.task_facts.target}
            contents[code_file("preprocess", name)] |= target
    beside = {"docs/published.json": files.sha256_file(files.PUBLISHED)} if files.PUBLISHED.exists() else {}
    contents[code_file("compare")] = closure("compare", {}, code) | beside
    return contents


def check_network(workload: str, model: Part) -> None:
    """Run the network's own `check` if its file or its parameters have changed since it last passed."""
    passed = files.STATE / "checked" / f"{workload}.json"
    now = {"sha256": files.sha256_file(model.component.path), "parameters": literal(model)}
    if passed.exists() and passed.read_text(encoding="utf-8") == json.dumps(now):
        return
    with prefixed(f"params.yaml, line {line_of(PARAMS, [workload, 'train', 'model'])}: {workload}.train.model"):
        model.component.run_check(model.parameters)
    files.write_text(passed, json.dumps(now))

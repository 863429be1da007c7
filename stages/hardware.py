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

from functools import partial
from itertools import chain

from tandem import files
from tandem.closure import Code, closure, named_by
from tandem.files import code_file, hardware_file, preset_file
from tandem.machine.identity import identify
from tandem.params.loading import PARAMS, choose_preset, line_of, load_params, load_workload, overrides_of, read_yaml
from tandem.params.parsing import prefixed
from tandem.params.schema import BUILT_IN, own_components

write_json = partial(files.write_json, is_durable=False)  # not durable: the next run writes all of it again
PER_WORKLOAD = ("preprocess", "preload", "train", "evaluate", "speed")


def main() -> None:
    params = load_params()
    for device in params.devices:
        identity = identify(device)
        write_json(hardware_file(device), identity)
        print(f"{device}: {identity['kind']}, {identity['name']}")
    machine = identify("auto") if params.preset == "auto" else {}
    preset = choose_preset(params.preset, params.presets, machine)
    for name in params.blocks:
        write_json(preset_file(name), {"preset": preset, "overrides": overrides_of(params.presets, preset, name)})
    code, raw = Code(), read_yaml(PARAMS)
    for name in params.workloads:
        for component in chain.from_iterable(own_components(name, raw[name]).values()):
            component.check_imports()
        block = load_workload(name)
        if block.preprocess.component and not files.raw_dir(name).is_dir():
            folder = files.relative(files.raw_dir(name))
            raise ValueError(f"there is no {folder}, on which DVC depends; make it, with a file in it that git keeps")
        if block.train.model.name not in BUILT_IN:  # the schema has checked the others
            with prefixed(f"params.yaml, line {line_of(PARAMS, [name, 'train', 'model'])}: {name}.train.model"):
                block.train.model.component.run_check(block.train.model.parameters)
        named = named_by(name, block)
        for stage in PER_WORKLOAD:
            write_json(code_file(stage, name), closure(stage, named, code))
    beside = {"docs/published.json": files.sha256_file(files.PUBLISHED)} if files.PUBLISHED.exists() else {}
    write_json(code_file("compare"), closure("compare", {}, code) | beside)

"""What a result depends on that is no file of its own: the machine, the code it runs through, and the preset in force.

Out: `results/hardware/<device>.json` for every device in params.yaml (`auto`, `cpu`, `cuda`): DVC's cache can never
hand one machine's timing to another, because every measuring stage depends on it.
`results/code/<workload>/<stage>.json`: the files that the stage runs through with a fingerprint each
(stages/closure.py), because dvc.yaml cannot follow imports; for `compare` also the published results, which it shows
beside one's own. And `results/presets/<workload>.json`: what the preset in force changes in the workload's block.

Runs on every `dvc repro`, so it imports no torch (whose version is read from its files). Most of the 0.3 s that its
imports take is pydantic. It has a dvc.yaml of its own (hw/): a stage that always runs makes DVC write its lock anew,
and this one is short.
"""

from functools import partial

from stages import files
from stages.closure import Code, closure, named_by
from stages.files import code_file, hardware_file, preset_file
from stages.machine.identity import identify
from stages.params.loading import load_params, load_workload
from stages.params.presets import choose_preset, overrides_of

write_json = partial(files.write_json, is_durable=False)  # it is all made anew on the next run
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
    code = Code()
    for name in params.workloads:
        named = named_by(load_workload(name))
        for stage in PER_WORKLOAD:
            write_json(code_file(stage, name), closure(stage, named, code))
    beside = {"docs/published.json": files.sha256_file(files.PUBLISHED)} if files.PUBLISHED.exists() else {}
    write_json(code_file("compare"), closure("compare", {}, code) | beside)

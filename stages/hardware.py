"""What a run depends on that is no file of its own: the machine, and which code a workload uses.

Out: `results/hardware/<device>.json` for every device in params.yaml (`auto`, `cpu`, `cuda`), which every measuring stage depends on, so
that DVC's cache can never hand one machine's timing to another. Holds only what stays the same from run to run; free memory, clocks and
UUIDs do not belong here. And `results/code/<workload>.json`: the sha256 of the model and the task that the workload names, because
dvc.yaml cannot say "the model this workload names" (its templates do not nest), and depending on every model would retrain every workload
when one model changes. And `results/presets/<workload>.json`: what the preset in force changes in the workload's block.

Runs on every `dvc repro`, so it takes milliseconds: torch is not imported, its version is read from its files. One stage for all devices
and workloads, because every stage that always runs makes DVC rewrite dvc.lock (0.15 s).
"""

from stages.files import ROOT, code_file, hardware_file, preset_file, sha256_file, write_json
from stages.machine.identity import identify
from stages.params.loading import load_params
from stages.params.presets import choose_preset, overrides_of


def main() -> None:
    params = load_params()
    for device in params.devices:
        identity = identify(device)
        write_json(hardware_file(device), identity)
        print(f"{device}: {identity['kind']}, {identity['name']}")
    machine = identify("auto") if params.preset == "auto" else {}
    preset = choose_preset(params.preset, params.presets, machine)
    for name, block in params.blocks.items():
        write_json(preset_file(name), {"preset": preset, "overrides": overrides_of(params.presets, preset, name)})
        files = [f"stages/models/{block.train.model.name}.py", f"stages/tasks/{block.task}.py"]
        write_json(code_file(name), {file: sha256_file(ROOT / file) for file in files})

"""`tandem check`: each planted fault is found by the check that is meant for it and by no other, and the built-in
networks pass.
"""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandem.checking.command import CHECKS, check_workload, run_checks
from tandem.checking.subject import BATCH_SIZE, Subject, spread
from tandem.models import Shape
from tandem.params.schema import MODELS
from tandem.tasks import open_task
from tandem.training.execution import open_device
from tandem.training.network_checks import smallest_part
from tests.models.test_models import CONFIGS
from tests.projects import MODEL, TINY, commit, make_project, python, run, stages_at_once, tandem
from tests.trainers import SETTINGS, SUMMARIES, identity, tensors

NET = """\
import numpy as np
import torch
from torch import nn

from tandem.models import Shape


class Good(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Linear(shape.num_features, 32)
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, shape.num_outputs)

    def states(self, values, mask):
        return torch.relu(self.embedding(values)).masked_fill(~mask.unsqueeze(2), 0.0)

    def pooled(self, values, mask):
        return self.states(values, mask).sum(dim=1) / mask.sum(dim=1, keepdim=True)

    def forward(self, values, mask):
        return self.head(torch.relu(self.hidden(self.pooled(values, mask))))
"""
FAULT = """

class {name}(Good):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        {init}

    def {method}(self, values, mask):
        {body}
"""


def fault(body: str, init: str = "pass", method: str = "forward") -> dict[str, str]:
    """The code of a network that differs from `Good` in one method."""
    return {"body": body, "init": init, "method": method}


# Network -> the check that finds it, its status, words of its evidence, and the network's code.
PLANTED: dict[str, tuple[str, str, list[str], dict[str, str]]] = {
    "NotBuilt": (
        "build", "fail", ["workloads/NotBuilt/net.py, line 28: ZeroDivisionError: division by zero"],
        fault("pass", "1 / 0"),
    ),
    "Raises": (
        "output", "fail", ["workloads/Raises/net.py, line {line}: RuntimeError: "],
        fault("return self.head(values)"),
    ),
    "WrongShape": (
        "output", "fail", ["(16, 3, 1) instead of (16, 3)"],
        fault("return Good.forward(self, values, mask).unsqueeze(2)"),
    ),
    "NotFinite": ("output", "fail", ["NaN"], fault("return Good.forward(self, values, mask).log()")),
    "RandomInEval": (
        "randomness", "fail", ["random"],
        fault("found = Good.pooled(self, values, mask)\n        return found + 0.01 * torch.randn_like(found)",
              method="pooled"),
    ),
    "UsesPadding": ("padding", "fail", ["`mask`"], fault("return self.embedding(values).mean(dim=1)", method="pooled")),
    "FixedLength": (
        "padding", "fail", ["net.py, line {line}: 9 instead of 12 steps, as in a table for `tandem predict`, raise"],
        fault("return self.wide((values * mask.unsqueeze(2)).flatten(1))", 
              "self.embedding, self.wide = nn.Identity(), nn.Linear(48, 32)", "pooled"),
    ),
    "NormalizesOverBatch": (
        "batch independence", "fail", ["depend on the batch size"],
        fault("found = Good.pooled(self, values, mask)\n        return found - found.mean(dim=0)", method="pooled"),
    ),
    "NeedsEvenBatch": (
        "batch independence", "fail", ["depend on the batch size"],
        fault("found = Good.pooled(self, values, mask)\n"
              "        return found * (1.0 if len(found) % 8 == 0 else 2.0)", method="pooled"),
    ),
    "EncodesTheBatch": (
        "batch independence", "fail", ["the place of a sequence in the batch", "(B, T, F)"],
        fault("found = Good.pooled(self, values, mask)\n        return found + self.positions[: len(found)]",
              "self.register_buffer('positions', torch.randn(500, 32))", "pooled"),
    ),
    "NotRepeatable": (
        "repeatability", "fail", ["the loss of epoch 1"],
        fault("found = Good.forward(self, values, mask)\n"
              "        return found * float(np.random.default_rng().random()) if self.training else found"),
    ),
    "NotResumable": (
        "resume", "fail", ["the loss of epoch 2", "buffers"],
        fault("self.count += self.training\n        return Good.forward(self, values, mask) * 0.99**self.count",
              "self.count = 0"),
    ),
    "DependsOnThreads": (
        "threads", "warn", ["two threads change the last bits of the loss, "],
        fault("return Good.forward(self, values, mask) * (1 + 0.001 * torch.get_num_threads())"),
    ),
    "BatchNorm": (
        "batch statistics", "warn", ["(norm)", "several workers"],
        fault("found = Good.pooled(self, values, mask)\n"  # (B, 32), whose statistics also depend on the threads
              "        return self.norm(torch.stack([found, found], dim=2)).mean(dim=2)",
              "self.norm = nn.BatchNorm1d(32)", "pooled"),
    ),
    "Unused": ("gradients", "warn", ["unused.weight, unused.bias"],
               fault("return Good.forward(self, values, mask)", "self.unused = nn.Linear(2, 2)")),
}  # fmt: skip
READS_NUMBER = fault("return Good.pooled(self, values, mask) * mask.any().item()", method="pooled")
GPU_ONLY = {
    "OtherOnGpu": (
        "CPU and GPU", "fail", ["more than rounding"],
        fault("return Good.forward(self, values, mask) * (1.01 if values.is_cuda else 1.0)"),
    ),
}  # fmt: skip
CHECK_ALL = """
import json
from dataclasses import asdict
from tandem.checking.command import check_workload
print(json.dumps({name: [asdict(each) for each in check_workload(name)] for name in NAMES}))
"""


def code_of(name: str) -> str:
    unplanted = {"Fine": fault("return Good.forward(self, values, mask)"), "ReadsNumber": READS_NUMBER}
    methods = unplanted.get(name) or (PLANTED | GPU_ONLY)[name][3]
    return NET + FAULT.format(name=name, **methods)


def make_planted(folder: Path, *names: str) -> Path:
    """A project with a workload for each network, without prepared data."""
    head, block = TINY.split("tiny:\n")
    blocks = [f"{name}:\n" + block.replace(MODEL, f'{{name: "net.py:{name}"}}') for name in names]
    project = make_project(folder, head.replace("[tiny]", f"[{', '.join(names)}]") + "".join(blocks))
    for name in names:
        shutil.copytree(project / "workloads/tiny", project / "workloads" / name)
        (project / "workloads" / name / "net.py").write_text(code_of(name))
    commit(project)
    return project


def findings_of(project: Path, *names: str) -> dict[str, list[dict[str, str]]]:
    """{network: its findings}, in one process: to import torch takes longer than the checks."""
    return dict(json.loads(python(project, f"NAMES = {names}\n{CHECK_ALL}").stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_planted(tmp_path_factory.mktemp("check") / "project", "Fine", *PLANTED)


@pytest.fixture(scope="module")
def found(project: Path) -> dict[str, list[dict[str, str]]]:
    return findings_of(project, "Fine", *PLANTED)


def remarks(findings: list[Any]) -> list[tuple[str, str]]:
    """(check, status) of what neither passed nor was skipped."""
    rows = [finding if isinstance(finding, dict) else vars(finding) for finding in findings]
    return [(row["check"], row["status"]) for row in rows if row["status"] in ("warn", "fail")]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_by_its_check_and_by_no_other(name: str, found: dict[str, list[dict[str, str]]]):
    check, status, words, _ = PLANTED[name]
    assert remarks(found[name]) == [(check, status)], found[name]
    evidence = next(finding["evidence"] for finding in found[name] if finding["check"] == check)
    # The first line of the method's body.
    line = next(number for number, text in enumerate(code_of(name).splitlines(), 1) if f"class {name}" in text) + 6
    assert all(word.format(line=line) in evidence for word in words), evidence


def test_a_check_is_skipped_only_for_a_reason(found: dict[str, list[dict[str, str]]]):
    assert [finding["check"] for finding in found["Fine"]] == [check.name for check in CHECKS]
    assert remarks(found["Fine"]) == []
    skipped = {finding["check"]: finding["evidence"] for finding in found["Fine"] if finding["status"] == "skip"}
    assert skipped == {"CPU and GPU": "this check needs a GPU"}


def test_every_check_has_a_planted_fault():
    assert {check for check, *_ in (PLANTED | GPU_ONLY).values()} == {check.name for check in CHECKS}


def test_a_last_batch_of_one_sequence_fails_in_the_check_and_in_training_with_a_size_to_choose(ready: Path):
    """BatchNorm refuses a single sequence. The last batch of 36 has one, or is split into parts of one."""
    net, params = ready / "workloads/tiny/net.py", ready / "params.yaml"
    net.write_text(code_of("BatchNorm").replace("torch.stack([found, found], dim=2)).mean(dim=2)", "found)"))
    block = params.read_text().replace(MODEL, '{name: "net.py:BatchNorm"}')
    block = block.replace("probe: false", "probe: true").replace("threads: 1", "threads: auto")  # as by default
    sized = "batch_size: {}\n    grad_accum_steps: {}"
    check = partial(tandem, ready, "check", "tiny", "--devices", "cpu", check=False)
    train = partial(stages_at_once, ready, "hardware", "train tiny cpu 0", check=False, publishes=False)
    for size, parts, words, choice, commands in (
        (7, 1, "36 sequences in batches of 7 (train.batch_size) leave one", 8, [check]),
        (16, 4, "36 sequences in batches of 16 (train.batch_size) in 4 parts (train.grad_accum_steps) leave one", 15,
         [check, train]),
    ):  # fmt: skip
        params.write_text(block.replace(sized.format(16, 1), sized.format(size, parts)))
        for command in commands:
            done = command()
            assert done.returncode == 1 and words in done.stdout and "a single sequence in training mode" in done.stdout
            assert f"use {choice} as train.batch_size" in done.stdout
    params.write_text(block.replace(sized.format(16, 1), sized.format(choice, parts)))
    checked = check()
    assert "single sequence" not in checked.stdout and checked.returncode == 0
    assert train().returncode == 0


@pytest.mark.parametrize(("num", "parts"), [(17, 1), (33, 1), (36, 4), (40, 8)])
def test_the_check_makes_no_batch_of_one_sequence_itself(num: int, parts: int):
    assert smallest_part(len(spread(tensors(num), parts)["mask"]), BATCH_SIZE, parts) > 1


def test_only_a_failed_check_makes_the_command_fail(project: Path):
    fails = tandem(project, "check", "UsesPadding", "--devices", "cpu", check=False)
    assert fails.returncode == 1 and "fail  cpu   padding: " in fails.stdout
    warns = tandem(project, "check", "Unused", "--devices", "cpu", "--json")
    document = json.loads(warns.stdout[warns.stdout.index("\n{") :])  # after the lines of stderr
    assert remarks(document["findings"]) == [("gradients", "warn")]


# The built-in networks --------------------------------------------------------------------------------------------


TASK_OF = {model: task for task, names in MODELS.items() for model in names}  # one of a network's tasks


def subject_of(task_name: str, model_name: str, device: str) -> Subject:
    opened = open_device(identity(device), threads=1, deterministic=True)
    settings = replace(
        SETTINGS, model=CONFIGS[model_name], augment=replace(SETTINGS.augment, mix=0.0, shift=0.0, warp=0.0)
    )
    task = open_task(task_name, SUMMARIES[task_name])
    shape = Shape(4, task.num_outputs, 12, task.per_step)
    data = tensors(40, 12, task_name)
    return Subject(settings, data, shape, task, opened, num_sequences=40, has_padding=task_name != "forecast")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("model_name", TASK_OF)
def test_every_built_in_network_passes(model_name: str, device: str):
    assert remarks([*run_checks(subject_of(TASK_OF[model_name], model_name, device))]) == []


@pytest.mark.parametrize("workload", ["sign", "pen", "price", pytest.param("rally", marks=pytest.mark.long)])
def test_the_four_workloads_pass(workload: str):
    assert remarks([*check_workload(workload, ["cpu"])]) == []


# CUDA graphs ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_gpu_that_computes_something_else_is_found(tmp_path: Path):
    project = make_planted(tmp_path / "project", *GPU_ONLY)
    for name, findings in findings_of(project, *GPU_ONLY).items():
        check, status, words, _ = GPU_ONLY[name]
        assert remarks(findings) == [(check, status)]
        assert all(word in str(findings) for word in words)


@pytest.mark.gpu
def test_a_failed_capture_names_the_line_that_prevents_it(tmp_path: Path):
    project = make_planted(tmp_path / "project", "ReadsNumber")
    code = """
from tandem.checking.subject import open_subject
from tandem.devices.hardware import detect_hardware
trainer = open_subject("ReadsNumber", detect_hardware("cuda")).trainer(step="graph", epochs=4)
trainer.train_epoch(), trainer.train_epoch()
print(trainer.execution.why_no_graph)
"""
    done = run(project, sys.executable, "-c", code)
    line = next(number for number, text in enumerate(code_of("ReadsNumber").splitlines(), 1) if ".item()" in text)
    assert f"the capture failed: workloads/ReadsNumber/net.py, line {line}: " in done.stdout

"""The contenders of the speed comparison do the same work, and what it measures is kept."""

import importlib.util
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, scaling, throughput
from benchmarks.contenders import (
    TUNED,
    Case,
    Contender,
    Over,
    accelerate,
    floor,
    graph_floor,
    lightning,
    loss_of,
    open_trainer,
    plain,
    plain_tuned,
    tandem,
)  # fmt: skip
from benchmarks.networks import Usual
from benchmarks.throughput import SIZES, flop_per_sample, measure_rounds, thread_counts
from stages.files import write_json
from stages.params.loading import load_params

CASES = [case for case in SIZES["guides"]() if case.name != "sign, batch 32"]
NAMES = [case.workload for case in CASES]
REFERENCE = Contender(plain)
PEERS = {
    "plain, Tandem's network": Contender(plain, options={"own_network": True}),
    "plain tuned": Contender(plain_tuned),
    "tandem": Contender(tandem, is_tandem=True),
    "floor": Contender(floor, is_tandem=True),
    "accelerate": Contender(accelerate),
    "lightning default": Contender(lightning),
    "lightning tuned": Contender(lightning, options=TUNED),
}


@pytest.fixture(autouse=True)
def _numerics_are_put_back() -> Iterator[None]:
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(threads)


def one_batch_long(case: Case) -> Case:
    """Without dropout, clipped hard, and with a single batch, so that all see the same one, if in another order."""
    settings = replace(case.settings, model=replace(case.settings.model, dropout=0.0), max_grad_norm=0.01)
    return replace(case, settings=settings, data=replace(case.data, num_sequences=settings.batch_size))


def first_step(case: Case, contender: Contender) -> torch.Tensor:
    """The gradient that a contender's first step takes, as one vector."""
    trainer = open_trainer(case, contender, "cpu")
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]

    def tick() -> None:
        raise Over

    with pytest.raises(Over):
        contender.loop(trainer, tick, contender, **contender.options)
    after = list(trainer.model.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    return torch.cat([parameter.grad.flatten() for parameter in after])


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_usual_networks_compute_what_tandems_do(case: Case):
    case = one_batch_long(case)
    ours, usual = open_trainer(case, PEERS["tandem"], "cpu"), open_trainer(case, REFERENCE, "cpu")
    assert isinstance(usual.model, Usual) and not isinstance(ours.model, Usual)
    batch = ours.one_batch(case.settings.batch_size)
    losses = [loss_of(trainer, trainer.model, [batch.values, batch.mask, batch.targets]) for trainer in (ours, usual)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for own, other in zip(ours.model.parameters(), usual.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_every_contender_takes_the_step_of_the_plain_loop(
    case: Case, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    peer = name.split()[0]
    if peer in ("accelerate", "lightning") and not importlib.util.find_spec(peer):
        pytest.skip(f"{peer} is not installed")
    monkeypatch.chdir(tmp_path)  # where Lightning leaves its log
    case = one_batch_long(case)
    expected, found = first_step(case, REFERENCE), first_step(case, PEERS[name])
    assert expected.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_a_larger_network_is_more_work_by_as_much_as_it_should_be():
    base = CASES[NAMES.index("sign")]
    flop = {size: flop_per_sample(scaling.changed(base, "width", size), "cpu") for size in (128, 512)}
    inputs = 64  # features
    assert flop[512] / flop[128] == pytest.approx(4 * (inputs + 512) / (inputs + 128), rel=0.1)
    assert flop_per_sample(scaling.changed(base, "batch", 64), "cpu") == pytest.approx(flop[128], rel=0.01)
    assert flop_per_sample(scaling.changed(base, "length", 40), "cpu") == pytest.approx(2 * flop[128], rel=0.1)


def test_a_size_that_lacks_memory_costs_no_other_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measure(case: Any, options: Any) -> dict[str, Any]:
        if case.workload == "pen":
            raise torch.OutOfMemoryError("CUDA out of memory. Planted")
        return {"name": case.name}

    file = tmp_path / "rounds.json"
    monkeypatch.setattr(throughput, "measure_case", measure)
    monkeypatch.setattr(sys, "argv", ["throughput.py", "--size", "huge", "--json", str(file)])
    throughput.main()
    assert len(json.loads(file.read_text())["cases"]) == 3
    assert "- not measured: CUDA out of memory. Planted\n" in capsys.readouterr().out


def test_every_round_is_kept_and_a_row_is_printed_for_every_contender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    options = ["--size", "guides", "--workloads", "price", "--contenders", "tandem", "plain tuned", "--rounds", "2"]
    file = tmp_path / "rounds.json"
    monkeypatch.setattr(sys, "argv", ["throughput.py", *options, "--seconds", "0.1", "--json", str(file)])
    throughput.main()
    kept, printed = json.loads(file.read_text()), capsys.readouterr().out
    (case,) = kept["cases"]
    assert list(case["contenders"]) == ["plain", "plain tuned", "tandem"]
    for name, about in case["contenders"].items():
        assert len(about["samples_per_second"]) == 2 and min(about["samples_per_second"]) > 0
        assert about["threads"] in thread_counts("cpu")
        assert f"\n| {name} | {about['threads']} | " in printed
    assert "[1.00, 1.00]" in next(line for line in printed.splitlines() if line.startswith("| plain |"))
    assert {f"fp32, {about['threads']} threads" for about in case["contenders"].values()} == {
        name for name, found in case["peak_flop_per_second"].items() if len(found) == 2
    }
    assert case["data"]["num_sequences"] == 64 * case["settings"]["batch_size"]


def test_a_contender_that_cannot_take_part_is_absent_with_its_reason_and_stops_nobody():
    case = CASES[NAMES.index("price")]
    entered = {"plain": (case, REFERENCE), "graph": (case, Contender(graph_floor, step="graph", is_tandem=True))}
    rounds = measure_rounds(entered, Namespace(rounds=2, seconds=0.05, device="cpu", thread_counts=[1]))
    assert len(rounds.rates["plain"]) == 2 and not rounds.rates["graph"]
    assert "CUDA graphs need a CUDA device" in rounds.missing_reasons["graph"]


def piece(name: str, *code: str, **changes: Any) -> gpu.Piece:
    commands = tuple(("-c", line) for line in code)
    return gpu.Piece(name, "nothing", commands, **{"seconds": 60.0, "needs_gpu": False, "in_copy": False, **changes})


@pytest.mark.long
def test_pieces_go_on_where_they_stopped_and_one_that_fails_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_json(tmp_path / "machine.json", gpu.machine()[0])
    count, broken = tmp_path / "count", tmp_path / "broken"
    broken.touch()
    begun, refused = f"open({str(count)!r}, 'a').write('x')", f"import os; assert not os.path.exists({str(broken)!r})"
    chosen = [
        piece("stops", begun, refused, "print('| 1 | 2 |')"),
        piece("slow", "import time; print('begun'); time.sleep(60)", seconds=2.0),
        piece("apart", refused, begun, are_independent=True),
        piece("gpu", begun, needs_gpu=True),
        piece("good", "print('12 passed in 3 s')"),
    ]

    def run_again(again: bool = False) -> str:
        gpu.run_all(chosen, tmp_path, "none here", 600.0, again)
        return capsys.readouterr().out

    printed = run_again()
    assert [gpu.state_of(tmp_path, each) for each in chosen] == ["failed", "failed", "failed", "skipped", "done"]
    assert "AssertionError" in printed and "gpu: skipped: no GPU: none here" in printed
    assert "begun" in printed and "its time was over" in printed
    broken.unlink()
    del chosen[1]
    printed = run_again()
    assert gpu.state_of(tmp_path, chosen[0]) == "done" and "good: done before" in printed
    assert count.read_text() == "xx", "a command that was done is not run again"
    assert "done before" not in run_again(again=True) and count.read_text() == "xxxx"
    text = gpu.table(chosen, tmp_path)
    assert "| gpu | nothing | skipped: no GPU: none here | 0 |" in text
    assert (
        "\n| 1 | 2 |\n" in text
        and "\n12 passed in 3 s\n" in text
        and f"torch {torch.__version__.split('+')[0]}" in text
    )


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    assert gpu.missing_packages() == ""
    monkeypatch.setitem(gpu.NEEDED, "no-such-package", "no_such.package")
    assert gpu.missing_packages().endswith("-m pip install no-such-package`")


def test_the_time_of_a_call_ends_it_and_another_machines_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    chosen = [piece("late", "print()")]
    gpu.run_all(chosen, tmp_path, "", 1.0, False)
    assert "the same command goes on here" in capsys.readouterr().out
    assert gpu.state_of(tmp_path, chosen[0]) == "not begun"
    identity = gpu.machine()[0]
    gpu.refuse_another_machine(tmp_path, identity)
    gpu.refuse_another_machine(tmp_path, identity)
    with pytest.raises(SystemExit, match="another machine or another torch"):
        gpu.refuse_another_machine(tmp_path, {**identity, "torch": "0.1"})


def test_what_is_measured_on_a_gpu_is_whole_and_fits_into_its_limits(tmp_path: Path):
    known = gpu.pieces(tmp_path, quick=False)
    assert all(each.seconds <= 540 for each in known) and len({each.name for each in known}) == len(known)
    for workload in load_params().workloads:
        assert {f"{workload}-cuda", f"{workload}-cpu"} <= {each.name for each in known}
    for each in known:
        for arguments in each.commands:
            assert arguments[0] == "-m" and importlib.util.find_spec(arguments[1])

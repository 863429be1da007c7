"""Which recorded runs are comparable, and which differences are named: planted differences on literal manifests."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import pytest

from tandem.comparing.comparability import Comparability, compare_sides
from tandem.params.parsing import INTRODUCED
from tandem.params.schema import Evaluate, OwnSequences, OwnSeries, OwnSource, SequenceTable, Series, Train
from tests.manifests import CPU, GPU, SPEED, changed, judge, run_of


def comparability(sides: dict[str, list[dict[str, Any]]]) -> Comparability:
    return compare_sides({name: list(map(run_of, manifests)) for name, manifests in sides.items()})


def test_a_record_without_a_key_means_the_value_that_the_key_had_when_it_was_introduced():
    complete = changed(CPU, **{"block.train.scaling": "strong", "block.train.loop": None})
    weak = changed(CPU, **{"block.train.scaling": "weak-linear"})
    assert comparability({"old": [CPU], "new": [complete]}).refusals == ()
    assert comparability({"old": [CPU], "new": [weak]}).refusals == ("different scaling (strong vs weak-linear)",)


# These keys were required before they got a default, so every record has them.
ALWAYS_RECORDED = {
    *(f"preprocess.{key}" for key in ("seed", "velocity", "missing", "stride")),
    *(f"train.{key}" for key in ("augment", "grad_accum_steps", "precision", "step", "probe", "weight_decay")),
    *(f"train.{key}" for key in ("schedule", "max_grad_norm", "label_smoothing", "threads", "deterministic")),
}


def test_every_key_with_a_default_says_what_records_without_it_mean():
    sources = (SequenceTable, Series, OwnSequences, OwnSeries)
    kinds = [*(("preprocess", kind) for kind in sources), ("train", Train), ("evaluate", Evaluate)]
    optional = {f"{section}.{key.name}" for section, kind in kinds for key in fields(kind) if is_left_out(kind, key)}
    assert optional - ALWAYS_RECORDED == set(INTRODUCED)


def is_left_out(kind: type, key: Field[Any]) -> bool:
    """Whether older records lack the key at its default. Those of own sources contain every value."""
    return key.default is not MISSING and (not issubclass(kind, OwnSource) or key.default in (None, ()))


def compare_manifests(first: dict[str, Any], second: dict[str, Any]) -> Comparability:
    names = [first["device"], second["device"]] if first["device"] != second["device"] else ["the first", "the second"]
    return comparability({names[0]: [first], names[1]: [second]})


def test_a_gpu_and_a_cpu_of_one_machine_are_compared_and_their_differences_named():
    result = compare_manifests(CPU, GPU)
    assert result.refusals == result.notes == ()
    assert [str(difference) for difference in result.named_differences] == [
        "device (cpu vs cuda)",
        "hardware (AMD EPYC 9654 96-Core Processor (family 25 mo... vs NVIDIA H100)",
        "threads (16 vs 1)",
        "kernels (Tandem's kernels vs cuDNN)",
        "step execution (eager vs graph)",
    ]
    assert compare_manifests(CPU, CPU).named_differences == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": "pen"}, "different workload (sign vs pen)"),
        ({"digests.data.table": "9" * 64}, "different data: raw table (11111111 vs 99999999)"),
        ({"digests.data.packed.test": "9" * 64}, "different data: packed test split (44444444 vs 99999999)"),
        ({"block.train.batch_size": 112}, "different batch_size (56 vs 112)"),
        ({"block.train.max_grad_norm": 1.0}, "different max_grad_norm (absent vs 1.0)"),
        ({"realized.precision": "tf32"}, "different precision (fp32 vs tf32)"),
        ({"digests.code.tandem/training/step": "9" * 64}, "different code: tandem/training/step (absent vs 99999999)"),
        ({"realized.out_of_memory": ["2 parts a batch"]}, "memory ran out while training on cuda (2 parts a batch)"),
        ({"conditions.between.other_processes": 1.0}, "cuda: other processes on its GPU (1 during the training)"),
    ],
)
def test_other_work_refuses_a_speed_up_and_says_both_values(changes: dict[str, Any], reason: str):
    gpu = changed(GPU, **changes)
    assert reason in compare_manifests(CPU, gpu).refusals
    message = judge({"cpu": [run_of(CPU)], "cuda": [run_of(gpu)]}, SPEED).speed
    assert message.startswith("no speed-up is reported: ") and reason in message


@pytest.mark.case(50)
def test_another_torch_or_driver_between_two_runs_is_flagged(saw: Callable[[str], None]):
    """Two manifests of one GPU, one of them with another torch, or with another driver."""
    torch, driver = (
        changed(GPU, **{"device": "cuda-later", f"environment.versions.{name}": version})
        for name, version in (("torch", "2.12.0"), ("driver", "580.9"))
    )
    message = judge({"cuda": [run_of(GPU)], "cuda-later": [run_of(torch)]}, SPEED).speed
    assert "torch (2.11.0 vs 2.12.0)" in message and message.startswith("no speed-up is reported")
    saw(message)
    notes = compare_manifests(GPU, driver).notes
    [note] = [note for note in notes if "driver" in note]
    assert "driver (570.1 vs 580.9)" in note
    saw(note)


def test_what_was_asked_for_may_differ_where_what_came_of_it_agrees():
    gpu = changed(
        GPU, **{"block.train.precision": "fp32", "block.train.threads": 4, "block.train.probe": False, "seed": 3}
    )
    result = compare_manifests(CPU, gpu)
    assert result.refusals == () and str(result.named_differences[-1]) == "seed (0 vs 3)"
    # A simulation has no table and no division into splits.
    sides = (changed(manifest, **{"digests.data.table": None, "digests.data.prepared": {}}) for manifest in (CPU, GPU))
    assert compare_manifests(*sides).refusals == ()


def test_kernels_that_params_yaml_turns_off_are_named_and_do_not_refuse_the_comparison():
    kernels = {"kernels": "Tandem's GRU, Tandem's dropout"}
    other = {"kernels": "torch's GRU, torch's dropout", "block.train.kernels": "torch"}
    result = compare_manifests(changed(CPU, **kernels), changed(CPU, **other))
    assert result.refusals == ()
    named = "kernels (Tandem's GRU, Tandem's dropout vs torch's GRU, torch's dropout)"
    assert [str(difference) for difference in result.named_differences] == [named]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"tree.patch_sha256": "c" * 64}, "patch of uncommitted changes (none vs cccccccc)"),
        ({"environment.requirements_sha256": "9" * 64}, "locked packages (88888888 vs 99999999)"),
        ({"conditions.between": {"others_share": 0.3}}, "other processes used 30% of the CPU time during the training"),
        ({"conditions.between": {"waiting_threads": 0.4}}, "0.4 of its threads waited for a core during the training"),
        ({"conditions.between": {"throttled_share": 0.3}}, "stopped it in 30% of the periods during the training"),
        ({"conditions.after.gpu.throttled_by": ["power", "heat"]}, "the clocks were throttled (power, heat)"),
        ({"timing.throttled_share": 0.25}, "the clocks were throttled (during 25% of the training)"),
    ],
)
def test_environment_and_conditions_are_notes_and_no_reasons(changes: dict[str, Any], note: str):
    result = compare_manifests(CPU, changed(GPU, **changes))
    assert result.refusals == () and len(result.notes) == 1 and result.notes[0].endswith(note)


def test_the_runs_of_a_side_must_be_repetitions_of_each_other():
    seeds = [changed(GPU, seed=seed) for seed in range(3)]
    assert comparability({"cpu": [CPU], "cuda": seeds}).refusals == ()
    other = changed(GPU, seed=3, hardware={**GPU["hardware"], "name": "NVIDIA L4"}, **{"block.train.batch_size": 8})
    assert comparability({"cpu": [CPU], "cuda": [*seeds, other]}).refusals == (
        "the runs of cuda differ in batch_size (56 vs 8)",
        "the runs of cuda differ in hardware (NVIDIA H100 vs NVIDIA L4)",
    )
    # `auto` measures in every process: that it chose otherwise in one is no other work.
    result = comparability({"cpu": [CPU, changed(CPU, threads=8)], "cuda": seeds})
    assert result.refusals == () and "differ in threads (16 vs 8)" in result.notes[0]

"""What a comparison of two sides says of their speed and scores."""

import math
from typing import Any

import pytest

from tandem.comparing.comparison import Side, compare
from tandem.comparing.table import rows_of
from tests.manifests import CPU, GPU, SPEED, changed, classified, judge, run_of, sides

AGAINST = "cuda: NVIDIA H100, 1 thread, cuDNN vs cpu: AMD EPYC 9654, 8 threads, Tandem's kernels"


def test_a_judgement_says_how_fast_between_what_and_how_good():
    judgement = judge(sides("1" * 20), SPEED)
    assert judgement.speed.startswith("cuda 8.10 times as fast as cpu (95% interval 7.60 to 8.60); 5 pairs")
    assert f"{AGAINST}; they also differ in step execution (graph vs eager)." in judgement.speed
    assert judgement.scores.startswith("accuracy 1.0000 on cpu, 0.9500 on cuda. No difference detected in")
    turned = {**SPEED, "sides": ["cuda", "cpu"], "speed_up": {"ratio": 1 / 8, "low": 0.1, "high": 0.2, "num_pairs": 5}}
    expected = "cuda 8.00 times as fast as cpu (95% interval 5.00 to 10.00); 5 pairs"
    assert judge(sides("11"), turned).speed.startswith(expected)


def test_a_side_with_more_seeds_than_the_other_names_those_that_are_compared():
    judgement = judge(
        {name: runs[: 3 if name == "cpu" else 1] for name, runs in sides("1" * 20, "0" * 20, "1" * 20).items()}
    )
    assert "accuracy 1.0000 on cpu, seed 0, 0.9500 on cuda. " in judgement.scores
    manifests = [changed(CPU, **{"result.metrics.accuracy": score}) for score in (0.5, 0.5, 0.8)]
    rows = rows_of([[run_of(manifest, classified("1")) for manifest in side] for side in (manifests, [CPU])])
    score = next(row for row in rows if row.name == "score")
    assert score.cells[0] == "0.6 (accuracy) (0.5 to 0.8, 3 seeds)", "the mean, as everywhere else"


def test_own_metrics_have_rows_also_if_a_name_has_a_point():
    metrics = {"accuracy": 0.9, "at_0.5": 0.81, "errors": 0.1}
    result = {"result.own_metrics": {"at_0.5": True, "errors": False}, "result.metrics": metrics}
    rows = rows_of([[run_of(changed(CPU, **result), classified("1"))] for _ in range(2)])
    cells = {row.name: row.cells for row in rows}
    assert cells["at_0.5"] == ("0.81", "0.81") and cells["errors (lower is better)"] == ("0.1", "0.1")


def test_a_run_without_a_number_of_workers_has_one() -> None:
    rows = rows_of([[run_of(manifest, classified("1"))] for manifest in (CPU, changed(CPU, **{"realized.workers": 2}))])
    assert {row.name: row.cells for row in rows}["workers"] == ("1", "2")


@pytest.mark.parametrize(
    ("speed", "reason"),
    [
        ({"workload": "sign", "sentence": "sign: one device, nothing to pair."}, "one device, nothing to pair."),
        ({**SPEED, "out_of_memory": {"cuda": ["2 parts"]}}, "memory ran out on cuda in the speed measurement."),
        ({**SPEED, "sides": ["cpu", "tpu"]}, "the speed was measured on cpu and tpu, the runs are on cpu and cuda."),
    ],
)
def test_a_measured_speed_that_says_nothing_of_these_runs_is_not_used(speed: dict[str, Any], reason: str):
    assert judge(sides("11"), speed).speed == f"no speed-up is reported: {reason}"


def test_runs_that_took_no_turns_are_compared_by_their_epochs_and_that_is_said():
    assert "; 1 process each, not alternating" in judge(sides("11")).speed
    runs = sides("11", "11", "11")
    for side in runs.values():  # the same scatter on both: logs of -s, 0, s
        for run, factor in zip(side, (0.9, 1.0, 1 / 0.9), strict=True):
            run.timing["timing"]["epoch_seconds"] *= factor
    half = 2.776445 * math.log(1 / 0.9) * (2 / 3) ** 0.5  # Student's t with 4 degrees
    low, high = 8 * math.exp(-half), 8 * math.exp(half)
    judgement = judge(runs)
    assert f"8.00 times as fast as cpu (95% interval {low:.2f} to {high:.2f}); 3 and 3 processes" in judgement.speed


def test_a_number_of_threads_that_was_set_is_not_taken_for_the_best():
    runs = sides("11")
    runs["cpu"] = [run_of(changed(CPU, **{"block.train.threads": 1, "threads": 1}), classified("11"))]
    (note,) = judge(runs).notes
    assert "the CPU used 1 of 16 cores, because params.yaml sets threads: 1" in note
    assert judge(runs, SPEED).notes == ()  # there the CPU had its best number, and the sentence says it
    assert "8 threads" in judge(runs, SPEED).speed


def test_scores_stand_alone_where_they_cannot_be_compared():
    runs = sides("1101", "1111")
    runs["cuda"] = [run_of(run.manifest) for run in runs["cuda"]]
    judgement = judge(runs, SPEED)
    assert judgement.difference is None
    assert "are not compared, because the predictions of cuda are missing (seed 0, 1)" in judgement.scores
    repeated = {**runs, "cuda": [run_of(GPU, classified("1101")), run_of(GPU, classified("1101"))]}
    assert "cuda has several runs of one seed (0, 0)" in judge(repeated, SPEED).scores


def test_each_side_is_compared_with_the_first():
    all_sides = [Side(name, (run_of(CPU, classified("1101")),)) for name in ("one", "two", "three")]
    assert compare("sign", all_sides[:1]).sentences == []
    comparison = compare("sign", all_sides)
    assert [(pair.first.name, pair.second.name) for pair in comparison.judgements] == [("one", "two"), ("one", "three")]
    assert all(sentence.startswith("sign: ") for sentence in comparison.sentences)

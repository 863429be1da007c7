"""What is said of recorded runs side by side: planted differences on literal manifests and predictions."""

import copy
import csv
import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from tandem.comparing import comparison, differences
from tandem.comparing.comparability import Comparability, compare_sides
from tandem.comparing.comparison import Judgement, Side, compare
from tandem.comparing.differences import MEASURES, Margin, Pairs, difference, margin_of_seeds
from tandem.comparing.table import rows_of
from tandem.params.parsing import INTRODUCED
from tandem.params.schema import Evaluate, OwnSequences, OwnSeries, OwnSource, SequenceTable, Series, Train
from tandem.runs.run import Run
from tandem.runs.schemas import TrainRecord
from tandem.tasks import detect, statistics
from tandem.tasks.groups import Groups
from tandem.tasks.scores import macro_f1
from tandem.tasks.statistics import interval_of_difference

EPYC = "AMD EPYC 9654 96-Core Processor (family 25 model 17)"


def make_manifest(device: str, **changes: Any) -> dict[str, Any]:
    """`changes`: {"realized.step": "graph"}, by dotted path."""
    is_gpu = device == "cuda"
    cpu = {"name": EPYC, "cores": 16.0, "memory_mib": 64000}
    manifest = {
        "workload": "sign",
        "device": device,
        "requested": device,
        "threads": 1 if is_gpu else 16,
        "seed": 0,
        "tree": {"commit": "a" * 40, "patch": "", "patch_sha256": None},
        "block": {"task": "classify", "train": {"batch_size": 56, "threads": "auto", "model": {"name": "gru"}}},
        "realized": {
            "precision": "fp32",
            "grad_accum_steps": 1,
            "step": "graph" if is_gpu else "eager",
            "data_location": "device",
            "out_of_memory": [],
        },
        "digests": {
            "data": {
                "table": "1" * 64,
                "packed": {"train": "2" * 64, "val": "3" * 64, "test": "4" * 64},
                "prepared": {"train/ids.npy": "5" * 64, "train/values.npy": "9" * 64},
            },
            "weights": {},
            "code": {"tandem/training/step.py": "6" * 64, "tandem/models/gru.py": "7" * 64},
        },
        "environment": {
            "requirements_sha256": "8" * 64,
            "versions": {"python": "3.11.9", "torch": "2.11.0+cu128", **({"driver": "570.1"} if is_gpu else {})},
        },
        "hardware": {"kind": device, "name": "NVIDIA H100" if is_gpu else EPYC, "cpu": cpu, "torch": "2.11.0"},
        "machine": "server",
        "kernels": "cuDNN" if is_gpu else "Tandem's kernels",
        "conditions": {
            "before": {"load_1min": 0.1, "cpu_seconds": {"all": 1000.0}},
            "after": {"load_1min": 9.0, "cpu_seconds": {"all": 1100.0}},
            "between": {},
        },
        "epochs": [],
        "timing": {"epoch_seconds": 1.0 if is_gpu else 8.0},
        "result": {"score_name": "accuracy", "metrics": {"accuracy": 0.9}},
    }
    return changed(manifest, **changes)


def changed(manifest: dict[str, Any], **changes: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = manifest
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return manifest


CPU, GPU = make_manifest("cpu"), make_manifest("cuda")


def run_of(manifest: dict[str, Any], predictions: list[dict[str, Any]] | None = None) -> Run:
    """A run with this manifest. It is evaluated if there are predictions."""
    placed = ("data_location", "out_of_memory")
    train: Any = {name: manifest[name] for name in TrainRecord.__annotations__ if name in manifest} | {"files": {}}
    timing: Any = {name: value for name, value in manifest.items() if name not in (*train, "result")} | {"files": {}}
    train["realized"] = {name: value for name, value in manifest["realized"].items() if name not in placed}
    timing["placement"] = {name: manifest["realized"][name] for name in placed}
    timing["timing"] = {"threads": manifest["threads"], **timing["timing"]}
    if predictions is None:
        return Run("a run", train, timing, None, no_file)
    table = io.StringIO()
    writer = csv.DictWriter(table, predictions[0])
    writer.writeheader()
    writer.writerows(predictions)
    content = table.getvalue().encode()
    digest = hashlib.sha256(content).hexdigest()
    score: Any = {**manifest["result"], "weights": "last", "files": {"predictions.csv": digest}}
    return Run("a run", train, timing, score, lambda name: (content, name))


def comparability(sides: dict[str, list[dict[str, Any]]]) -> Comparability:
    return compare_sides({name: list(map(run_of, manifests)) for name, manifests in sides.items()})


def no_file(name: str) -> tuple[bytes, str]:
    raise FileNotFoundError(name)


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
    optional = {f"{section}.{each.name}" for section, kind in kinds for each in fields(kind) if is_left_out(kind, each)}
    assert optional - ALWAYS_RECORDED == set(INTRODUCED)


def is_left_out(kind: type, key: Field[Any]) -> bool:
    """Whether older records lack the key at its default. Those of own sources contain every value."""
    return key.default is not MISSING and (not issubclass(kind, OwnSource) or key.default in (None, ()))


def compare_manifests(first: dict[str, Any], second: dict[str, Any]) -> Comparability:
    names = [first["device"], second["device"]] if first["device"] != second["device"] else ["the first", "the second"]
    return comparability({names[0]: [first], names[1]: [second]})


def judge(runs: dict[str, list[Run]], speed: dict[str, Any] | None = None) -> Judgement:
    return comparison.judge(*(Side(name, tuple(own)) for name, own in runs.items()), speed)


# Comparable or not.


def test_a_gpu_and_a_cpu_of_one_machine_are_compared_and_their_differences_named():
    found = compare_manifests(CPU, GPU)
    assert found.refusals == found.notes == ()
    assert [str(each) for each in found.named] == [
        "device (cpu vs cuda)",
        "hardware (AMD EPYC 9654 96-Core Processor (family 25 mo... vs NVIDIA H100)",
        "threads (16 vs 1)",
        "kernels (Tandem's kernels vs cuDNN)",
        "step execution (eager vs graph)",
    ]
    assert compare_manifests(CPU, CPU).named == ()


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
    said = judge({"cpu": [run_of(CPU)], "cuda": [run_of(gpu)]}, SPEED).speed
    assert said.startswith("no speed-up is reported: ") and reason in said


@pytest.mark.case(50)
def test_another_torch_or_driver_between_two_runs_is_flagged(saw: Callable[[str], None]):
    """Two manifests of one GPU, one of them with another torch, or with another driver."""
    torch, driver = (
        changed(GPU, **{"device": "cuda-later", f"environment.versions.{name}": version})
        for name, version in (("torch", "2.12.0"), ("driver", "580.9"))
    )
    said = judge({"cuda": [run_of(GPU)], "cuda-later": [run_of(torch)]}, SPEED).speed
    assert "torch (2.11.0 vs 2.12.0)" in said and said.startswith("no speed-up is reported")
    saw(said)
    notes = compare_manifests(GPU, driver).notes
    [note] = [note for note in notes if "driver" in note]
    assert "driver (570.1 vs 580.9)" in note
    saw(note)


def test_what_was_asked_for_may_differ_where_what_came_of_it_agrees():
    gpu = changed(
        GPU, **{"block.train.precision": "fp32", "block.train.threads": 4, "block.train.probe": False, "seed": 3}
    )
    found = compare_manifests(CPU, gpu)
    assert found.refusals == () and str(found.named[-1]) == "seed (0 vs 3)"
    # A simulation has no table and no division into splits.
    sides = (changed(each, **{"digests.data.table": None, "digests.data.prepared": {}}) for each in (CPU, GPU))
    assert compare_manifests(*sides).refusals == ()


def test_kernels_that_params_yaml_turns_off_are_named_and_do_not_refuse_the_comparison():
    own = {"kernels": "Tandem's GRU, Tandem's dropout"}
    other = {"kernels": "torch's GRU, torch's dropout", "block.train.kernels": "torch"}
    found = compare_manifests(changed(CPU, **own), changed(CPU, **other))
    assert found.refusals == ()
    named = "kernels (Tandem's GRU, Tandem's dropout vs torch's GRU, torch's dropout)"
    assert [str(each) for each in found.named] == [named]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"tree.patch_sha256": "c" * 64}, "patch of uncommitted changes (none vs cccccccc)"),
        ({"environment.requirements_sha256": "9" * 64}, "locked packages (88888888 vs 99999999)"),
        ({"conditions.between": {"others_share": 0.3}}, "other processes used 30% of the CPU time during the training"),
        ({"conditions.between": {"waiting_threads": 0.4}}, "0.4 of its threads waited for a core during the training"),
        ({"conditions.between": {"throttled_share": 0.3}}, "stopped it in 30% of the periods during the training"),
        ({"conditions.after.gpu.throttled_by": ["power", "heat"]}, "the clocks were throttled (power, heat)"),
    ],
)
def test_environment_and_conditions_are_notes_and_no_reasons(changes: dict[str, Any], note: str):
    found = compare_manifests(CPU, changed(GPU, **changes))
    assert found.refusals == () and len(found.notes) == 1 and found.notes[0].endswith(note)


def test_the_runs_of_a_side_must_be_repetitions_of_each_other():
    seeds = [changed(GPU, seed=seed) for seed in range(3)]
    assert comparability({"cpu": [CPU], "cuda": seeds}).refusals == ()
    other = changed(GPU, seed=3, hardware={**GPU["hardware"], "name": "NVIDIA L4"}, **{"block.train.batch_size": 8})
    assert comparability({"cpu": [CPU], "cuda": [*seeds, other]}).refusals == (
        "the runs of cuda differ in batch_size (56 vs 8)",
        "the runs of cuda differ in hardware (NVIDIA H100 vs NVIDIA L4)",
    )
    # `auto` measures in every process: that it chose otherwise in one is no other work.
    found = comparability({"cpu": [CPU, changed(CPU, threads=8)], "cuda": seeds})
    assert found.refusals == () and "differ in threads (16 vs 8)" in found.notes[0]


# Scores.


def classified(right: str, as_csv: bool = False) -> list[dict[str, Any]]:
    """`right`: a letter per sequence, `1` where it is."""
    rows = [
        {"sequence": number, "actual": "a", "predicted": "a" if letter == "1" else "b", "confidence": 0.9}
        for number, letter in enumerate(right)
    ]
    return [{name: str(value) for name, value in row.items()} for row in rows] if as_csv else rows


def test_mcnemar_is_the_exact_one():
    """By hand: of 12 discordant pairs 2 or fewer on one side, 2 (1 + 12 + 66) / 2^12."""
    first, second = "1" * 2 + "0" * 10 + "1" * 88, "0" * 2 + "1" * 10 + "1" * 88
    found = difference("correct", {0: classified(first)}, {0: classified(second, as_csv=True)})
    assert found.p == pytest.approx(158 / 4096) and found.verdict == "different"
    assert found.difference == pytest.approx(0.08) and found.low < 0.08 < found.high
    assert "cuda is better than cpu" in found.sentence("cpu", "cuda")
    assert statistics.mcnemar(0, 5) == 2 / 2**5 and statistics.mcnemar(0, 0) == statistics.mcnemar(3, 3) == 1


def test_a_task_scored_by_macro_f1_is_compared_by_it():
    """The first side always says the most frequent class: it has the better accuracy."""
    draw = np.random.default_rng(0)
    actual = np.where(draw.random(300) < 0.85, "a", "b")
    found = {"always": np.full(300, "a"), "often": np.where(draw.random(300) < 0.7, actual, "b")}
    sides = [
        [{"sequence": n, "actual": one, "predicted": two} for n, (one, two) in enumerate(zip(actual, own, strict=True))]
        for own in found.values()
    ]
    compared = difference("correct", {0: sides[0]}, {0: sides[1]}, score_name="macro_f1")
    for side, own in ((compared.first, found["always"]), (compared.second, found["often"])):
        assert side[0] == pytest.approx(f1_score(actual, own, average="macro"))
    assert compared.difference > 0 and "second is better than first" in compared.sentence("first", "second")
    assert compared.sentence("first", "second").startswith("macro F1 ")
    assert difference("correct", {0: sides[0]}, {0: sides[1]}, score_name="accuracy").difference < 0


def test_interval_and_exact_test_never_contradict_each_other():
    for gained, lost in [(0, 5), (0, 6), (1, 8), (2, 10), (3, 9), (12, 27), (20, 35)]:
        first, second = "0" * gained + "1" * (180 - gained), "1" * gained + "0" * lost + "1" * (180 - gained - lost)
        found = difference("correct", {0: classified(first)}, {0: classified(second)})
        assert found.p is not None and (found.p < 0.05) == (not found.low <= 0 <= found.high), (gained, lost)


def test_mcnemar_interval_holds_the_true_difference_and_its_power_is_as_said():
    draw, num, discordant = np.random.default_rng(0), 180, 0.08
    seen = differences.min_detectable_effect_by_mcnemar(discordant, num)
    assert seen is not None
    tables = draw.multinomial(num, [(discordant + seen) / 2, (discordant - seen) / 2, 1 - discordant], size=400)
    intervals = {pair: interval_of_difference(*pair, num) for pair in {(g, lost) for g, lost, _ in tables.tolist()}}
    held = np.mean([intervals[g, lost][0] <= seen <= intervals[g, lost][1] for g, lost, _ in tables.tolist()])
    found = np.mean([statistics.mcnemar(g, lost) < 0.05 for g, lost, _ in tables.tolist()])
    assert 0.92 <= held <= 0.98 and 0.70 <= found <= 0.88
    assert differences.min_detectable_effect_by_mcnemar(0.0, 3) is None  # of three sequences no number is enough


def test_no_difference_takes_a_margin():
    sides = {0: classified("1" * 990 + "0" * 10)}, {0: classified("0" + "1" * 990 + "0" * 9)}
    same = difference("correct", sides[0], sides[0])
    assert same.verdict == "equal" and same.low < 0 < same.high
    assert difference("correct", *sides).verdict == "inconclusive"
    said = difference("correct", *sides).sentence("cpu", "cuda")
    assert "No difference detected: this comparison would miss a difference smaller than 0.0078 in more than" in said
    wide, narrow = (difference("correct", *sides, Margin(value, "as agreed")) for value in (0.02, 0.004))
    assert wide.verdict == "equivalent" and narrow.verdict == "inconclusive"


def test_the_margin_is_twice_the_spread_over_five_seeds_or_none():
    scores = [0.90, 0.92, 0.94, 0.96, 0.98]  # standard deviation sqrt(0.001)
    margin = margin_of_seeds(scores)
    assert margin and margin.value == pytest.approx(2 * 0.001**0.5)
    both = margin_of_seeds(scores, [0.9] * 6)
    assert both and both.value == pytest.approx(2 * 0.0005**0.5)
    assert margin_of_seeds(scores[:4]) is margin_of_seeds() is margin_of_seeds([0.9] * 5) is None


def forecasts(errors: Any) -> list[dict[str, Any]]:
    """`errors`: one per window, the same at each of its steps."""
    return [
        {"time": f"t{window:05}", "step_ahead": step + 1, "last": 1.0, "actual": 100.0, "predicted": 100.0 + error}
        for window, error in enumerate(errors)
        for step in range(2)
    ]


def test_three_seeds_give_students_interval_paired_by_seed():
    from scipy.stats import ttest_rel

    scores = [[3.0, 1.0, 2.0, 5.0], [3.5, 1.25, 3.0, 5.125]]
    first, second = ({seed: forecasts([mae] * 9) for seed, mae in enumerate(own)} for own in scores)
    found = difference("window errors", first, dict(reversed(second.items())))  # the order of the seeds decides nothing
    known = ttest_rel(scores[1], scores[0])
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()))
    assert "Student's t over 4 differences, paired by seed" in found.sentence("cpu", "cuda")
    worse = {seed: forecasts([mae + 3 + seed / 10] * 9) for seed, mae in enumerate(scores[0])}
    assert "They differ: cuda is worse than cpu" in difference("window errors", first, worse).sentence("cpu", "cuda")


def test_seeds_that_one_side_lacks_are_left_out():
    side = {seed: forecasts([float(seed)] * 9) for seed in range(3)}
    found = difference("window errors", side, {2: forecasts([7.0] * 9), 8: forecasts([9.0] * 9)})
    assert found.first == {2: 2.0} and found.second == {2: 7.0}
    with pytest.raises(ValueError, match=r"the compared runs have no seed in common \(0, 1, 2 vs 3, 4\)"):
        difference("window errors", side, {3: side[0], 4: side[1]})
    single = difference("window errors", {0: side[0]}, {1: side[1]})
    assert single.difference == 1.0  # one training a side is what it is


def test_a_seed_twice_is_no_more_evidence():
    """Predictions of one sequence by two seeds are not two cases: the interval stays as wide."""
    draw = np.random.default_rng(0)
    first, second = ("".join(draw.choice(["0", "1"], 200, p=[0.2, 0.8])) for _ in range(2))
    sides = [{0: classified(own), 1: classified(own)} for own in (first, second)]
    pairs = Pairs(*(MEASURES["correct"].read(list(side.values()))[:1] for side in sides), MEASURES["correct"])
    once, twice = differences.resample_sequences(pairs), difference("correct", *sides)
    assert (once.low, once.high) == (twice.low, twice.high)
    assert "(two seeds each)" in twice.sentence("cpu", "cuda")


def grouped(right: str, size: int = 10) -> list[dict[str, Any]]:
    """Groups of `size` sequences; `right`: a letter per group, `1` where all its sequences are."""
    rows = classified("".join(letter * size for letter in right))
    return [{**row, "group": number // size} for number, row in enumerate(rows)]


def test_sequences_of_one_group_are_one_case():
    """Ten equal sequences of a person prove no more than one of them, and McNemar's test would take them for ten."""
    first, second = "1" * 18 + "00", "0" * 5 + "1" * 15
    found = difference("correct", {0: grouped(first)}, {0: grouped(second)}, has_groups=True)
    assert found.difference == pytest.approx(-0.15) and found.low < 0 < found.high
    each = np.array([int(b) - int(a) for a, b in zip(first, second, strict=True)])
    half = 2.093024 * each.std(ddof=1) / 20**0.5  # Student's t with 19 degrees over the people
    assert (found.low, found.high) == pytest.approx((-0.15 - half, -0.15 + half))
    once = difference("correct", {0: grouped(first, 1)}, {0: grouped(second, 1)}, has_groups=True)
    assert (found.low, found.high) == pytest.approx((once.low, once.high))
    assert "over 20 test groups, p " in found.sentence("cpu", "cuda")
    assert difference("correct", {0: grouped(first)}, {0: grouped(second)}).verdict == "different"  # as it was


def test_other_groups_of_the_same_sequences_are_another_test_split():
    first, second = grouped("1" * 18 + "00", 3), grouped("0" * 5 + "1" * 15, 3)
    other = [{**row, "group": row["group"] // 2} for row in second]
    with pytest.raises(ValueError, match="differ in the groups"):
        difference("correct", {0: first}, {0: other}, has_groups=True)


def test_people_of_another_test_split_scatter_also_with_many_seeds():
    """Five seeds that agree tell nothing of other people."""
    runs = [{seed: grouped(right) for seed in range(5)} for right in ("11111100", "00111111")]
    assert difference("correct", *runs, has_groups=True).verdict == "inconclusive"
    # People who agree tell nothing of other seeds either.
    first = {seed: grouped(letter * 8) for seed, letter in enumerate("010")}
    second = dict.fromkeys(first, grouped("1" * 8))
    found = difference("correct", first, second, has_groups=True)
    assert found.verdict == "inconclusive" and "variance over 3 seeds" in found.method


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (grouped("11110"), "no 95% interval: 5 test groups are too few for an interval, which needs 6"),
        (classified("1" * 40 + "0" * 10), "no 95% interval: predictions.csv has no column `group`"),
    ],
)
def test_without_enough_groups_nothing_is_claimed(first: list[dict[str, Any]], reason: str):
    """Also of a run that was recorded before predictions had groups, and of a source of one's own."""
    second = [{**row, "predicted": "b"} for row in first]
    prepared = {"digests.data.prepared": {"test/groups.npy": "9" * 64}}
    runs = {"cpu": [run_of(changed(CPU, **prepared), first)], "cuda": [run_of(changed(GPU, **prepared), second)]}
    found = judge(runs)
    assert reason in found.scores and found.difference.verdict == "inconclusive"
    assert "neither a difference nor equality is shown" in found.scores
    assert reason in found.difference.summary("cpu", "cuda")
    same = judge({"cpu": runs["cpu"], "cuda": [run_of(changed(GPU, **prepared), first)]})
    assert same.difference.verdict == "equal"
    without = {name: [run_of(changed(own[0].manifest, **{"digests.data.prepared": {}}), own[0].predictions)]
               for name, own in runs.items()}  # fmt: skip
    assert judge(without).difference.verdict == "different"


def test_groups_of_different_size_count_for_less():
    """One person with most of the sequences is nearly one case."""
    even, uneven = Groups(np.repeat(np.arange(8), 10)), Groups(np.repeat(np.arange(8), [73, 1, 1, 1, 1, 1, 1, 1]))
    assert even.freedom == pytest.approx(7) and uneven.freedom == 1
    assert Groups(np.array(["b", "a", "b"])).sums(np.array([1.0, 5.0, 2.0])).tolist() == [5, 3]


def test_seeds_that_agree_by_chance_do_not_make_an_interval_without_width():
    first = {seed: classified("1" * 99 + "0") for seed in range(3)}
    second = {seed: classified("0" + "1" * 99) for seed in range(3)}
    found = difference("correct", first, second)
    assert found.difference == 0 and found.low < -0.004 and found.high > 0.004 and found.verdict == "inconclusive"


def test_blocks_hold_where_windows_move_together():
    draw, measure, held, trials, num = np.random.default_rng(0), MEASURES["window errors"], 0, 150, 1600
    for _ in range(trials):
        shocks = draw.normal(size=num + 7)
        each = np.convolve(shocks, np.ones(8), "valid")[None]  # neighbours share seven of eight
        found = differences.resample_blocks(Pairs(np.zeros_like(each), each, measure))
        held += found.low <= 0 <= found.high
    assert 0.87 <= held / trials <= 1


def test_numbers_are_compared_by_their_absolute_error_sequence_by_sequence():
    def rows(error: float) -> list[dict[str, str]]:
        return [{"sequence": str(n), "actual": repr(1e6 + n), "predicted": repr(1e6 + n + error)} for n in range(80)]

    found = difference("errors", {0: rows(0.125)}, {0: rows(-2.0)})
    assert found.second == {0: 2.0} and found.verdict == "different" and found.low > 0
    assert difference("errors", {0: rows(2.0)}, {0: rows(2.0)[::-1]}).verdict == "equal"


def test_event_f1_from_the_rows_is_the_tasks_own():
    classes, draw = ["none", "hit", "bounce", "net"], np.random.default_rng(0)
    task = detect.Task({"classes": classes, "features": [], "num_per_class": {"train": dict.fromkeys(classes, 1)}})
    actual = draw.choice(4, size=(40, 30), p=[0.9, 0.05, 0.03, 0.02])
    predicted = np.where(draw.random(actual.shape) < 0.2, 0, actual)
    predicted[draw.random(actual.shape) < 0.01] = 1
    rows = task.list_events(predicted, actual, draw.random((40, 30, 4)), np.arange(40))
    rows = [{name: str(value) for name, value in row.items()} for row in rows]
    counts = MEASURES["events"].read([rows])[0]
    assert differences.macro_f1(counts) == pytest.approx(macro_f1(task.per_class(task.counts(predicted, actual))))


def events(num_missed: int) -> list[dict[str, Any]]:
    return [
        {"sequence": f"{number}", "event": "hit", "actual": "5", "predicted": "" if number < num_missed else "6"}
        for number in range(200)
    ]


def test_events_are_compared_sequence_by_sequence():
    found = difference("events", {0: events(0)}, {0: events(40)})
    assert found.verdict == "different" and found.p is None and found.difference == pytest.approx(320 / 360 - 1)
    # The delta method: F1 = 2h / (1 + h) with h = 0.8 of 200, of which the deviation is 2 / 1.8^2 sqrt(0.16 / 200).
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 2 / 1.8**2 * (0.16 / 200) ** 0.5, rel=0.1)


WINDOWS = forecasts([1.0] * 4)
OTHER_WINDOWS = [{**row, "actual": 101.0} for row in WINDOWS]


@pytest.mark.parametrize(
    ("score", "first", "second", "message"),
    [
        ("correct", classified("11"), classified("111"), "the test splits differ in 1 of the sequences"),
        ("window errors", WINDOWS, OTHER_WINDOWS, "the windows have other values or another order"),
        ("scores", classified("11"), classified("11"), "predictions.csv needs a column `score` with a number for each"),
    ],
)
def test_other_test_splits_are_refused(score: str, first: Any, second: Any, message: str):
    with pytest.raises(ValueError, match=message):
        difference(score, {0: first}, {0: second})


# The sentences.

SPEED = {
    "workload": "sign",
    "sides": ["cpu", "cuda"],
    "about": {"cpu": {"kind": "cpu", "threads": 8}, "cuda": {"kind": "cuda", "threads": 1}},
    "speed_up": {"ratio": 8.1, "low": 7.6, "high": 8.6, "num_pairs": 5},
    "out_of_memory": {},
}
AGAINST = "cuda: NVIDIA H100, cuDNN, 1 process vs cpu: AMD EPYC 9654, 8 threads, Tandem's kernels"


def sides(*rights: str, second: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, list[Run]]:
    """A side per device; `rights` are the seeds' of both, the second's with its first sequence wrong."""
    of_cpu = [run_of(changed(CPU, seed=seed), classified(right)) for seed, right in enumerate(rights)]
    of_gpu = [run_of(second(changed(GPU, seed=n)), classified(f"0{right[1:]}")) for n, right in enumerate(rights)]
    return {"cpu": of_cpu, "cuda": of_gpu}


def test_a_judgement_says_how_fast_between_what_and_how_good():
    found = judge(sides("1" * 20), SPEED)
    assert found.speed.startswith(
        "an epoch on cuda is 8.10 times as fast as on cpu (95% interval 7.60 to 8.60; 5 pairs"
    )
    assert f"{AGAINST}; they also differ in step execution (graph vs eager)." in found.speed
    assert found.scores.startswith("accuracy 1.0000 on cpu, 0.9500 on cuda: -0.0500 (95% interval ")
    turned = {**SPEED, "sides": ["cuda", "cpu"], "speed_up": {"ratio": 1 / 8, "low": 0.1, "high": 0.2, "num_pairs": 5}}
    expected = "an epoch on cuda is 8.00 times as fast as on cpu (95% interval 5.00 to 10.00; 5 pairs"
    assert judge(sides("11"), turned).speed.startswith(expected)


def test_a_side_with_more_seeds_than_the_other_names_those_that_are_compared():
    found = judge(
        {name: runs[: 3 if name == "cpu" else 1] for name, runs in sides("1" * 20, "0" * 20, "1" * 20).items()}
    )
    assert "accuracy 1.0000 on cpu, seed 0, 0.9500 on cuda: -0.0500" in found.scores
    manifests = [changed(CPU, **{"result.metrics.accuracy": score}) for score in (0.5, 0.5, 0.8)]
    rows = rows_of([[run_of(each, classified("1")) for each in own] for own in (manifests, [CPU])])
    score = next(row for row in rows if row.what == "score")
    assert score.cells[0] == "0.6 (accuracy) (0.5 to 0.8, 3 seeds)", "the mean, as everywhere else"


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
    assert "(1 process each, not alternating" in judge(sides("11")).speed
    runs = sides("11", "11", "11")
    for side in runs.values():  # the same scatter on both: logs of -s, 0, s
        for run, factor in zip(side, (0.9, 1.0, 1 / 0.9), strict=True):
            run.timing["timing"]["epoch_seconds"] *= factor
    half = 2.776445 * math.log(1 / 0.9) * (2 / 3) ** 0.5  # Student's t with 4 degrees
    low, high = 8 * math.exp(-half), 8 * math.exp(half)
    found = judge(runs)
    assert f"8.00 times as fast as on cpu (95% interval {low:.2f} to {high:.2f}; 3 and 3 processes" in found.speed


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
    found = judge(runs, SPEED)
    assert found.difference is None
    assert "are not compared, because the predictions of cuda are missing (seed 0, 1)" in found.scores
    twice = {**runs, "cuda": [run_of(GPU, classified("1101")), run_of(GPU, classified("1101"))]}
    assert "cuda has several runs of one seed (0, 0)" in judge(twice, SPEED).scores


def test_each_side_is_compared_with_the_first():
    every = [Side(name, (run_of(CPU, classified("1101")),)) for name in ("one", "two", "three")]
    assert compare("sign", every[:1]).sentences == []
    found = compare("sign", every)
    assert [(each.first.name, each.second.name) for each in found.judgements] == [("one", "two"), ("one", "three")]
    assert all(sentence.startswith("sign: ") for sentence in found.sentences)

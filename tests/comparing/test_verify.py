"""Recorded runs made again. What differs is planted in the training, never in the record."""

import shutil
import signal
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tandem.comparing import verdicts
from tandem.files import sha256_file
from tandem.runs import provenance
from tandem.runs.run import Run, open_folder
from tests import forked
from tests.manifests import make_manifest, run_of
from tests.projects import (
    MODEL,
    RUN,
    TINY,
    commit,
    copy_of,
    dvc,
    git,
    held,
    python,
    recorded_runs,
    run,
    run_path,
    stages_at_once,
    start,
    tandem,
    wait_for,
)
from tests.recording import client_of, runs_of

TABLE = "workloads/tiny/data/table.csv"
RETRACE = "tandem.comparing.retrain"
TRANSFORMER = TINY.replace(
    MODEL,
    "{name: transformer, hidden_size: 32, num_layers: 2, num_heads: 4, feedforward_size: 64, dropout: 0.1,"
    " checkpoint_activations: false}",
)


def verify(project: Path, *words: str, **extra: str) -> tuple[int, str]:
    """Exit status and output; the verdict is in the line that begins with the run's name."""
    result = tandem(project, "verify", *words, check=False, **extra)
    return result.returncode, result.stdout


def planted(folder: Path, lines: str) -> dict[str, str]:
    """Environment of a verification whose trainings run `lines` at the end of Trainer.__init__."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"""
import os, runpy, sys

if not hasattr(sys, "is_forked"):
    runpy.run_path({str(forked.HERE / "handover/sitecustomize.py")!r})
if {RETRACE!r} in sys.orig_argv:
    sys.path.insert(0, os.getcwd())
    import torch
    from tandem.training.trainer import Trainer

    def init(self, *arguments, init=Trainer.__init__):
        init(self, *arguments)
        {lines}

    Trainer.__init__ = init
""")
    return {"PYTHONPATH": str(folder)}


def contents(project: Path) -> dict[str, str]:
    """Everything but MLflow's store, git's own files and compiled code."""
    left_out = {"mlruns", ".git", "__pycache__"}
    paths = [path for path in project.rglob("*") if path.is_file() and not left_out & set(path.parts)]
    return {str(path.relative_to(project)): sha256_file(path) for path in paths}


def leaves_nothing(project: Path, temporary: Path) -> None:
    assert len(run(project, "git", "worktree", "list").stdout.splitlines()) == 1
    assert not list(temporary.glob("tandem-verify-*"))


@pytest.fixture(scope="module")
def project(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after `dvc repro`, whose runs are only made again."""
    return copy_of(trained, tmp_path_factory.mktemp("verify") / "project")


@pytest.mark.parametrize(
    ("model", "device", "precision", "may"),
    [
        ({"name": "gru", "dropout": 0.1}, "cpu", "fp32", False),  # recorded on cuda, made again on the CPU
        ({"name": "rocket"}, "cpu", "fp32", True),
        ({"name": "gru", "dropout": 0.0}, "cpu", "tf32", False),
    ],
)
def test_rounding_is_asked_where_both_draw_and_round_alike(model: dict, device: str, precision: str, may: bool) -> None:
    """A device's own generator draws the dropout, and TF32 rounds 8,192 times as coarsely as fp32."""
    changes = {"realized.precision": precision, "block.train.model": model}
    assert verdicts.may_round(run_of(make_manifest("cuda", **changes)), run_of(make_manifest(device))) is may


def test_the_envelope_does_not_judge_16_bits() -> None:
    """On another processor, `price` in bf16 differs by 1.1 times what perturbed fp32 weights explain."""
    run = run_of(make_manifest("cpu", **{"realized.precision": "bf16"}))
    assert not verdicts.may_round(run, run)


def test_two_models_of_gpu_draw_other_dropout() -> None:
    dropout = {"block.train.model": {"name": "transformer", "dropout": 0.1}}
    recorded, other = (run_of(make_manifest("cuda", **dropout, **{"hardware.name": name})) for name in ("H100", "T4"))
    workers = run_of(make_manifest("cuda", **dropout, **{"hardware.name": "2 workers on H100"}))
    assert verdicts.may_round(recorded, recorded) and verdicts.may_round(workers, recorded)
    assert not verdicts.may_round(recorded, other)


def test_a_run_made_again_is_bit_equal_and_nothing_of_the_project_changes(project: Path, tmp_path: Path) -> None:
    before = contents(project)
    status, output = verify(project, "tiny@cpu-0", TMPDIR=str(tmp_path))
    assert "tiny@cpu-0: bit-equal\n" in output and "all 3 epochs, and the predictions" in output and status == 0
    assert contents(project) == before
    leaves_nothing(project, tmp_path)
    [recorded] = recorded_runs(project, "tiny")
    assert recorded["tags"]["verified"] == "bit-equal" and "verified.at" in recorded["tags"]


def test_a_name_without_a_run_gets_one_sentence_and_makes_no_store(project: Path, tmp_path: Path) -> None:
    other = copy_of(project, tmp_path / "other")
    shutil.rmtree(other / "mlruns")
    shutil.rmtree(other / "results/runs")
    for words, expected in (
        (("verify", "teeny@cpu"), "'teeny' is not a workload of params.yaml"),
        (("compare", "tiny@cpu", "teeny@cpu"), "did you mean 'tiny'?"),
        (("verify", "tiny"), "'tiny' is neither a run nor an existing file"),
        (("verify", "tiny@cpu"), "has no finished run 'tiny@cpu'; it has none at all; run `dvc repro`"),
        (("compare", "0123abcd", "tiny@cpu"), "has no run '0123abcd'"),
    ):
        result = tandem(other, *words, check=False)
        assert result.returncode in (1, 2) and expected in result.stdout, result.stdout
    assert not (other / "mlruns/mlflow.db").exists()


def test_what_differs_in_the_training_is_named(project: Path, tmp_path: Path) -> None:
    lower_rates = planted(tmp_path / "planted", "self.rates[2 * self.steps_per_epoch:] *= 0.5")
    status, output = verify(project, RUN, "--quick", **lower_rates)
    assert f"{RUN}: different: epoch 3\n" in output and status == 1


@pytest.fixture(scope="module")
def edited(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with uncommitted edits and a table that DVC tracks; then the edits are undone."""
    folder = copy_of(prepared, tmp_path_factory.mktemp("edited") / "project")
    git(folder, "rm", "-q", "--cached", TABLE)
    dvc(folder, "add", TABLE)
    commit(folder)
    schedule, params = folder / "tandem/training/optimizer.py", folder / "params.yaml"
    code = schedule.read_text()
    schedule.write_text(
        code.replace("    largest = settings.learning_rate\n", "    largest = settings.learning_rate / 2\n")
    )
    assert schedule.read_text() != code
    params.write_text(TINY.replace("weight_decay: 0.01", "weight_decay: 0.02"))
    tree = provenance.tree("tiny", folder)
    stages_at_once(folder, "hardware", "train tiny cpu 0", "evaluate tiny cpu", publishes=False)
    recorded = open_folder(folder / RUN)
    assert recorded.timing["tree"] == tree and recorded.train["block"]["train"]["weight_decay"] == 0.02
    schedule.write_text(code)
    params.write_text(TINY)
    return folder


def test_a_run_from_an_edited_tree_is_made_again_after_the_edits_are_gone(edited: Path) -> None:
    status, output = verify(edited, RUN)
    assert f"{RUN}: bit-equal\n" in output and status == 0
    assert "with its patch" in output and "table.csv of the working tree" in output


@pytest.mark.long
def test_the_table_comes_from_dvcs_cache_and_another_one_is_not_the_runs(edited: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(edited, folder, symlinks=True)
    table = folder / TABLE
    content = table.read_bytes()
    table.unlink()
    status, output = verify(folder, RUN, "--quick")
    assert f"{RUN}: bit-equal\n" in output and "table.csv from DVC" in output and status == 0
    table.write_bytes(content)
    shutil.rmtree(folder / ".dvc" / "cache")
    cells = pd.read_csv(table)
    cells.loc[5, "x"] += 1e-6
    cells.to_csv(table, index=False)
    for is_there in (True, False):
        status, output = verify(folder, RUN)
        assert f"{RUN}: not verifiable: its data is missing\n" in output and status == 2
        assert ("(here it has " in output) == is_there
        table.unlink(missing_ok=True)


def test_another_environment_is_refused(edited: Path, tmp_path: Path) -> None:
    """The packages of the workloads are part of it."""
    folder = tmp_path / "project"
    shutil.copytree(edited, folder, symlinks=True)
    (folder / "requirements.txt").write_text("")
    (folder / "requirements.own.txt").write_text("einops==0.8.1\n")
    status, output = verify(folder, RUN)
    assert f"{RUN}: not verifiable: another environment\n" in output and "requirements.own.txt" in output
    assert status == 2


def test_another_repository_says_that_the_commit_is_missing(edited: Path, project: Path) -> None:
    status, output = verify(project, str(edited / RUN))
    assert "not verifiable: commit" in output and "`git fetch`" in output and status == 2


@pytest.fixture(scope="module")
def of_transformer(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With torch's own operations, whose bits depend on the number of threads."""
    of_torch = TRANSFORMER.replace("threads: 1", "threads: 1\n    kernels: torch")
    folder = copy_of(prepared, tmp_path_factory.mktemp("transformer") / "project", of_torch)
    dvc(folder, "repro", "evaluate@tiny-cpu")
    return folder


@pytest.mark.long
def test_another_number_of_threads_stays_within_rounding(of_transformer: Path) -> None:
    status, output = verify(of_transformer, RUN, "--threads", "2")
    # Products this small may be the same to the bit on two threads, which another machine may show.
    assert f"{RUN}: within rounding\n" in output or f"{RUN}: bit-equal\n" in output, output
    assert status == 0


@pytest.mark.long
def test_what_rounding_cannot_do_is_outside_its_envelope(of_transformer: Path, tmp_path: Path) -> None:
    """Other dropout draws, on another number of threads, where bits need not be equal."""
    other_coins = planted(tmp_path / "planted", "torch.manual_seed(1)")
    status, output = verify(of_transformer, RUN, "--quick", "--threads", "2", **other_coins)
    assert f"{RUN}: different: epoch 1\n" in output and status == 1
    assert "rounding explains at most" in output


def test_interrupted_it_leaves_nothing(project: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    extra = held(tmp_path / "held", epoch=1, word=RETRACE, forks=False)
    process = start(project, sys.executable, "-m", "tandem.cli", "verify", RUN, TMPDIR=str(temporary), **extra)
    try:
        assert process.stdout
        printed = ""
        while "training: seed 0" not in printed:
            printed += (line := process.stdout.readline())
            assert line, printed
        wait_for(lambda: retracing(temporary), what="the training")
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=120)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "interrupted" in output
    leaves_nothing(project, temporary)
    wait_for(lambda: not retracing(temporary), seconds=60, what="the end of the training")


def retracing(temporary: Path) -> list[str]:
    """The processes that train below `temporary`."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if RETRACE in line and str(temporary) in line]


# The verdict's arithmetic, on numbers that say by themselves what is right.


def trained_again(losses: list[float], seed: int = 0, predicted: str = "", size: int = 0) -> Run:
    """`size`: the number of sequences in a group, if there are groups."""
    rows = [{"sequence": str(number), "actual": str(number % 2), "predicted": guess, "confidence": "0.9",
             **({"group": str(number // size)} if size else {})} for number, guess in enumerate(predicted)]  # fmt: skip
    epochs = [{"epoch": number, **dict.fromkeys(verdicts.LOSSES, loss)} for number, loss in enumerate(losses, 1)]
    prepared = {"test/groups.npy": "9" * 64} if size else {}
    changes = {"seed": seed, "epochs": epochs, "digests.data.prepared": prepared}
    return run_of(make_manifest("cpu", **changes), rows or None)


def test_outside_the_envelope_the_scores_decide_on_other_hardware_alone() -> None:
    """There, each step is rounded differently, and a maximum may be at another step: `sign` on two kinds of EPYC."""
    recorded, here = trained_again([1.0] * 4), trained_again([1.0, 1.0, 1.1, 1.0])
    envelope = verdicts.Envelope([dict.fromkeys(verdicts.LOSSES, 1e-6)] * 4, horizon=4, num_perturbed=4)
    other_threads = verdicts.EnvironmentInfo(settings=("threads 2 here, 1 recorded",))
    verdict = verdicts.within(recorded, here, other_threads, envelope)
    assert isinstance(verdict, verdicts.Verdict) and verdict.cause == "epoch 3"
    other_processor = verdicts.EnvironmentInfo(hardware=("name EPYC A here, EPYC B recorded",))
    assert verdicts.within(recorded, here, other_processor, envelope) == 2
    sentence = verdicts.beyond_rounding(here, 2)
    assert sentence == "the losses agree within rounding up to epoch 2 of 4, so the scores decide"


def test_the_horizon_ends_where_rounding_nears_what_another_seed_does() -> None:
    number = 8
    chaotic = [1 + 1e-7 * 10**epoch for epoch in range(number)]  # in epoch 6 a hundredth
    others = [trained_again([1.2] * number, seed=1), trained_again([0.9] * number, seed=2)]
    exact, perturbed = trained_again([1.0] * number), [trained_again(chaotic)]
    envelope = verdicts.measure_envelope(exact, perturbed, others)
    widths = [row["train_loss"] for row in envelope.allowed]
    assert widths == sorted(widths), "rounding forgets nothing"
    spread = 1.2 - 0.9
    assert widths[envelope.horizon - 1] <= verdicts.SHARE_OF_SPREAD * spread < widths[envelope.horizon]
    assert verdicts.measure_envelope(exact, [exact], others).horizon == number
    assert verdicts.measure_envelope(exact, perturbed, [exact, exact]).horizon == 0, (
        "seeds that do not differ tell nothing"
    )


def test_a_value_that_earlier_versions_did_not_record_is_no_difference() -> None:
    recorded, rerun = trained_again([1.0, 0.5]), trained_again([1.0, 0.5])
    rerun.train["epochs"][0]["new_quantity"] = 1.0
    assert verdicts.different_bits(recorded, rerun) is None


ACTUAL = "01" * 200


def wrong_in(count: int, start: int = 0) -> str:
    """Predictions of which `count` from `start` on are wrong."""
    guesses = [str(1 - int(label)) if start <= number < start + count else label for number, label in enumerate(ACTUAL)]
    return "".join(guesses)


@pytest.mark.parametrize(
    ("recorded", "verdict"),
    [
        (wrong_in(12), "statistically compatible"),
        (wrong_in(200), "different: predictions"),
        (wrong_in(22, start=100), "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_beyond_the_horizon_the_scores_decide_against_the_seeds_margin(recorded: str | None, verdict: str) -> None:
    exact = trained_again([1.0], predicted=wrong_in(10))
    others = [trained_again([1.0], seed, wrong_in(count)) for seed, count in ((1, 6), (2, 8), (3, 12), (4, 20))]
    before = trained_again([1.0], predicted=recorded or "")
    judged = verdicts.judge_final_scores(before, exact, others, verdicts.EnvironmentInfo(), num_alike=0)
    assert str(judged) == verdict, judged.sentence
    quick = verdicts.judge_final_scores(before, trained_again([1.0]), [], verdicts.EnvironmentInfo(), num_alike=0)
    assert quick.name == "inconclusive" and quick.sentence.endswith("but the test split was not predicted")
    other = verdicts.EnvironmentInfo(versions=("torch 3 here, 2 recorded",))
    if judged.name == "different":
        assert verdicts.judge_final_scores(before, exact, others, other, num_alike=0).cause == "environment"


@pytest.mark.parametrize(
    ("size", "verdict"), [(1, "different: predictions"), (40, "inconclusive"), (100, "inconclusive")]
)
def test_people_decide_whether_the_endpoints_differ(size: int, verdict: str) -> None:
    """150 wrong sequences are those of 150 people, of four, or of two."""
    recorded, exact = (trained_again([1.0], 0, wrong_in(count), size) for count in (150, 10))
    others = [trained_again([1.0], seed, wrong_in(count), size) for seed, count in ((1, 6), (2, 8), (3, 12), (4, 20))]
    judged = verdicts.judge_final_scores(recorded, exact, others, verdicts.EnvironmentInfo(), num_alike=0)
    assert str(judged) == verdict, judged.sentence
    assert ("test groups" in judged.sentence) and ("no 95% interval: 4 test groups" in judged.sentence) == (size == 100)


def test_a_name_means_the_run_in_results_or_the_latest_and_an_experiments_its_own(
    project: Path, tmp_path: Path
) -> None:
    other = copy_of(project, tmp_path / "other")

    def answer(expression: str) -> str:
        return python(other, f"from tandem.tracking import find_runs; print({expression})").stdout.strip()

    answer("find_runs.experiments()")  # the copied store's artifacts are this project's from now on
    client = client_of(other)
    (original,) = runs_of(client)

    def record() -> str:
        tags = {name: original.data.tags[name] for name in ("workload", "requested_device")}
        tags["dvc.experiment"] = "brown-swan"
        new = client.create_run(original.info.experiment_id, tags=tags).info.run_id
        client.log_param(new, "device", "cpu")
        for name in ("train.json", "timing.json"):
            client.log_artifact(new, str(other / run_path(name)))
        client.set_terminated(new)
        return str(new)

    latest = record()

    def ids_of(name: str) -> list[str]:
        return answer(f"*(run.run_id for run in [find_runs.find({name!r}), *find_runs.find_seeds({name!r})])").split()

    assert ids_of("tiny@cpu") == ids_of("tiny@cpu-0") == [original.info.run_id] * 2
    refused = tandem(other, "compare", "tiny@cpu", "brown-swan", check=False)
    assert refused.returncode == 2 and "'brown-swan' is neither a run nor an existing file" in refused.stdout
    git(other, "update-ref", "refs/exps/1a/2b3c/brown-swan", "HEAD")
    assert ids_of("brown-swan") == [latest] * 2
    assert "| brown-swan " in tandem(other, "compare", "tiny@cpu", "brown-swan").stdout
    shutil.rmtree(other / "results/runs")
    assert ids_of("tiny@cpu") == [latest] * 2

"""The command `tandem`, as a user calls it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest

from flows import repro
from tandem.cli import COMMANDS, parse
from tandem.files import ROOT
from tandem.predicting import command as predict_command
from tandem.predicting.predictor import Predictor
from tandem.terminal.command import CommandError
from tests import forked
from tests.projects import (
    RUN,
    TINY,
    copy_of,
    dvc,
    environment,
    make_project,
    needs,
    python,
    run_path,
    stages_at_once,
)


def tandem(project: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """As tests.projects.tandem, with stderr apart."""
    code = f"import sys; from tandem.cli import main; sys.exit(main({list(arguments)}))"
    with TemporaryDirectory() as folder:
        paths = Path(folder) / "stdout", Path(folder) / "stderr"
        status = forked.run(project, code, environment(**extra), *paths)
        return subprocess.CompletedProcess(arguments, status, *(path.read_text() for path in paths))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new clone, in which nothing has run."""
    folder = make_project(tmp_path_factory.mktemp("cli") / "project")
    return Path(shutil.copytree(ROOT / "benchmarks", folder / "benchmarks").parent)


def state(folder: Path) -> dict[str, int]:
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path): path.stat().st_mtime_ns for path in paths if not path.is_dir()}


HELP = """
import sys
from contextlib import suppress
from tandem import cli
for command in ("", *cli.COMMANDS):
    print("=" * 40)
    with suppress(SystemExit):
        cli.main([*command.split(), "--help"])
"""


def test_help_teaches_and_does_nothing(project: Path, tmp_path: Path):
    before = state(project)
    variables = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    _, *helps = python(project, HELP, **variables).stdout.split("=" * 40 + "\n")
    for command, text in zip(("", *COMMANDS), helps, strict=True):
        assert text.startswith(f"usage: tandem {command or 'COMMAND'}")
        if command:
            assert re.search(rf"^    tandem {command}\b", text, re.MULTILINE), "an example"
            assert "\nExit status" in text and "  --json " in text
    assert state(project) == before and not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def own(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_of(trained, tmp_path_factory.mktemp("own") / "project")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shutil.copy(ROOT / "requirements.txt", folder)
    return folder


TABLE = "workloads/tiny/data/table.csv"
WRONG_ARGUMENTS = (
    "repro tinny", "repro train@tinny-cpu", "repro nothing.yaml", "repro --jsn", "repro --hlep",
    "status nothing", "sync nothing", "doctor nothing", "ui --port 1", "ui --prefect-port 99999", "ui --mlflow-port 0",
    "new third nothing.csv", f"new tiny {TABLE}", f"new a.b {TABLE}", f"new devices {TABLE}",
    f"new third {TABLE} --model nothing", f"new third {TABLE} --label nothing", f"new third {TABLE} --epochs 0",
    f"new third {TABLE} --missing skip", f"new third {TABLE} --model seq2seq",
    f"new third {TABLE} --encoding nothing", f"new third {TABLE} --axes NTC", f"new third {TABLE} --decimal x",
    "new third workloads/tiny/data --labels nothing.csv", "new third workloads/tiny/data --pattern nothing",
    "check tinny", "check tiny --devices tpu",
    "compare tiny@cpu", "compare nothing tiny@cpu", "compare tinny@cpu tiny@cpu", "compare tiny@tpu tiny@cpu",
    "compare workloads tiny@cpu", "compare 000000 tiny@cpu",
    "verify nothing", "verify tiny@tpu", "verify tiny@cpu --threads 0",
    f"predict tinny {TABLE}", "predict tiny nothing.csv", f"predict tiny@tpu {TABLE}",
    "show tinny", "show --commits 0",
    "gpu --pieces nothing",
)  # fmt: skip
SAID_OF_WRONG_ARGUMENTS = {
    "verfy": "error: 'verfy' is not a command; did you mean 'verify'?; `tandem --help` lists them",
    "verify": "error: the following arguments are required: RUN; `tandem verify --help` explains the arguments",
    "show --comits 1": "error: unknown argument '--comits'; did you mean '--commits'?; `tandem show --help` explains",
    "ui --mlflow-port x": "error: argument --mlflow-port: 'x'; accepted: 1, 2, 3, ...; `tandem ui --help` explains",
    f"predict tinny {TABLE}": "did you mean 'tiny'?",
    f"predict tiny@cuda {TABLE}": "has no model; params.yaml has `devices: [cpu]`; add cuda there and run",
    "predict tiny nothing.csv": "there is no table nothing.csv",
    "repro tinny": "did you mean 'tiny'?",
}


# What `main` and the processes that it starts print, of each command.
RUN_COMMANDS = """
import json, os, sys, tempfile
from tandem import cli

def run(words):
    try:
        return cli.main(words.split())
    except SystemExit as end:
        return end.code

found, outputs = {}, (os.dup(1), os.dup(2))
for words in COMMANDS:
    files = [tempfile.TemporaryFile("w+") for _ in outputs]
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    status = run(words)
    for number, (stream, output) in enumerate(zip((sys.stdout, sys.stderr), outputs), 1):
        stream.flush()
        os.dup2(output, number)
    found[words] = status, *(file.seek(0) or file.read() for file in files)
print(json.dumps(found))
"""


def outcomes_of(project: Path, *commands: str) -> dict[str, tuple[int, str, str]]:
    """Exit status, stdout and stderr of each command, all in one process."""
    return dict(json.loads(python(project, f"COMMANDS = {commands}\n{RUN_COMMANDS}").stdout.splitlines()[-1]))


DOCUMENTS: dict[str, tuple[int | None, set[str]]] = {
    "status": (0, {"outdated"}),
    "repro --dry": (0, {"stages", "seconds", "results"}),
    "compare tiny@cpu tiny@cpu": (2, {"error"}),
    "predict tiny workloads/tiny/data/table.csv": (0, {"predictions"}),
    "sync": (0, {"mlflow", "problems"}),
    "show": (0, {"tiny"}),
    "doctor --no-live": (None, {"healthy", "findings"}),
    "ui --host 0.0.0.0": (2, {"error"}),
    "gpu --list": (0, {"pieces"}),
    "new other workloads/tiny/data/table.csv": (0, {"workload", "block", "choices", "summary"}),
    "nothing": (2, {"error"}),
}


def test_json_is_one_document_on_stdout(own: Path):
    outcomes = outcomes_of(own, *(f"{words} --json" for words in DOCUMENTS))
    for (status, printed, written), (expected, keys) in zip(outcomes.values(), DOCUMENTS.values(), strict=True):
        document = json.loads(printed)
        assert set(document) == keys and expected in (None, status)
        if "error" in document:
            assert written.endswith(f"error: {document['error']}\n")


def test_a_wrong_argument_of_any_command_is_one_sentence_and_exit_status_2(own: Path):
    assert {words.split()[0] for words in WRONG_ARGUMENTS} == {*COMMANDS}
    every = tuple(dict.fromkeys((*WRONG_ARGUMENTS, *SAID_OF_WRONG_ARGUMENTS)))
    for words, (status, printed, written) in outcomes_of(own, *every).items():
        sentence = written.rpartition("\r")[2]  # after the progress of a command that takes longer than a second
        assert status == 2 and sentence.startswith("error: ") and len(sentence.splitlines()) == 1, (words, sentence)
        if words in SAID_OF_WRONG_ARGUMENTS:
            assert SAID_OF_WRONG_ARGUMENTS[words] in sentence and not printed, (words, sentence)


def test_bad_data_is_no_wrong_argument(own: Path, tmp_path: Path):
    (tmp_path / "bad.csv").write_text("x,y\n1,2\n3\n")
    for words in (f"new third {tmp_path}/bad.csv", f"predict tiny {tmp_path}/bad.csv"):
        assert tandem(own, *words.split()).returncode == 1


def test_no_option_of_dvc_is_taken_for_a_misspelt_one_of_tandem():
    needs("dvc")
    usage = subprocess.run(["dvc", "repro", "--help"], env=environment(), capture_output=True, text=True).stdout
    options = re.findall(r"(?<=[ ,])--?[a-zA-Z][\w-]*(?=[ ,\]\n])", usage)
    assert {"--force", "--single-item", "-s"} <= {*options}
    for option in {*options, "--show-stack", "--ss", "--pdb"} - {"--help", "-h"}:
        assert parse("repro", repro, [option]).more == [option]


def test_other_arguments_of_repro_go_to_dvc(project: Path):
    for target in ("tiny", "stages/dvc.yaml:hardware"):
        done = tandem(project, "repro", "--dry", "--single-item", target)
        assert "neither" not in done.stderr
    assert done.returncode == 0 and "Running stage 'stages/dvc.yaml:hardware'" in done.stdout
    refused = tandem(project, "repro", "--no-such-option")
    assert refused.returncode == 2 and "unrecognized arguments: --no-such-option" in refused.stderr


def test_the_command_runs_the_project_that_contains_the_current_directory(project: Path, tmp_path: Path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python").symlink_to(sys.executable)
    command = shutil.copy(ROOT / "tandem/command.sh", bin_folder / "tandem")
    os.chmod(command, 0o755)
    copied = shutil.copytree(project, tmp_path / "copied")
    cli = copied / "tandem/cli.py"
    cli.write_text(cli.read_text().replace("usage: tandem COMMAND", "usage of the copy: tandem COMMAND"))
    for folder, usage in ((project / "workloads/tiny", "usage: "), (copied / "workloads/tiny", "usage of the copy: ")):
        done = subprocess.run([command], cwd=folder, env=environment(), capture_output=True, text=True, check=True)
        assert done.stdout.startswith(usage)
    outside = subprocess.run([command], cwd=bin_folder, capture_output=True, text=True, check=False)
    assert outside.returncode == 2 and "is not in a Tandem project" in outside.stderr


def test_predict_gives_the_predictions_that_evaluate_recorded(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    table = pd.read_csv(project / "workloads/tiny/data/table.csv").drop(columns="label")
    table.to_csv(tmp_path / "new.csv", index=False)
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    assert done.returncode == 0, done.stderr
    actual = pd.read_csv(tmp_path / "out.csv", dtype=str).set_index("sequence")["predicted"]
    recorded = pd.read_csv(project / run_path("predictions.csv"), dtype=str).set_index("sequence")["predicted"]
    assert len(actual) == table["sequence"].nunique()
    assert (actual.loc[recorded.index] == recorded).all()
    assert not done.stderr
    table.assign(x=1000 * table["x"]).to_csv(tmp_path / "new.csv", index=False)
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    assert "warning: x is " in done.stderr and "is it in the same unit?" in done.stderr and " y is " not in done.stderr
    table.assign(step=2 * table["step"]).to_csv(tmp_path / "new.csv", index=False)
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    assert "warning: the rows are 2 apart in 'step', those of the training data 1; are they recorded at" in done.stderr
    table.to_csv(tmp_path / "new.csv", index=False)
    params = project / "params.yaml"
    params.write_text(TINY.replace("epochs: 3", "epochs: 4"))  # as after `git stash`, which leaves results/
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"))
    assert "warning: this model was trained with other parameters: train.epochs 3, not 4" in done.stderr
    params.write_text(TINY.replace("weights: last", "weights: best"))  # `evaluate` has not run since
    actual = python(project, "from tandem.predicting.command import model_of; print(model_of('tiny')[1])").stdout
    params.write_text(TINY)
    assert actual == "last\n", "the weights that are scored in results/"
    scored = project / run_path("score.json")
    content = scored.read_bytes()
    scored.unlink()  # as after `dvc repro train@tiny-cpu`
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"))
    scored.write_bytes(content)
    assert "warning: this model has no score yet; `tandem repro tiny` evaluates it" in done.stderr
    record = project / run_path("timing.json")
    content = record.read_bytes()
    record.unlink()
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"))
    record.write_bytes(content)
    assert (
        done.returncode == 1
        and "has no timing.json, which every finished training writes; make it again with `" in done.stderr
    )
    weights = project / RUN / "last.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + bytes(4))  # the last weight becomes 0
    done = tandem(project, "predict", "tiny", str(tmp_path / "new.csv"))
    assert done.returncode == 1 and "last.safetensors is altered (its sha256 is not the recorded one)" in done.stderr


def test_predict_ignores_a_feature_that_was_constant_in_training(trained: Path):
    """Its standard deviation is 0 in model.json; an older model.json has 1, and is read as then."""
    table = pd.read_csv(trained / "workloads/tiny/data/table.csv").drop(columns="label")
    predictor = Predictor(trained / RUN, "last")
    learned = np.array(predictor.learned["std"])
    for std, is_ignored in ((0, True), (1, False)):
        predictor.learned["std"] = [learned[0], std, learned[2], std]
        first, second = (predictor.predict(table.assign(y=y))["confidence"] for y in (table["y"], table["y"] * 9))
        assert (first == second).all() == is_ignored


def test_a_model_reads_times_as_text(trained: Path):
    """As a server gets them in JSON."""
    table, predictor = pd.read_csv(trained / TABLE), Predictor(trained / RUN, "last")
    expected = predictor.predict(table)
    times = pd.Timestamp("2024-03-01") + pd.to_timedelta(table["step"], "s")
    for step in (times, times.astype(str), times.dt.tz_localize("UTC").astype(str), table["step"].astype(str)):
        assert predictor.predict(table.assign(step=step)).equals(expected)


def test_predict_reads_what_tandem_new_reads(trained: Path, tmp_path: Path):
    """The same numbers in other files give the same predictions, without labels."""
    table = pd.read_csv(trained / "workloads/tiny/data/table.csv").drop(columns="label").round(6)
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "t.csv.bz2", index=False)
    table.to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",")
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t", encoding="utf-16")
    x, y = (table.pivot(index="sequence", columns="step", values=name).add_prefix(f"{name}_") for name in "xy")
    pd.concat([x, y], axis=1).to_csv(tmp_path / "wide.csv", index=False)
    values = np.stack([x, y], axis=2)
    np.save(tmp_path / "ntc.npy", values)
    np.save(tmp_path / "nct.npy", values.swapaxes(1, 2))
    (tmp_path / "files").mkdir()
    (tmp_path / "backwards").mkdir()
    for number, rows in table.rename(columns={"step": "pos"}).groupby("sequence"):
        rows[::-1].drop(columns="sequence").to_csv(tmp_path / f"backwards/{number:02}.csv", index=False)
    for name in ("several", "alike"):  # two sequences in a file; in `alike` each file counts from 0
        (tmp_path / name).mkdir()
        for number, rows in table.groupby(table["sequence"] // 2):
            ids = rows["sequence"] % 2 if name == "alike" else rows["sequence"]
            rows.assign(sequence=ids).sort_values("step").to_csv(tmp_path / f"{name}/{number:02}.csv", index=False)
    for number, sequence in enumerate(values):
        pd.DataFrame(sequence, columns=["x", "y"]).to_csv(tmp_path / "files" / f"{number:02}.csv", index=False)
        (tmp_path / "frames" / f"{number:02}").mkdir(parents=True)
        for step, numbers in enumerate(sequence):
            np.save(tmp_path / "frames" / f"{number:02}/{step}.npy", numbers)

    predictor = Predictor(trained / RUN, "last")
    expected = predictor.predict(predictor.read(tmp_path / "t.csv"))["predicted"]
    assert len(expected) == len(values) and expected.nunique() > 1

    def predicted(name: str, **options: str) -> list[str]:
        return list(predictor.predict(predict_command.read(predictor, tmp_path / name, options))["predicted"])

    tables = ("t.csv", "t.csv.bz2", "semicolons.csv", "t.tsv", "wide.csv", "files", "several", "alike")
    assert {name: predicted(name) for name in tables} == dict.fromkeys(tables, list(expected))
    with pytest.raises(ValueError, match=r"ntc.npy as one long table has no column 'x'"):
        predicted("ntc.npy")
    columns = predictor.learned["columns"]
    predictor.learned["columns"] = {**columns, "step": "pos"}  # only the training knows the name
    assert predicted("backwards") == list(expected)
    columns = {**columns, "features": ["c0", "c1"]}  # as of a workload made of arrays
    predictor.learned |= {"columns": columns, "features": ["c0", "c1", "dc0", "dc1"]}
    arrays = ("ntc.npy", "nct.npy", "frames")
    assert {name: predicted(name) for name in arrays} == dict.fromkeys(arrays, list(expected))
    np.save(tmp_path / "short.npy", values[:, :3])  # the number of the model's features shows the axes
    assert len(predicted("short.npy")) == len(values)
    np.save(tmp_path / "square.npy", values[:, :2])
    with pytest.raises(CommandError, match="give --axes NTC for 2 steps or --axes NCT"):
        predicted("square.npy")
    assert len(predicted("square.npy", axes="NTC")) == len(values)
    np.save(tmp_path / "long.npy", np.tile(values, (1, 9, 1)))
    with pytest.raises(ValueError, match=r"^sequence '0' has \d+ steps; the model was trained with up to \d+$"):
        predicted("long.npy")


def test_status_and_a_dry_run_name_what_would_run(trained: Path, tmp_path: Path):
    project = copy_of(trained, tmp_path / "project")
    done = tandem(project, "status")
    assert (done.returncode, done.stdout) == (0, "up to date\n")
    params = project / "params.yaml"
    # DVC alone compares with the code that `hardware` described at its last run: everything would be up to date.
    code = (script := project / "stages/train.py").read_text()
    script.write_text(f"{code}\nCHANGED = True\n")
    assert "Running stage 'train@tiny-cpu'" in tandem(project, "repro", "--dry").stdout
    script.write_text(code)
    machine = "train@tiny-cpu: machine"
    assert machine in tandem(project, "status", MKL_CBWR="AVX2").stdout.splitlines()
    params.write_text(TINY.replace("weights: last", "weights: best"))
    done = tandem(project, "status", "--json")
    assert done.returncode == 1
    assert set(json.loads(done.stdout)["outdated"]) == {"evaluate@tiny-cpu", "compare"}
    assert dvc(project, "repro", "--dry").returncode == 0
    shutil.rmtree(project / "results/runs")
    shutil.rmtree(project / "data")
    first, *others = tandem(project, "status").stdout.splitlines()
    assert first == "tiny: no results here (7 stages)" and len(others) == 2, "compare, and the number of stages"


def test_new_data_is_prepared_as_the_training_data_was(tmp_path: Path):
    """Features that are never seen, words, other rates, a class that is left out, rows twice: the predictions for the
    test sequences are those of `evaluate`.
    """
    draw, parts = np.random.default_rng(0), []
    for number in range(40):
        rate = (10, 20)[number % 2]
        time = np.arange(2 * rate) / rate
        x = np.sin(time * (1 + number // 2 % 2) + draw.normal())
        part = {"sequence": f"s{number}", "seconds": time, "x": x, "y": draw.normal(size=len(time)), "z": 1 - x}
        label = "rare" if number == 39 else ("slow", "fast")[number // 2 % 2]
        parts.append(pd.DataFrame({**part, "mode": draw.choice(["low", "high"], len(time)), "label": label}))
        if number % 5 == 0:
            parts[-1][["x", "z"]] = np.nan
    table = pd.concat(parts, ignore_index=True)
    table.loc[[3, 70, 200], ["x", "z"]] = np.nan
    table = pd.concat([table, table.iloc[[8, 9]]])
    keys = "    missing: mask\n    rate: 20\n    categories: [mode=high, mode=low]\n    rare_classes: omit\n"
    params = TINY.replace("features: [x, y]", "features: [x, y, z]").replace("    missing: refuse\n", keys)
    params = params.replace("step: step", "step: seconds").replace("coupled_features: 2", "coupled_features: 1")
    project = make_project(tmp_path / "project", params, table)
    before = ("hardware", "preprocess tiny", "baseline tiny", "preload tiny cpu")
    stages_at_once(project, *before, "train tiny cpu 0", "evaluate tiny cpu", publishes=False)
    learned = json.loads((project / RUN / "model.json").read_text())["preprocessing"]
    assert learned["features"][:6] == ["x", "y", "z", "mode=high", "mode=low", "x seen"]
    expected = pd.read_csv(project / run_path("predictions.csv"))
    assert len(expected) and set(learned["classes"]) == {"slow", "fast"}
    table[table["sequence"].isin(expected["sequence"])].drop(columns="label").to_csv(project / "new.csv", index=False)
    done = tandem(project, "predict", "tiny", "new.csv", "-o", "out.csv")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    predicted = pd.read_csv(project / "out.csv")
    merged = predicted.merge(expected, on="sequence", suffixes=("", "_expected"))
    assert len(merged) == len(expected) and (merged["predicted"] == merged["predicted_expected"]).all()
    np.testing.assert_allclose(merged["confidence"], merged["confidence_expected"], atol=1e-5)
    new = pd.read_csv(project / "new.csv")
    for folder, unused in (("files", []), ("untimed", ["seconds"])):  # two sequences in a file
        (project / folder).mkdir()
        for number, (_, rows) in enumerate(new.groupby(pd.factorize(new["sequence"])[0] // 2)):
            rows.drop(columns=unused).to_csv(project / folder / f"{number}.csv", index=False)
    assert tandem(project, "predict", "tiny", "files", "-o", "out2.csv").returncode == 0
    pd.testing.assert_frame_equal(
        pd.read_csv(project / "out2.csv").set_index("sequence").loc[predicted["sequence"]],
        predicted.set_index("sequence"),
    )
    done = tandem(project, "predict", "tiny", "untimed")
    assert done.returncode == 1
    assert "untimed has no column 'seconds', by which the training data was cut or resampled; add it" in done.stderr
    new = new.replace({"mode": {"low": "middle"}})
    new.to_csv(project / "new.csv", index=False)
    assert "'mode' holds words that are no categories: middle" in tandem(project, "predict", "tiny", "new.csv").stderr

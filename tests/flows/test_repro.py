"""`tandem repro` and a plain `dvc repro` on stages that do nothing: what is printed, and what a signal ends."""

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from zc.lockfile import LockFile

from flows import repro
from tandem import files
from tests.projects import wait_for
from tests.served import STAGE_SECONDS, Project, make_project


@pytest.fixture(scope="module")
def unserved(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(make_project(tmp_path_factory.mktemp("project")))


@pytest.fixture
def project(unserved: Project) -> Project:
    """A project without servers, whose stages behave as usual at the start of each test."""
    unserved.reset()
    return unserved


def test_what_a_user_can_cause_is_one_sentence(project: Project) -> None:
    result = project.run("-m", "tandem.stage", "trian", "sign", "auto")
    assert result.returncode == 1 and "did you mean 'train'?" in result.stderr
    project.behave(train={"fail": "params.yaml: sign.train.epochs is 0; it must be at least 1"})
    result = project.run("-m", "tandem.stage", "train", "sign", "auto", "0", TANDEM_RUN="t")
    assert result.returncode == 1
    assert result.stderr == "error: params.yaml: sign.train.epochs is 0; it must be at least 1\n"
    record = json.loads((project.root / ".tandem" / "last_error.json").read_text())
    assert (record["stage"], record["run"]) == ("train@sign-auto", "t") and "epochs is 0" in record["message"]
    project.behave(train={"bug": "x"})
    result = project.run("-m", "tandem.stage", "train", "sign", "auto", "0")
    assert result.returncode == 1 and "Traceback" in result.stderr


@pytest.mark.case(38)
def test_dvc_repro_knows_no_prefect(project: Project, saw: Callable[[str], None]) -> None:
    """dvc repro where PREFECT_API_URL is an API that never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        result = project.run("-m", "dvc", "repro", "--force", PREFECT_API_URL=url)
        assert result.returncode == 0, result.stdout + result.stderr
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            silent.accept()
        saw("nothing: `dvc repro` does not ask it")


def test_repro_prints_a_line_per_stage_and_keeps_the_rest_in_a_log(project: Project) -> None:
    """Of at most 100 letters, and none of a stage that printed nothing."""
    parts = "8,264 windows; " + "; ".join(f"{number} rows out of order" for number in range(20))
    project.behave(hardware={"say": ""}, train={"say": parts})
    result = project.run("-m", "tandem.cli", "repro", "--force")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if re.match(r"\S+ +[\d.]+ s ", line)]  # no warnings of DVC
    assert [line.split()[0] for line in lines] == ["train@sign-auto", "compare"], result.stdout
    assert "8,264 windows; 0 rows out of order" in lines[0] and len(lines[0]) <= 100
    assert "0.8750" in result.stdout and "Some CPU" in result.stdout
    assert "Running stage" not in result.stdout and "Traceback" not in result.stderr
    log = project.root / ".tandem/logs/repro.log"
    assert {"train@sign-auto", parts, "compare says hello"} <= set(log.read_text().splitlines())
    project.reset()
    verbose = project.run("-m", "tandem.cli", "repro", "--force", "--verbose").stdout
    assert "Running stage 'train@sign-auto'" in verbose and "\ncompare says hello\n" in verbose
    assert "0.8750" in verbose
    partial = project.run("-m", "tandem.cli", "repro", "train@sign-auto").stdout
    assert "these are the results of the last `compare`" in partial and "of the last" not in result.stdout
    project.behave(hardware={"fail": "the download: interrupted"})
    result = project.run("-m", "tandem.cli", "repro")
    assert result.returncode == 1 and "error: the download: interrupted" in log.read_text()
    assert "error: the download: interrupted" not in result.stdout.splitlines()
    assert re.search(r"^hardware .* s  failed$", result.stdout, re.MULTILINE), result.stdout
    assert "\nFailed after " in result.stdout and "\nerror: hardware: the download: interrupted\n" in result.stdout


def test_repro_waits_while_another_command_of_dvc_holds_its_lock(project: Project) -> None:
    """`dvc status` of large data, for example. DVC's own `repro` gives up three seconds after its stage has ended."""
    project.behave(train={"sleep": 1})
    with project.start("-m", "tandem.cli", "repro", "--force") as process:
        stage = project.stage_process()
        lock = LockFile(str(project.root / ".dvc/tmp/lock"))
        stage.wait()
        time.sleep(5)
        lock.close()
        output, _ = process.communicate()
        assert process.returncode == 0, output


USED = r"`{} repro --force` \(process {}, since [\d-]+ \d\d:\d\d\) uses this project; wait for its end or stop it"


def test_a_second_repro_names_the_first_and_leaves_its_log(project: Project) -> None:
    project.behave(train={"sleep": STAGE_SECONDS})
    log = project.root / ".tandem/logs/repro.log"
    with project.start("-m", "tandem.cli", "repro", "--force") as first:
        project.stage_process()
        used = USED.format("tandem", first.pid)
        for words in ([], ["train@sign-auto"], ["--verbose"], ["--dry"]):
            second = project.run("-m", "tandem.cli", "repro", *words)
            expected = f"error: {used}, then run `{' '.join(['tandem repro', *words])}`\n"
            assert second.returncode == 2 and re.fullmatch(expected, second.stderr), second.stdout + second.stderr
        status = project.run("-m", "tandem.cli", "status", "--json")
        assert status.returncode == 2 and re.fullmatch(used, json.loads(status.stdout)["error"]), status.stdout
        (project.root / "go").touch()
        assert first.wait(600) == 0
        first.communicate()
    assert {"train-sign-auto-0 says hello", "compare says hello"} <= set(log.read_text().splitlines())


@pytest.mark.case(44)
def test_what_runs_beside_a_plain_dvc_repro_names_it_once(project: Project, saw: Callable[[str], None]) -> None:
    """tandem repro and tandem status while a plain `dvc repro` trains"""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start("-m", "dvc", "repro", "--force") as first:
        project.stage_process()
        used = USED.format("dvc", first.pid)
        for words, status in ((["repro"], 1), (["repro", "--dry"], 1), (["status"], 2)):
            second = project.run("-m", "tandem.cli", *words)
            output = second.stdout + second.stderr
            assert second.returncode == status and re.search(f"^(error|ERROR): {used}$", output, re.MULTILINE), output
            assert output.count(str(first.pid)) == 1 and "rwlock" not in output, output
        saw(output.strip())
        (project.root / "go").touch()
        assert first.wait(600) == 0
        first.communicate()


def test_damaged_results_are_absent_and_a_mistake_of_tandem_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    path = files.compare_dir() / "compare.json"
    path.parent.mkdir(parents=True)
    assert repro.results() == ([], ["no results in results/compare"])
    for content in ("", "null", "{}", "[" * 5000, '{"rows": [{}]}'):
        path.write_text(content)
        assert repro.results() == ([], ["no results in results/compare"])
    row = {"workload": "sign", "seeds": 1}
    files.write_json(path, {"rows": [row], "short_verdicts": {}, "outdated": []})
    with pytest.raises(TypeError):
        repro.results()


def test_a_stage_is_interrupted_if_a_signal_ended_it(project: Project) -> None:
    """If its error alone says so, it failed: the test of the lines."""
    project.behave(train={"signal": signal.SIGINT})
    result = project.run("-m", "tandem.cli", "repro", "--force")
    assert result.returncode == 130 and "\nStopped after " in result.stdout, result.stdout
    assert re.search(r"^train@sign-auto .* s  interrupted$", result.stdout, re.MULTILINE), result.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.case(25)
def test_a_signal_that_ends_dvc_alone_ends_its_stage(project: Project, number: int, saw: Callable[[str], None]) -> None:
    """kill -9, SIGTERM and SIGHUP of a plain `dvc repro` while its stage runs."""
    project.behave(train={"sleep": STAGE_SECONDS})
    with project.start("-m", "dvc", "repro", "--force") as process:
        project.stage_process()
        started = time.monotonic()
        process.send_signal(number)
        wait_for(lambda: not project.left_running(), STAGE_SECONDS / 2, "the end of the stage")
        saw(f"the stage ended {time.monotonic() - started:.0f} s after it")

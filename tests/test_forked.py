"""A stage that runs in a fork, for `make repro` and the flows: as DVC's child would have run it, however either ends.

tests/test_pipeline.py kills and interrupts a whole `make repro`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from flows.forked import ADDRESS
from tests.projects import held, is_gone, run, start, wait_for

TRAIN = (sys.executable, "-m", "flows.stage", "train", "tiny", "cpu", "0")
RESULTS = Path("results/runs/tiny/cpu/0")

# Prints the address of a server, and keeps it until stdin ends. With an argument, a stage that asks starts it.
HOST = """
import os, sys
from flows import forked
with forked.servers() as start:
    sys.argv[1:] or start()
    print(os.environ[forked.ADDRESS], flush=True)
    sys.stdin.read()
"""

# Another user asks for a training, and prints what comes back.
INTRUDER = """
import os, socket
from flows import forked
os.setuid(65534)
print(forked.asked(socket.socket(socket.AF_UNIX), {"stage": "train", "item": ["tiny", "cpu", "0"]}))
"""


@contextmanager
def host(project: Path, *arguments: str, **extra: str) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """Who started a server, and the environment of stages that ask it."""
    starter = start(project, sys.executable, "-c", HOST, *arguments, **extra)
    assert starter.stdout
    asking = {ADDRESS: starter.stdout.readline().strip(), **extra}
    try:
        yield starter, asking
    finally:
        starter.kill()
        starter.communicate()


def server_of(starter: subprocess.Popen) -> psutil.Process:
    [found] = [child for child in psutil.Process(starter.pid).children() if "flows.forked" in child.cmdline()]
    return found


@contextmanager
def training(project: Path, folder: Path) -> Iterator[tuple[subprocess.Popen, subprocess.Popen, psutil.Process]]:
    """Who started the server, who asked it for a training, and the fork, which waits after epoch 2 of 3."""
    with host(project, **held(folder, 2)) as (starter, asking):
        asked = start(project, *TRAIN, **asking)
        try:
            assert asked.stdout
            wait_for(lambda: asked.stdout.readline().startswith("epoch 2/"), what="epoch 2")
            [fork] = server_of(starter).children()
            yield starter, asked, fork
        finally:
            asked.kill()
            asked.communicate()


def train(project: Path, **extra: str) -> str:
    return run(project, *TRAIN, **extra).stdout


def weights(project: Path) -> bytes:
    return (project / RESULTS / "last.safetensors").read_bytes()


def test_a_fork_gives_the_bytes_and_the_words_of_a_stages_own_process(ready: Path, tmp_path: Path):
    own = train(ready)
    expected = weights(ready)
    (ready / RESULTS / "last.safetensors").unlink()
    with training(ready, tmp_path / "held") as (_, asked, fork):
        assert os.getpgid(fork.pid) != os.getpgid(asked.pid)
        (tmp_path / "held/go").touch()
        rest, _ = asked.communicate()
    assert asked.returncode == 0 and weights(ready) == expected
    last = "epoch 3/3: train loss"
    assert [line.split(",")[0] for line in own.splitlines() if line.startswith(last)] == [
        line.split(",")[0] for line in rest.splitlines() if line.startswith(last)
    ]


@pytest.mark.parametrize("killed", ["who asked", "the fork", "the server"])
def test_when_one_is_killed_none_goes_on_and_the_next_goes_on_from_the_checkpoint(
    ready: Path, trained: Path, tmp_path: Path, killed: str
):
    with training(ready, tmp_path / "held") as (starter, asked, fork):
        server = server_of(starter)
        {"who asked": asked, "the fork": fork, "the server": server}[killed].kill()
        wait_for(lambda: is_gone(fork), what="the fork's end")
        assert asked.wait(60) == -signal.SIGKILL, "what DVC says of it is what happened to the stage"
        assert is_gone(server) == (killed == "the server")
    said = train(ready)
    assert "was killed (by kill -9 or the like), or crashed" in said and "going on from .tandem/checkpoints" in said
    assert weights(ready) == weights(trained)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl+C", "SIGTERM"])
def test_a_signal_reaches_the_fork_which_saves(ready: Path, trained: Path, tmp_path: Path, number: int):
    with training(ready, tmp_path / "held") as (_, asked, fork):
        asked.send_signal(number)
        wait_for(lambda: "stopping after this epoch" in asked.stdout.readline(), what="its answer")
        (tmp_path / "held/go").touch()
        rest, _ = asked.communicate(timeout=120)
        assert asked.returncode == 130 and "run again to go on" in rest and is_gone(fork)
    assert "going on from .tandem/checkpoints" in train(ready)
    assert weights(ready) == weights(trained)


def test_ctrl_z_stops_both_and_both_go_on(ready: Path, tmp_path: Path):
    with training(ready, tmp_path / "held") as (_, asked, fork):
        asked.send_signal(signal.SIGTSTP)
        wait_for(lambda: fork.status() == psutil.Process(asked.pid).status() == psutil.STATUS_STOPPED, what="both stop")
        asked.send_signal(signal.SIGCONT)
        (tmp_path / "held/go").touch()
        asked.communicate(timeout=120)
        assert asked.returncode == 0


def test_the_server_outlives_who_started_it_until_its_fork_has_ended(ready: Path, tmp_path: Path):
    with training(ready, tmp_path / "held") as (starter, asked, fork):
        server = server_of(starter)
        starter.kill()
        starter.wait()
        assert not is_gone(fork) and not is_gone(server)
        (tmp_path / "held/go").touch()
        asked.communicate(timeout=120)
        assert asked.returncode == 0
        wait_for(lambda: is_gone(server), what="the server's end")


def test_a_stage_that_fails_says_why_where_its_own_process_would(ready: Path):
    (ready / "data/packed/tiny/cpu/train.safetensors").unlink()
    own = run(ready, *TRAIN, check=False)
    with host(ready) as (_, asking):
        forked = run(ready, *TRAIN, check=False, **asking)
    assert (own.returncode, own.stdout) == (forked.returncode, forked.stdout) and "error: " in own.stdout
    assert own.returncode == 1


@pytest.mark.parametrize("how", ["nobody listens", "the server cannot import torch", "nothing started the server"])
def test_no_server_costs_no_training(ready: Path, tmp_path: Path, how: str):
    if how == "nobody listens":
        assert "epoch 3/3" in train(ready, **{ADDRESS: "nobody"})
        return
    extra = {}
    if how == "the server cannot import torch":
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/sitecustomize.py").write_text(
            "import sys\nif 'flows.forked' in sys.orig_argv: sys.modules['torch'] = None\n"
        )
        extra = {"PYTHONPATH": str(tmp_path / "broken")}
    with host(ready, *(["on demand"] if how == "nothing started the server" else []), **extra) as (starter, asking):
        assert "epoch 3/3" in train(ready, **asking)
        children = psutil.Process(starter.pid).children()
        running = [child for child in children if not is_gone(child) and "flows.forked" in child.cmdline()]
        assert len(running) == (how == "nothing started the server")


def test_a_gpu_is_not_used_from_a_fork(ready: Path, monkeypatch: pytest.MonkeyPatch):
    from flows import forked

    monkeypatch.setenv(ADDRESS, "any")
    monkeypatch.setattr(forked, "CODE", str(ready))
    monkeypatch.setattr(forked, "ROOT", str(ready))
    assert forked.is_possible(["tiny", "cpu", "0"])
    hardware = ready / "results/hardware/cpu.json"
    hardware.write_text(hardware.read_text().replace('"kind": "cpu"', '"kind": "cuda"'))
    assert not forked.is_possible(["tiny", "cpu", "0"]) and not forked.is_possible(["tiny", "auto", "0"])
    monkeypatch.setattr(forked, "ROOT", str(ready.parent))  # `dvc exp run --temp` works in a copy, with its own code
    assert not forked.is_possible(["tiny", "cpu", "0"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_fork(ready: Path):
    with host(ready) as (starter, asking):
        assert run(ready, sys.executable, "-c", INTRUDER, **asking).stdout == "None\n"
        assert not server_of(starter).children() and not (ready / RESULTS).exists()
        assert "epoch 3/3" in train(ready, **asking)

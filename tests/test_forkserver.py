"""One process imports MLflow for the uploaders of several stages: what they record arrives, whichever is killed."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stages.records.forkserver import ADDRESS
from tests.projects import is_gone, run, settle, start, wait_for
from tests.recording import RECORD, statuses

# Prints the server's process and address, and keeps it until stdin ends.
HOST = """
import os, sys
from stages.records import forkserver, journal
with journal.uploaders() as uploaders:
    uploaders.start()
    print(uploaders.process.pid, os.environ[forkserver.ADDRESS], flush=True)
    sys.stdin.read()
"""
AND_HOW = "print(type(written.uploader).__name__)"
# Goes on with the record once stdin says so.
WAITING = RECORD.replace("print(", "print('asked', flush=True)\nsys.stdin.readline()\nprint(", 1) + AND_HOW

# A record, where nothing started the server before.
ON_DEMAND = """
from stages.records import journal
with journal.uploaders():
""" + textwrap.indent(RECORD + AND_HOW, "    ")

# Another user asks for a fork, and prints what comes back.
INTRUDER = """
import os, sys
from pathlib import Path
from stages.records import forkserver
os.setuid(65534)
try:
    print(forkserver.ask(Path(sys.argv[1])).connection.recv(1))
except ConnectionResetError:
    print("refused")
"""


@contextmanager
def host(project: Path) -> Iterator[tuple[subprocess.Popen, psutil.Process, dict[str, str]]]:
    """Who starts a fork server, the server, and the environment of those that ask it."""
    starter = start(project, sys.executable, "-c", HOST)
    assert starter.stdout
    pid, address = starter.stdout.readline().split()
    server = psutil.Process(int(pid))
    try:
        yield starter, server, {ADDRESS: address}
    finally:
        for process in (starter, server):
            if process.is_running() if isinstance(process, psutil.Process) else process.poll() is None:
                process.kill()
        starter.communicate()


def recorded(project: Path, name: str, **extra: str) -> tuple[dict[str, str], str]:
    """What `Journal.end` returned, and how its uploader was started."""
    *_, answer, how = run(project, sys.executable, "-c", RECORD + AND_HOW, name, "120", **extra).stdout.splitlines()
    return json.loads(answer), how


def sender(project: Path) -> psutil.Process:
    """The process that sends the one journal there is."""

    def found() -> str:
        [journal] = [path for path in (project / ".tandem/journals").iterdir() if path.is_dir()]
        return (journal / "lock").read_text() if (journal / "lock").exists() else ""

    return psutil.Process(int(wait_for(found, what="a process that sends the journal")))


@pytest.mark.parametrize("end", ["at its end", "by kill -9"])
def test_the_uploaders_of_one_process_send_all_and_it_ends_with_who_started_it(ready: Path, end: str):
    (ready / "mlruns/mlflow.db").unlink()  # it makes the store
    with host(ready) as (starter, server, asking):
        (first, how), (second, _) = recorded(ready, "one", **asking), recorded(ready, "two", **asking)
        assert how == "Forked" and "run_id" in first and "run_id" in second
        settle(ready)
        waiting = start(ready, sys.executable, "-c", WAITING, "three", "120", **asking)
        assert waiting.stdout and waiting.stdout.readline() == "asked\n"
        fork = sender(ready)
        starter.kill() if end == "by kill -9" else starter.communicate("")
        wait_for(lambda: is_gone(server), what="the server's end")
        assert not is_gone(fork), "it has not sent its journal yet"
        assert "run_id" in waiting.communicate("\n")[0]
        wait_for(lambda: is_gone(fork), what="the fork's end")
    assert statuses(ready) == dict.fromkeys(("one", "two", "three"), "FINISHED")
    assert not list((ready / ".tandem/journals").iterdir())


def test_it_starts_when_it_is_asked(ready: Path):
    """`dvc repro --quiet` says of no stage that it runs."""
    done = run(ready, sys.executable, "-c", ON_DEMAND, "one", "120")
    assert "run_id" in done.stdout and done.stdout.splitlines()[-1] == "Forked"
    wait_for(lambda: statuses(ready) == {"one": "FINISHED"}, what="the record")


def test_a_server_killed_while_it_imports_costs_no_record(ready: Path):
    with host(ready) as (_, server, asking):
        server.suspend()  # it has not come to the socket yet
        waiting = start(ready, sys.executable, "-c", WAITING, "one", "120", **asking)
        assert waiting.stdout and waiting.stdout.readline() == "asked\n"
        server.kill()
        said, _ = waiting.communicate("\n")
        assert "run_id" in said and said.splitlines()[-1] == "Popen"
        assert recorded(ready, "two", **asking)[1] == "Popen"
    wait_for(lambda: statuses(ready) == {"one": "FINISHED", "two": "FINISHED"}, what="both records")


def test_what_a_killed_fork_did_not_send_the_next_one_sends(ready: Path):
    with host(ready) as (_, _, asking):
        waiting = start(ready, sys.executable, "-c", WAITING, "one", "120", **asking)
        assert waiting.stdout and waiting.stdout.readline() == "asked\n"
        sender(ready).kill()
        waiting.communicate("\n")
        assert recorded(ready, "two", **asking)[1] == "Forked"
        wait_for(lambda: statuses(ready) == {"one": "FINISHED", "two": "FINISHED"}, what="both records")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_fork(ready: Path):
    with host(ready) as (_, server, asking):
        assert run(ready, sys.executable, "-c", INTRUDER, str(ready), **asking).stdout == "refused\n"
        assert recorded(ready, "one", **asking)[1] == "Forked"
        assert not is_gone(server)
    assert not (ready / "uploader.log").exists()


OPENED_AGAIN = """
import gc
from stages.records.connection import open_client
open_client()
kept = gc.get_freeze_count()
garbage = [[] for _ in range(1000)]
open_client()
print(kept > 100_000, gc.get_freeze_count() <= kept)
"""


def test_a_store_that_is_opened_again_keeps_no_garbage_for_good(ready: Path):
    """An uploader tries a store that is away every few seconds, for as long as a training takes."""
    assert run(ready, sys.executable, "-c", OPENED_AGAIN).stdout == "True True\n"

"""The cost of a failing Prefect server to a pipeline, by fault and moment.

    python -m benchmarks.outages [--epochs 50]

- dead: the server is killed, and restarted when the command has ended
- frozen: it is stopped (SIGSTOP) until the command has ended: the kernel accepts connections that nobody answers
- black hole: a forwarder accepts the traffic and passes nothing on until the command has ended
- restarted: it is killed and restarted at once

Each fault occurs at the start (before the command), in the middle (at the middle epoch's line) and at the end (at
the last epoch's line); the first and the last command run without a fault. The pipeline has one stage, whose epochs
sleep for 0.1 s, so the rest is the cost of tracking and display: DVC and the flow are real.
tests/faults/test_outages.py has the faults of MLflow's server.
"""

import argparse
import atexit
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ruamel.yaml import YAML

from benchmarks import sandbox
from benchmarks.markdown import describe_machine, header, row
from benchmarks.overhead import FLOW, PACKAGES, PREFECT, WORKLOAD, make_tandem

FAULTS = ("dead", "frozen", "black hole", "restarted")
MOMENTS = ("start", "middle", "end")
STAGE = """
import sys, time
for epoch in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.1)
    print(f"epoch {epoch}/{sys.argv[1]}:", flush=True)
open("done", "w").close()
"""


class ForwardedServer(sandbox.Server):
    """A server behind a forwarder that can drop all traffic."""

    def __init__(self, command: str, address: str, **settings: str) -> None:
        self.is_hole = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.forwarder = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        super().__init__(command, address, **settings)
        atexit.register(self.kill)
        threading.Thread(target=self.forward, daemon=True).start()

    def fail(self, fault: str) -> None:
        if fault in ("dead", "restarted"):
            self.kill()
        if fault == "restarted":
            self.launch()
        if fault == "frozen":
            self.signal(signal.SIGSTOP)
        self.is_hole = fault == "black hole"

    def mend(self, fault: str) -> None:
        self.is_hole = False
        if fault == "dead":
            self.launch()
        if fault == "frozen":
            self.signal(signal.SIGCONT)
        self.wait()

    def forward(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.port)) if not self.is_hole else None
        except OSError:
            client.close()  # the closest that a forwarder gets to refusing
            return
        threading.Thread(target=self.pump, args=(client, server), daemon=True).start()
        if server:
            self.pump(server, client)

    def pump(self, source: socket.socket, sink: socket.socket | None) -> None:
        try:
            while chunk := source.recv(65536):
                if sink and not self.is_hole:
                    sink.sendall(chunk)
        except OSError:
            pass
        while self.is_hole:
            time.sleep(0.1)
        for end in (source, sink):
            if end:
                end.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50, help="of 0.1 s each (50)")
    epochs = parser.parse_args().epochs
    print(f"{describe_machine(packages=PACKAGES)}\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        home = {"PREFECT_HOME": f"{name}/prefect", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        server = ForwardedServer(*PREFECT, **home)
        settings = {**home, "PREFECT_API_URL": f"{server.forwarder}/api"}
        project = make_tandem(Path(name) / "project", WORKLOAD)
        (project / "stages/dvc.yaml").unlink()
        (project / "sleep.py").write_text(STAGE)
        graph = {"stages": {"train": {"cmd": f"python sleep.py {epochs}", "deps": ["sleep.py"], "outs": ["done"]}}}
        with (project / "dvc.yaml").open("w") as file:
            YAML().dump(graph, file)
        print(header("fault", "moment", "pipeline (s)", "exit status"), flush=True)
        for fault, moment in cases():
            seconds, status = timed([*FLOW, "--force"], project, server, fault, moment, epochs, settings)
            print(row(fault, moment, f"{seconds:.1f}", status), flush=True)


def cases() -> list[tuple[str, str]]:
    """(fault, moment), with fault-free commands before and after."""
    return [("none", ""), *((fault, moment) for fault in FAULTS for moment in MOMENTS), ("none", "")]


def timed(
    command: list[str],
    project: Path,
    server: ForwardedServer,
    fault: str,
    moment: str,
    epochs: int,
    settings: dict[str, str],
) -> tuple[float, int]:
    """Seconds and exit status of `command`, while the server fails at `moment`; the flow may fail at the start."""
    line = {"middle": f"epoch {epochs // 2}/", "end": f"epoch {epochs}/"}.get(moment)
    if moment == "start":
        server.fail(fault)
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=project, env=sandbox.environment(PYTHONUNBUFFERED="1", **settings),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout
    output = []
    for text in process.stdout:
        output.append(text)
        if line and line in text:
            server.fail(fault)
            line = None
    status = process.wait()
    seconds = time.monotonic() - start
    server.mend(fault)
    if (status and moment != "start") or line:
        sys.exit(f"{' '.join(command)} with the server {fault} at the {moment} ended with {status}:\n{''.join(output)}")
    return seconds, status


if __name__ == "__main__":
    main()

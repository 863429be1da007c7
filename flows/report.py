"""Run a stage as a Prefect flow run without importing Prefect.

The process forks before anything heavy is imported: the child runs the stage, the parent passes its output on unchanged
and reports to Prefect's REST API (parameters, logs about every second, duration, final state). That costs about 0.1 s a
stage, where a flow run made with Prefect itself costs 2 s. The stage's result never depends on the server: once it runs,
a lost server costs a warning and at most `PATIENCE` seconds.
"""

import io
import json
import os
import re
import select
import signal
import sys
import threading
from datetime import UTC, datetime

from flows import stage as stages
from flows.prefect_api import ApiError, ApiLost, PrefectApi, state

PATIENCE = 5.0  # seconds to bring the last logs and the final state to the server once the stage has ended
FLUSH_EVERY = 1.0  # seconds between two batches of log lines
LINES_KEPT = 20_000  # while the server is away; the oldest go first
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SESSION = os.path.join(stages.ROOT, ".tandem", "prefect.json")  # whether this repro has reached the API, and lost it


def supervise(stage: str, name: str, parameters: dict[str, str], settings: dict[str, str]) -> int | None:
    """Fork. In the child: None, at once. In the parent: the stage's exit status, once it has ended and was reported."""
    try:
        flow_run = FlowRun(stage, name, parameters, settings)
    except ApiError as error:
        url = settings["PREFECT_API_URL"].rpartition("@")[2]
        if not begun_before():
            stages.fail(
                name,
                f"the Prefect API at {url} does not answer ({error}); start it with `make ui`,"
                " or set TANDEM_PREFECT=off to run without Prefect",
            )
            return 1
        say_lost(url, error)
        return None  # the pipeline has begun: its result matters more than its display
    remember(lost=False)
    os.environ["TANDEM_FLOW_RUN_ID"] = flow_run.id
    sys.stdout.flush()
    sys.stderr.flush()
    supervisor = os.getpid()
    output, output_end = os.pipe()
    errors, errors_end = os.pipe()
    interrupts = Interrupts()
    kills_before = out_of_memory_kills()
    child = os.fork()
    if child == 0:
        interrupts.restore()
        os.dup2(output_end, 1)
        os.dup2(errors_end, 2)
        for descriptor in (output, output_end, errors, errors_end):
            os.close(descriptor)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # live, as on a terminal
        stages.die_with(supervisor)
        return None
    interrupts.child = child
    os.close(output_end)
    os.close(errors_end)
    flow_run.start_sending()
    status = follow(child, {output: 1, errors: 2}, flow_run)
    code, final = outcome(name, child, status, interrupts, out_of_memory_kills() > kills_before)
    if not flow_run.finish(final):
        say_lost(flow_run.api.url, flow_run.error)
    return code


class Interrupts:
    """The supervisor outlives Ctrl+C, which reaches the stage by itself, and hands SIGTERM down."""

    def __init__(self) -> None:
        self.child = 0
        self.seen: list[int] = []
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM and number not in self.seen and self.child:
            os.kill(self.child, number)  # still our child: it is waited for only after its output has ended
        self.seen.append(number)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


class FlowRun:
    """A flow run on the server and the thread that sends its logs."""

    def __init__(self, stage: str, name: str, parameters: dict[str, str], settings: dict[str, str]):
        parent = os.environ.get("TANDEM_PARENT_FLOW_RUN_ID")
        self.api = PrefectApi(settings)
        self.api.check(timeout=1.0 if begun_before() else 2.5)
        self.id = self.api.create_flow_run(stage, name, parameters, ["tandem", *parameters.values()], parent)
        self.logger = f"stages.{stage}"
        self.lines: list[dict[str, object]] = []
        self.ended = threading.Event()
        self.final: dict[str, str] = {}
        self.error: ApiError | None = None
        self.sent = False
        self.thread = threading.Thread(target=self._send, daemon=True)

    def log(self, line: str, is_error: bool) -> None:
        line = ANSI.sub("", line.rstrip("\r\n").rpartition("\r")[2])  # of a progress line, what was last seen
        if not line.strip():
            return
        first = line.partition(":")[0].lower()
        level = 40 if first == "error" else 30 if first.endswith("warning") else 20  # logging.ERROR, WARNING, INFO
        if is_error and first.startswith("traceback"):
            level = 40
        record = {"name": self.logger, "level": level, "message": line[:10_000], "flow_run_id": self.id}
        self.lines.append({**record, "timestamp": datetime.now(UTC).isoformat()})

    def start_sending(self) -> None:
        self.thread.start()

    def finish(self, final: dict[str, str]) -> bool:
        """Send what is left and the final state. True where the server took it, in bounded time either way."""
        self.final = final
        self.ended.set()
        self.thread.join(PATIENCE)
        return self.sent

    def _send(self) -> None:
        last = False
        while not last:
            last = self.ended.wait(FLUSH_EVERY)
            batch, self.lines = self.lines, []
            try:
                for start in range(0, len(batch), 500):
                    self.api.write_logs(batch[start : start + 500])
                if last:
                    self.api.set_state(self.id, self.final)
                    self.sent = True
            except ApiError as error:
                self.error = error
                self.lines = (batch + self.lines)[-LINES_KEPT:]


def follow(child: int, streams: dict[int, int], flow_run: FlowRun) -> int:
    """Pass the child's output on, byte for byte, and log its lines. Returns its wait status."""
    rest = dict.fromkeys(streams, b"")
    open_streams = set(streams)
    status = None
    while open_streams:
        ready, _, _ = select.select(open_streams, [], [], 0.2)
        for stream in ready:
            chunk = os.read(stream, 65536)
            if not chunk:
                open_streams.discard(stream)
            pass_on(streams, stream, chunk)
            *lines, rest[stream] = (rest[stream] + chunk).split(b"\n")
            for line in lines:
                flow_run.log(line.decode(errors="replace"), streams[stream] == 2)
        if not ready:
            if status is not None:
                break  # a process the stage left behind holds the pipes open
            pid, waited = os.waitpid(child, os.WNOHANG)
            status = waited if pid else None
    for stream, line in rest.items():
        flow_run.log(line.decode(errors="replace"), streams[stream] == 2)
    return os.waitpid(child, 0)[1] if status is None else status


def pass_on(streams: dict[int, int], stream: int, chunk: bytes) -> None:
    while chunk and streams[stream] > 0:
        try:
            chunk = chunk[os.write(streams[stream], chunk) :]
        except OSError:  # nobody reads any more; the stage goes on, as its log does
            streams[stream] = -streams[stream]


def outcome(
    name: str, child: int, status: int, interrupts: Interrupts, out_of_memory: bool
) -> tuple[int, dict[str, str]]:
    """(exit status, final Prefect state) of a stage that ended with this wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return 0, state("COMPLETED")
    if code == 130 or (code < 0 and signal.SIGINT in interrupts.seen):
        return 130, state("CANCELLED", "interrupted; the same command takes it up again")
    if code > 0:
        return code, state("FAILED", last_error(child) or f"{name} ended with exit status {code}")
    killer = signal.Signals(-code).name
    message = f"killed by {killer}"
    if out_of_memory and killer == "SIGKILL":
        message += " while the machine or its container ran out of memory"
    stages.fail(name, message)
    return 128 - code, state("CRASHED", message)


def last_error(pid: int) -> str | None:
    """The sentence process `pid` left."""
    try:
        with open(stages.LAST_ERROR, encoding="utf-8") as file:
            entry = json.load(file)
        return entry["message"] if entry["pid"] == pid else None
    except (OSError, ValueError, KeyError):
        return None


def out_of_memory_kills() -> int:
    """How often the kernel has killed for memory: in this container where it says so (cgroup v2), or on the machine."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            with open(path, encoding="ascii") as file:
                counts = dict(line.split() for line in file)
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def run_token() -> str:
    """The same for every stage of one `dvc repro`: dvc's process id and start time, or what the caller handed down."""
    token = os.environ.get("TANDEM_RUN")
    if token:
        return token
    if "DVC_STAGE" not in os.environ:
        return f"by hand {os.getpid()}"
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="ascii", errors="replace") as file:
            return f"{os.getppid()}-{file.read().rpartition(')')[2].split()[19]}"
    except OSError:
        return str(os.getppid())


def begun_before() -> bool:
    """Whether an earlier stage of this run, or the pipeline run above it, has reached the API."""
    return "TANDEM_PARENT_FLOW_RUN_ID" in os.environ or session().get("run") == run_token()


def session() -> dict[str, object]:
    try:
        with open(SESSION, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def remember(lost: bool) -> None:
    try:
        os.makedirs(os.path.dirname(SESSION), exist_ok=True)
        with open(SESSION, "w", encoding="utf-8") as file:
            json.dump({"run": run_token(), "lost": lost}, file)
    except OSError:
        pass  # a full disk costs no stage here


def say_lost(url: str, error: ApiError | None) -> None:
    """Once a run."""
    known = session()
    if known.get("run") == run_token() and known.get("lost"):
        return
    reason = error or ApiLost(f"no answer within {PATIENCE:.0f} s")
    print(
        f"warning: lost the Prefect API at {url} ({reason}); the run goes on, its state there may be out of date",
        file=sys.stderr,
    )
    remember(lost=True)

"""Git and DVC transfers around a team worker's run: `python -m flows.remote` (prefect.yaml).

It fetches the clone's branch from its origin, then the data and results that DVC's default remote has, and becomes the
flow run for which Prefect's worker started this process. It locks the repository, so a pull never overlaps a training.
When a run ends, flows/pipeline.py calls `push`. Prefect's own pull steps would import Prefect twice, once for the steps
and once for the run; this module imports it only after the pull. A failure is the state of the flow run, in a sentence.
"""

import os
import signal
import sys
import time
from uuid import UUID

from flows import doctor
from flows.other_runs import LOCK
from flows.processes import output_of
from tandem import files
from tandem.stop_signals import end_with
from tandem.terminal.command import CommandError
from tandem.terminal.messages import without_password
from tandem.tracking.run_dir import RUNS, run_dirs

MADE_BY_RUNS = ("dvc.lock", "stages/dvc.lock", "results")  # the results that git tracks; DVC's cache has them too
SECONDS_FOR_GIT = 600.0  # without a limit, a network that drops packets would block the run for ever
SECONDS_FOR_HISTORY = 120.0  # time to publish what a run recorded; the publisher continues after it


def pull() -> None:
    """Raises CommandError. Local edits of code stay; an edit that conflicts is an error."""
    if changed := git_names("ls-files", "--modified", "-z", "--", *MADE_BY_RUNS):
        git("checkout", "--quiet", "--", *changed)
    if git("remote"):
        print("git fetch", flush=True)
        git("fetch", "--quiet")
        # Files that a run has made here and somebody has committed meanwhile.
        untracked = git_names("ls-files", "--others", "--exclude-standard", "-z", "--", *MADE_BY_RUNS)
        committed = git_names("ls-tree", "-r", "--name-only", "-z", "@{upstream}", "--", *MADE_BY_RUNS)
        for name in untracked & committed:
            (files.ROOT / name).unlink()
        git("merge", "--quiet", "--ff-only", "@{upstream}")
    for finding in doctor.packages():
        if finding.status != "ok":  # the new commit may lock other packages or versions
            raise CommandError(f"{finding.what}; run on this machine: {finding.fix}, then start its worker again")
    if has_remote():
        print("dvc pull --run-cache", flush=True)
        # This machine makes what the remote lacks; results of another kind of hardware do not apply here.
        run_dvc("pull", "--run-cache", "--allow-missing")


def push() -> None:
    """Send what the run made, including DVC's run-cache, and wait until MLflow has its history.

    Raises CommandError with one sentence.
    """
    if has_remote():
        print("dvc push --run-cache", flush=True)
        run_dvc("push", "--run-cache")
    deadline = time.monotonic() + SECONDS_FOR_HISTORY
    while waiting := run_dirs():
        if time.monotonic() > deadline:
            raise CommandError(
                f"MLflow does not have everything yet: {len(waiting)} runs are in {files.relative(RUNS)}; "
                "publish them with `tandem sync` on this machine"
            )
        time.sleep(0.2)


def has_remote() -> bool:
    from dvc.config import Config

    if Config(str(files.REAL_ROOT / ".dvc"))["core"].get("remote"):
        return True
    print("no DVC remote: results stay on this machine (`dvc remote add --default NAME URL` adds one)", flush=True)
    return False


def run_dvc(*arguments: str) -> None:
    call(sys.executable, "-m", "dvc", *arguments)


def git(*arguments: str) -> str:
    return call("git", *arguments, seconds=SECONDS_FOR_GIT)


def git_names(*arguments: str) -> set[str]:
    """The names that git prints with `-z`; without it, git quotes names that are not plain ASCII."""
    return set(filter(None, git(*arguments).split("\0")))


def call(*command: str, seconds: float | None = None) -> str:
    try:
        return output_of(*command, seconds=seconds)
    except CommandError as error:
        name = " ".join(command[:6]).removeprefix(f"{sys.executable} -m ")
        raise CommandError(f"{name}: {without_password(str(error))}") from None


def report(reason: str) -> int:
    """Set the reason as the flow run's state. Returns the exit status: 1 if this failed."""
    flow_run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    if not flow_run_id:  # a person has started this command
        return 1
    from httpx import HTTPError
    from prefect.exceptions import PrefectException
    from prefect.states import Crashed

    from flows.flow_runs import prefect_client

    try:
        with prefect_client(timeout=10.0) as client:
            client.set_flow_run_state(UUID(flow_run_id), Crashed(message=reason), force=True)
        return 0
    except (CommandError, ValueError, HTTPError, PrefectException) as error:
        print(f"error: not sent to Prefect ({type(error).__name__}: {without_password(str(error))})", file=sys.stderr)
        return 1


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with(os.getppid())  # Prefect's worker
    try:
        with files.locked(LOCK):
            pull()
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return report(str(error))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "prefect.engine"])


if __name__ == "__main__":
    sys.exit(main())

"""`flows.compare` and `flows.verify` as Prefect flows for flows/serve.py. Each stores its verdict as an artifact.

The flows run the same commands that people call, in child processes, so both give the same result and a cancelled flow
run ends its children. From a terminal, the commands need no Prefect.
"""

import re

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Cancelled, Completed, Failed, State

from flows.processes import end_with_parent, ending, run
from flows.run_lock import one_at_a_time
from tandem.params.loading import load_params

NOT_SAID = 200  # characters of a state's message; the artifact has the full text


@flow(name="compare", log_prints=True, persist_result=False)
def compare(runs: list[str]) -> State:
    """Compare recorded runs from any machines.

    Args:
        runs: two or more: names such as sign@cpu and sign@cuda (the latest run of workload@device, with all seeds),
            MLflow run ids, or paths of run folders. The first run of each workload is the baseline.
    """
    try:
        status, lines = call("compare", "--", *runs)  # `--`: a run's name is never parsed as an option
    except KeyboardInterrupt:
        return Cancelled(message="stopped by Ctrl+C")
    if status != 0:
        return Failed(message=headline(lines) or f"tandem compare {ending(status)}")
    create_markdown_artifact("\n".join(lines), key="compare", description=f"Compared: {', '.join(runs)}")
    sentences = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return Completed(message=shortened(sentences[0]))


@flow(name="verify", log_prints=True, persist_result=False)
def verify(run: str = "", quick: bool = False) -> State:
    """Run recorded trainings again and report whether the results are the same.

    Args:
        run: a name such as sign@cpu (the latest run of workload@device), an MLflow run id, or the path of a
            run folder. If empty: the latest run of each workload and device of params.yaml.
        quick: rerun only the first epochs.
    """
    try:
        runs = [run] if run else latest_runs()
        with one_at_a_time():  # verification trains
            found = [verify_one(each, quick) for each in runs]
    except KeyboardInterrupt:
        return Cancelled(message="stopped by Ctrl+C")
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    message = shortened("; ".join(sentence for _, sentence in found))
    statuses = {status for status, _ in found}
    if statuses - {0, 3}:
        return Failed(message=message)
    # The result is neither confirmed nor refuted, so the run does not fail and nobody is alerted.
    return Completed(name="Inconclusive", message=message) if 3 in statuses else Completed(message=message)


def verify_one(run: str, quick: bool) -> tuple[int, str]:
    """(exit status, the verdict in one sentence). The full output becomes an artifact."""
    status, lines = call("verify", *(["--quick"] if quick else []), "--", run)
    sentence = headline(lines) or f"{run}: tandem verify {ending(status)}"
    text = "\n".join([f"**{sentence}**", "", "```", *lines, "```"])
    key = "verify-" + re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    create_markdown_artifact(text, key=key, description=f"Is {run} still what was recorded?")
    return status, sentence


def latest_runs() -> list[str]:
    params = load_params()
    return [f"{workload}@{device}" for workload in params.workloads for device in params.devices]


def call(command: str, *arguments: str) -> tuple[int, list[str]]:
    """Run `tandem <command>` and print its lines as they arrive. Returns the exit status and all lines."""
    end_with_parent()
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line:
            print(line)

    return run(["tandem.cli", command, *arguments], on_line), "\n".join(lines).strip().splitlines()


def headline(lines: list[str]) -> str:
    """The verdict or the error: the last line that is not indented."""
    return next((line.removeprefix("error: ") for line in reversed(lines) if line[:1].strip()), "")


def shortened(text: str) -> str:
    return text if len(text) <= NOT_SAID else text[: NOT_SAID - 3] + "..."

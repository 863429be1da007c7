"""The command `tandem verify` as a Prefect flow, for flows/deployments.py and prefect.yaml."""

import os
import re
from textwrap import shorten

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.states import Cancelled, Completed, Failed, State

from flows.flow_runs import one_at_a_time, skipped_state
from flows.verify import verify as verify_run
from tandem.params.loading import load_params
from tandem.stop_signals import end_with

MAX_MESSAGE = 200  # characters of a state's message; the artifact has the full text


@flow(name="verify", log_prints=True, persist_result=False)
def verify(run: str = "", quick: bool = False) -> State:
    """Run recorded trainings again and report whether the results are the same.

    Args:
        run: a name such as sign@cpu (the run in results/ of workload@device, otherwise the latest), an MLflow run id,
            or the path of a run folder. If empty: the run of each workload and device of params.yaml.
        quick: rerun only the first epochs.
    """
    end_with(os.getppid())  # with the process that runs it
    context = FlowRunContext.get()
    if context and context.flow_run and (skipped := skipped_state(context.flow_run)):
        return skipped
    try:
        params = load_params()
        names = [f"{workload}@{device}" for workload in params.workloads for device in params.devices]
        with one_at_a_time():  # verification trains
            verdicts = [verify_one(name, quick) for name in ([run] if run else names)]
    except KeyboardInterrupt:
        return Cancelled(message="stopped by Ctrl+C")
    except (ValueError, OSError) as error:
        return Failed(message=str(error))
    message = shorten("; ".join(sentence for _, sentence in verdicts), MAX_MESSAGE)
    statuses = {status for status, _ in verdicts}
    if statuses - {0, 3}:
        return Failed(message=message)
    # The result is neither confirmed nor refuted, so the run does not fail and nobody is alerted.
    return Completed(name="Inconclusive", message=message) if 3 in statuses else Completed(message=message)


def verify_one(run: str, quick: bool) -> tuple[int, str]:
    """(exit status, the verdict in one sentence). The full output becomes an artifact."""
    try:
        result = verify_run(run, quick)
    except (ValueError, OSError) as error:  # the others are still verified
        return 2, str(error)
    print(result.text)
    key = "verify-" + re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    text = f"**{result.sentence}**\n\n```\n{result.text}\n```"
    create_markdown_artifact(text, key=key, description=f"Rerun of {run}, compared with the record")
    return result.verdict.status, result.sentence

"""Publish in MLflow the runs that a server did not take, the runs of killed processes, and the evaluations that DVC has
restored, if MLflow has other scores.

The directories of such runs are in .tandem/runs/, the evaluations in results/. The server is that of
MLFLOW_TRACKING_URI, or the project's own store.

    tandem sync
    MLFLOW_TRACKING_URI=http://server:5000 tandem sync

Exit status: 0 all are published, 1 some are not, or MLflow does not answer; with the reason.
"""

from argparse import Namespace

from tandem.terminal.command import DONE, FAILED, Result
from tandem.tracking.publisher import publish_waiting
from tandem.tracking.store import shown_uri, tracking_uri


def main(options: Namespace) -> Result:
    problems, store = publish_waiting(), shown_uri(tracking_uri())
    summary = "not up to date; what it lacks stays in .tandem/runs/ and results/" if problems else "up to date"
    text = "\n".join([*dict.fromkeys(problems), f"MLflow at {store}: {summary}"])
    return Result(text, {"mlflow": store, "problems": problems}, FAILED if problems else DONE)

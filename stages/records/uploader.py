"""The uploader: sends journals to MLflow and removes what has arrived.

    python -m stages.records.uploader sync             send the journals that could not be sent
    python -m stages.records.uploader open             make the store's tables, where it is a SQLite file without any,
                                                       and give what older versions recorded the present view
    python -m stages.records.uploader follow FOLDER    send a journal while it is written (`journal.start` runs this)

`follow` outlives a killed trainer, and then sets the run's status to KILLED. Sending is idempotent: what a run
already has is not sent twice, so a journal can always be sent again.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from stages.files import HOME, locked, relative, write_json
from stages.records import journal, summary
from stages.records.connection import KIND, KIND_TAG, explain, keep_view, open_client, sentence
from stages.records.live import Live
from stages.records.sending import RunIsBusy, Sender
from stages.records.store import shown, tracking_uri


def follow(folder: Path, is_live: bool, client: Any = None) -> str:
    """Send the journal in `folder`; where it `is_live`, until its end, or until the process that writes it is gone.

    Returns why not all has arrived, an empty text where it has. While the writer lives, a store that does not answer
    is tried again every few seconds.
    """
    with locked(folder / "lock", wait=is_live) as holder:
        if holder is not None:
            return f"process {holder or 'unknown'} is sending {relative(folder)}"
        if not (folder / "journal.jsonl").exists():  # another process has just sent it
            shutil.rmtree(folder)
            return ""
        sender: Sender | None = None
        live = Live(folder)
        while True:
            alive = is_live and journal.has_writer(folder)
            if alive:
                live.read_if_due()
            try:
                if sender is None:
                    sender = Sender(folder, client or open_client(), may_wait=is_live)
                    if is_live:  # a nice process would hold the lock of a new store for long
                        os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
                sender.send_new()
                if sender.ended or not alive:
                    sender.send_new()  # what was written between our reading and its death
                    sender.send_live(is_last=True)
                    # Killed: MLflow would show it RUNNING for ever.
                    if sender.is_training and not sender.ended and not sender.is_late:
                        sender.client.set_terminated(sender.run_id, "KILLED")
                    break
            except RunIsBusy:
                return f"another process is sending the run of {relative(folder)}"
            except Exception as error:  # whatever the store's trouble is, the journal stays and the training goes on
                problem = explain(error)
                print(sentence(problem), flush=True)
                write_json(journal.answer_file(folder), {**(sender.ids() if sender else {}), **problem})
                if sender:
                    sender.claims.close()
                sender = None
                if not alive or journal.is_complete(folder):
                    return sentence(problem)
                time.sleep(3)
            time.sleep(0.1)
        sender.claims.close()
        if not journal.has_writer(folder):  # nobody is left to read the answer
            journal.answer_file(folder).unlink(missing_ok=True)
        shutil.rmtree(folder)
        return ""


def sync() -> list[str]:
    """Send every journal that nobody writes any more, oldest first; returns why each of the others could not be
    sent."""
    waiting = [path for path in sorted(journal.JOURNALS.glob("*")) if is_waiting(path)]
    for path in journal.JOURNALS.glob("*.json"):  # answers that nobody is left to read
        if not path.with_suffix("").exists() and time.time() - path.stat().st_mtime > 60:
            path.unlink(missing_ok=True)
    if not waiting:
        return []
    try:
        client = open_client()
    except Exception as error:
        return [sentence(explain(error))] * len(waiting)
    return [problem for folder in waiting if (problem := follow(folder, False, client))]


def bring_up_to_date(client: Any) -> None:
    """Give the experiments and runs that an older version recorded the view, its figures and descriptions."""
    for experiment in client.search_experiments():
        if experiment.tags.get(KIND_TAG) == KIND:
            keep_view(client, experiment)
            summary.describe_older(client, experiment.experiment_id)


def is_waiting(folder: Path) -> bool:
    """Whether `folder` is a journal that nobody writes any more; one without its file is just being made."""
    return (folder / "journal.jsonl").exists() and not journal.is_written(folder)


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "follow":
        folder = Path(arguments[1])
        os.chdir(HOME)  # the copy in which `dvc exp run` trains may be removed before all is sent
        if follow(folder, is_live=True):
            return 1
        sync()  # the store answers: what could not be sent earlier goes now
        return 0
    if arguments == ["sync"]:
        problems = sync()
        for problem in dict.fromkeys(problems):
            print(problem)
        kept = f"{len(problems)} journals are kept in {relative(journal.JOURNALS)}" if problems else "up to date"
        print(f"MLflow at {shown(tracking_uri())}: {kept}")
        return 1 if problems else 0
    if arguments == ["open"]:
        try:
            bring_up_to_date(open_client())
            return 0
        except Exception as error:
            print(sentence(explain(error)), file=sys.stderr)
            return 1
    print("usage: python -m stages.records.uploader sync", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

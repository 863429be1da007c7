"""Which code a training runs from, and who started it, as tags for MLflow."""

import os
import subprocess
from pathlib import Path

from stages.files import ROOT


def git_tags(root: Path = ROOT) -> dict[str, str]:
    """The commit, and whether the sources differ from it. What DVC writes (its locks) does not count as an edit."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"git.absent": "not a git repository, or no commit yet"}
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!*dvc.lock")
    return {"mlflow.source.git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def caller_tags() -> dict[str, str]:
    """DVC's stage and experiment and Prefect's flow runs, where they started this process."""
    known = {
        "dvc.stage": "DVC_STAGE",
        "dvc.experiment": "DVC_EXP_NAME",
        "prefect.flow_run_id": "TANDEM_FLOW_RUN_ID",
        "prefect.parent_flow_run_id": "TANDEM_PARENT_FLOW_RUN_ID",
    }
    return {tag: os.environ[name] for tag, name in known.items() if os.environ.get(name)}

"""Provenance of a training: its code, its environment, and the process that started it."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tandem.devices.names import kind_of
from tandem.files import REAL_ROOT, ROOT, raw_dir, sha256_file
from tandem.terminal.messages import without_password

# Changes of these are not code changes: DVC and its stages write the first two, and raw data has its own digest.
NO_CODE = (":!*dvc.lock", ":!results", ":!workloads/*/data/*")
# Files in these places belong to the code even if git does not track them.
CODE = ("stages", "tandem", "flows", "workloads/*/*.py", "dvc.yaml", "params.yaml", "requirements.own.txt")
MAX_PATCH_MIB = 4.0  # a larger patch is not a code edit, and every run stores its patch
LOCK = ROOT / "requirements.txt"
OWN_LOCK = REAL_ROOT / "requirements.own.txt"  # packages of the workloads; an experiment's copy lacks an untracked file
PACKAGES = ("torch", "numpy", "pandas", "safetensors", "scipy")


def git(root: Path, *arguments: str, **environment: str) -> bytes | None:
    """Return git's output; None if git fails or is not installed."""
    command, variables = ["git", *arguments], {**os.environ, **environment}
    try:
        process = subprocess.run(command, cwd=root, capture_output=True, check=False, env=variables)
    except OSError:
        return None
    return process.stdout if process.returncode == 0 else None


def at_commit(path: str) -> bytes | None:
    """The content of a file of the project at the last commit; None if it has none."""
    return git(ROOT, "show", f"HEAD:./{path}")


def committed_params() -> dict[str, Any]:
    """The content of params.yaml at the last commit; empty if there is none."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(at_commit("params.yaml") or b"{}") or {}


def tree(workload: str, root: Path = ROOT) -> dict[str, Any]:
    """Return `commit`, `patch` from the commit to the current files (empty if they are equal), and `patch_sha256`.

    The patch includes untracked code that git does not ignore, but no raw data: `data_edited` says whether that of the
    workload differs from the commit's. If the commit or the patch is not available, it is None and `missing_reason`
    says why. Git's index and objects are not changed.
    """
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        reason = refusal(root) or "not a git repository, or no commit yet"
        return {"commit": None, "patch": None, "missing_reason": reason}
    entries: dict[str, Any] = {"commit": commit.decode().strip(), "data_edited": is_data_edited(root, workload)}
    patch = patch_of(root)
    if patch is None:
        return {**entries, "patch": None, "missing_reason": "git could not create the patch"}
    if len(patch) > MAX_PATCH_MIB * 2**20:
        size = f"{len(patch) / 2**20:.1f} MiB, more than {MAX_PATCH_MIB:g}"
        return {**entries, "patch": None, "missing_reason": f"the patch has {size}; commit or ignore large files"}
    try:
        text = patch.decode()
    except UnicodeDecodeError:
        return {**entries, "patch": None, "missing_reason": "an edited file is not UTF-8"}
    sha256 = hashlib.sha256(patch).hexdigest() if patch else None
    return {**entries, "patch": text, "patch_sha256": sha256}


def is_data_edited(root: Path, workload: str) -> bool:
    """Whether a file of the workload's raw data differs from the commit's, or is new."""
    folder = str(raw_dir(workload).relative_to(ROOT))
    return bool(git(root, "--no-optional-locks", "status", "--porcelain", "--", folder))


def refusal(root: Path = ROOT) -> str:
    """Return why git does not read a repository that belongs to another user, with git's own command; else empty."""
    try:
        process = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
    except OSError:
        return ""
    match = re.search(r"^\s*(git config --global --add safe\.directory .+)$", process.stderr, re.MULTILINE)
    return f"git does not read this clone, because it belongs to another user; run: {match[1]}" if match else ""


def patch_of(root: Path) -> bytes | None:
    """Return the difference between the commit and the files in git's binary format, computed in a temporary index."""
    folder = git(root, "rev-parse", "--absolute-git-dir")
    objects = git(root, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    if folder is None or objects is None:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        index, new_objects = Path(temporary) / "index", Path(temporary) / "objects"
        new_objects.mkdir()
        if (current_index := Path(folder.decode().strip()) / "index").exists():
            shutil.copyfile(current_index, index)  # it records which files have not changed
        variables = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(new_objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects.decode().strip(),
        }
        untracked = [str(path.relative_to(root)) for pattern in CODE for path in root.glob(pattern)]
        for arguments in (["--update", "--", ".", *NO_CODE], ["--", *untracked]):
            if git(root, "add", *arguments, **variables) is None:
                return None
        # The format that `git apply` reads, whatever the user's settings are.
        plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
        return git(root, "diff", "--cached", "--binary", *plain, "HEAD", "--", ".", *NO_CODE, **variables)


def git_tags(tree: dict[str, Any]) -> dict[str, str]:
    """Return the tags that MLflow's UI shows: the commit, and whether the files differ from it."""
    if tree["commit"] is None:
        return {"git.absent": tree["missing_reason"]}
    return {"mlflow.source.git.commit": tree["commit"], "git.dirty": str(is_edited(tree)).lower()}


def is_edited(tree: Mapping[str, Any]) -> bool:
    """Whether the files differ from the commit. Records of earlier versions do not say it of raw data."""
    return tree["patch"] != "" or tree.get("data_edited", False)


def environment(identity: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the digest of the locked packages and the versions of Python, the numerical and the own packages.

    `identity` (tandem/devices/hardware.py) of a GPU adds the versions of CUDA, cuDNN and the driver.
    """
    versions = {"python": platform.python_version()}
    own_packages = [line.partition("==")[0].partition("[")[0].strip() for line in own_requirements()]
    for name in (*PACKAGES, *own_packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if identity:
        versions |= kind_of(identity["kind"]).versions(identity)
    return {"requirements_sha256": locks_sha256(), "versions": versions}


def locks_sha256() -> str | None:
    """Return the digest of requirements.txt, or of it and requirements.own.txt if the project has such a file."""
    if not LOCK.exists():
        return None
    if not OWN_LOCK.exists():
        return sha256_file(LOCK)
    return hashlib.sha256(LOCK.read_bytes() + b"\n" + OWN_LOCK.read_bytes()).hexdigest()


def own_requirements() -> list[str]:
    """Return the packages in requirements.own.txt, without comments and hashes."""
    if not OWN_LOCK.exists():
        return []
    lines = (re.split(r"\s+#|\s--|\s\\$", line)[0].strip() for line in OWN_LOCK.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def caller_tags() -> dict[str, str]:
    """Return tags for the DVC stage, DVC experiment and Prefect flow runs that started this process, if any."""
    variables = {
        "dvc.stage": "DVC_STAGE",
        "dvc.experiment": "DVC_EXP_NAME",
        "prefect.flow_run_id": "TANDEM_FLOW_RUN_ID",
    }
    tags = {tag: os.environ[name] for tag, name in variables.items() if os.environ.get(name)}
    api = os.environ.get("PREFECT_API_URL", "")
    if api and "prefect.flow_run_id" in tags:
        server = without_password(api).rstrip("/").removesuffix("/api")
        tags["prefect.flow_run"] = f"{server}/runs/flow-run/{tags['prefect.flow_run_id']}"
    return tags

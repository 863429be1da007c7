"""Nothing goes out: what Tandem runs, and the pages it serves, in a network in which every packet is seen."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flows import plots_page
from tests.conftest import CHROMIUM
from tests.projects import ROOT, copy_of, needs, run

INSIDE = ("unshare", "-n", sys.executable, str(ROOT / "tests/outside.py"))
# What a browser asks for of its own accord is not ours. It waits for a page that waits for an answer.
OWN = ", ".join(f"MAP {name} 127.0.0.1" for name in ("update.googleapis.com", "clients2.google.com", "www.google.com"))
QUIET = (
    f"--host-resolver-rules='{OWN}'",
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,AutofillServerCommunication", "--virtual-time-budget=20000",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _may_have_a_network_of_its_own() -> None:
    needs("dvc", "mlflow", "prefect")
    if not shutil.which("ip") or subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this user, or this container, may not make a network namespace, or iproute2 is not installed")


def asked(project: Path, *command: str) -> str:
    done = run(project, *INSIDE, *command)
    return done.stdout.splitlines()[-1]


def test_what_is_asked_is_seen(tmp_path: Path):
    ask = "import socket; socket.create_connection(('198.51.100.7', 80), 0.2)"
    done = run(tmp_path, *INSIDE, sys.executable, "-c", ask, check=False)
    assert done.stdout.splitlines()[-1] == "asked outside: 198.51.100.7 port 80"


@pytest.mark.long
def test_a_pipeline_asks_nobody(ready: Path):
    """DVC, the training and the upload to MLflow."""
    assert asked(ready, sys.executable, "-m", "tandem.cli", "repro") == "asked outside: nobody"


@pytest.mark.long
def test_the_page_of_dvc_plots_asks_nobody_and_draws(trained: Path, tmp_path: Path):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    (tmp_path / "page.html").write_text(plots_page.page(), encoding="utf-8")
    project = copy_of(trained, tmp_path / "project")
    script = f"""
    set -e
    dvc plots diff --html-template {tmp_path}/page.html --out {tmp_path}/plots
    timeout 120 {CHROMIUM} {" ".join(QUIET)} --user-data-dir={tmp_path}/browser --dump-dom \\
        {tmp_path}/plots/index.html > {tmp_path}/drawn.html 2> {tmp_path}/chromium.log
    """
    assert asked(project, "bash", "-c", textwrap.dedent(script)) == "asked outside: nobody"
    assert 'class="marks"' in (tmp_path / "drawn.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_servers_and_their_pages_ask_nobody(ready: Path, tmp_path: Path):
    """`make ui`, a run of the pipeline there, and the pages of Prefect and MLflow in a browser."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    script = f"""
    set -e
    tandem ui > {tmp_path}/ui.log 2>&1 & ui=$!
    for wait in $(seq 600); do test -e .tandem/ui.json && break; sleep 0.5; done
    export PREFECT_API_URL=$(python -c "from flows.ui import running_servers as s; print(s()['prefect'])")/api
    python -c "from flows.pipeline import pipeline; pipeline()" > {tmp_path}/pipeline.log 2>&1
    for page in $(python -c "from flows.ui import running_servers as s; print(s()['prefect'], s()['mlflow'])"); do
        timeout 120 {CHROMIUM} {" ".join(QUIET)} --user-data-dir={tmp_path}/browser --dump-dom $page/ \\
            > {tmp_path}/page.html 2> {tmp_path}/chromium.log
        grep -qi "prefect\\|mlflow" {tmp_path}/page.html
    done
    kill -INT $ui
    wait $ui
    """
    assert asked(ready, "bash", "-c", textwrap.dedent(script)) == "asked outside: nobody"

"""Check the locked packages for known vulnerabilities (https://osv.dev).

Asks the database for every package of requirements.txt; nothing is installed or changed in this environment.

    tandem audit

Exit status: 0 none is known, 1 some are, 2 the database gave no answer.
"""

import json
import shutil
import subprocess
from argparse import Namespace

from tandem.command import NO_ANSWER, CommandError, Result
from tandem.files import ROOT

PIP_AUDIT = "pip-audit==2.10.1"
OPTIONS = ("--require-hashes", "--disable-pip", "--vulnerability-service", "osv", "--strict", "--format", "json")


def main(options: Namespace) -> Result:
    if (uv := shutil.which("uv")) is None:
        raise CommandError("uv is not installed here; `make setup` installs it")
    command = [uv, "tool", "run", PIP_AUDIT, "--requirement", str(ROOT / "requirements.txt"), *OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise CommandError(f"{PIP_AUDIT} gave no answer: {reason}", NO_ANSWER) from None
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    text = "\n".join([*lines, f"{len(lines)} known vulnerabilities in {len(packages)} packages"])
    return Result(text, {"packages": packages}, int(done.returncode != 0))

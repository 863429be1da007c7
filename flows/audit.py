"""`python -m flows.audit` (`make audit`): check requirements.txt for known vulnerabilities.

pip-audit (https://github.com/pypa/pip-audit) asks OSV (https://osv.dev) about every locked version without installing
any. Exit status 0: no known vulnerability; 1: at least one; 3: nothing was checked because pip-audit or the database is
unreachable. Arguments are passed to pip-audit, such as `--ignore-vuln ID` or `--osv-url URL` for a mirror.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements.txt"
PIP_AUDIT = "pip-audit==2.10.1"  # in uv's own environment: nothing in the project needs it
TIMEOUT_SECONDS = 600
NOT_CHECKED = 3


def main(arguments: list[str]) -> int:
    options = ["--requirement", LOCK, "--require-hashes", "--disable-pip", "--vulnerability-service", "osv"]
    # --strict: a locked version that the database does not know must not pass as free of vulnerabilities.
    options += ["--strict", "--progress-spinner", "off", "--format", "json"]
    command = ["uv", "tool", "run", PIP_AUDIT, *options, *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        checked: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except FileNotFoundError:
        return not_checked("uv is not on PATH; run `make audit`, or `make setup` first")
    except subprocess.TimeoutExpired:
        return not_checked(f"no answer within {TIMEOUT_SECONDS} s")
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return not_checked(last[:300])
    found = [(each, vulnerability) for each in checked for vulnerability in each.get("vulns", [])]
    for each, vulnerability in found:
        fixed = ", ".join(vulnerability.get("fix_versions", [])) or "no version yet"
        names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", [])])
        print(f"  {each['name']} {each['version']}: {names}; mended in {fixed}")
    print(f"{LOCK}: {len(checked)} locked packages checked, {len(found)} known vulnerabilities")
    return 1 if found else 0


def not_checked(why: str) -> int:
    message = f"{LOCK} was not checked: no database of vulnerabilities can be reached ({why}); try again with a network"
    print(message, file=sys.stderr)
    return NOT_CHECKED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

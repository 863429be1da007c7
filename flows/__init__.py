"""The commands and flows around the pipeline: what runs DVC, Prefect's flows and servers, `tandem repro`, `status`,
`show`, `compare`, `verify`, `doctor`. Nothing here imports torch.
"""

import os
import sys

OLDEST_PYTHON = (3, 11)
if sys.version_info < OLDEST_PYTHON:
    sys.exit(f"error: Python {sys.version.split()[0]} is too old; run: make PYTHON=/path/to/python3.11 -B setup")

# `import prefect` creates ~/.prefect. Keep it in the project if the user has none.
if "PREFECT_HOME" not in os.environ and not os.path.isdir(os.path.expanduser("~/.prefect")):
    root = os.environ.get("DVC_ROOT") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.environ["PREFECT_HOME"] = os.path.join(root, ".tandem", "prefect")

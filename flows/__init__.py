"""Prefect's side: what runs the stages, shows them and schedules them. Nothing here imports torch."""

import os

# `import prefect` makes ~/.prefect; who has none shall not get one
if "PREFECT_HOME" not in os.environ and not os.path.isdir(os.path.expanduser("~/.prefect")):
    root = os.environ.get("DVC_ROOT") or os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.environ["PREFECT_HOME"] = os.path.join(root, ".tandem", "prefect")

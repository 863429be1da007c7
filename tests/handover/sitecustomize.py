"""On the PYTHONPATH of what tests/forked.py runs: a stage or a publisher that it starts is forked as well."""
import os
import sys

if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2] in ("tandem.stage", "tandem.runs.publisher"):
    if "FORK_SERVER" in os.environ and "RANK" not in os.environ:  # not the workers of a training
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
        from tests.forked import hand_over

        hand_over()

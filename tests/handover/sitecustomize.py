"""On the PYTHONPATH of what tests/forked.py runs: a command of DVC or Tandem that it starts is forked as well."""

import os
import sys

KNOWN = ("dvc", "flows.dvc_run", "tandem.cli", "tandem.comparing.retrain", "tandem.diagnosis.gru_step")
KNOWN += ("tandem.tracking.publisher", "tandem.stage")
words, code = [word for word in sys.orig_argv[1:] if word != "-P"], ""
if os.path.basename(words[0] if words else "") == "dvc":
    words = ["dvc", *words[1:]]
elif words[:1] == ["-m"]:
    words = words[1:]
elif words[:1] == ["-c"] and words[3:] and words[3] in KNOWN:  # flows/processes.py
    words = words[3:]
elif words[:1] == ["-c"] and "from dvc." in words[1]:
    code, words = words[1], ["-c", *words[2:]]
# Not what leaves a process behind, and not the workers of a training, whose parent is their launcher.
is_known = (code or words and words[0] in KNOWN) and words[1:2] != ["queue"] and "RANK" not in os.environ
if is_known and "FORK_SERVER" in os.environ:
    sys.path.insert(0, os.path.dirname(__file__))
    from forking import hand_over

    hand_over(code, words)

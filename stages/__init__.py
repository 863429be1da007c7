"""The pipeline's stages, one module each: `main(...)` is what `flows/stage.py` calls for the dvc.yaml entry of the
same name.
"""

import os

# Before torch is imported, whose OpenMP (libgomp) reads it then. A thread that waits for another spins 300,000 times by
# default before it sleeps, milliseconds in which it keeps the other one off its core where a process beside them
# computes: docs/measurements.md ("Two threads beside another process").
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ["GOMP_SPINCOUNT"] = "10000"

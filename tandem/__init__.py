"""The library that the stages and flows use."""

import os

# Set this before torch is imported, because its OpenMP (libgomp) reads it then. By default, a waiting thread spins
# 300,000 times before it sleeps. If another process computes on the same cores, these milliseconds keep the thread it
# waits for off its core: docs/measurements.md ("Two threads on a busy machine").
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ["GOMP_SPINCOUNT"] = "10000"

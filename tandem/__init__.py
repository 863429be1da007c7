"""The library that the stages and flows use."""

import getpass
import os

# Set this before torch is imported, because its OpenMP (libgomp) reads it then. By default, a waiting thread spins
# 300,000 times before it sleeps. If another process computes on the same cores, these milliseconds keep the thread it
# waits for off its core: docs/measurements.md ("Threads beside other processes").
SPINCOUNT = "10000"
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ["GOMP_SPINCOUNT"] = SPINCOUNT

# The servers of `tandem ui` are on this machine, so requests to it go through no proxy (http_proxy, ALL_PROXY).
exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""  # libraries read the first one first
if exceptions != "*":  # every address; in a list, * means nothing
    here = [host for host in ("127.0.0.1", "localhost") if host not in exceptions.split(",")]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, [exceptions, *here]))

# A container's user id may have no name (docker run --user 2009). DVC asks for the name and would fail.
try:
    getpass.getuser()
except (KeyError, OSError):
    os.environ["USER"] = str(os.getuid())

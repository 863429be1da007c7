"""The library that the stages and flows use."""

import getpass
import os

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

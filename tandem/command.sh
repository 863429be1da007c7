#!/bin/sh
# `make setup` installs this file as .venv/bin/tandem. It runs the project that contains the current directory.
project=$PWD
while [ ! -f "$project/tandem/cli.py" ]; do
    if [ "$project" = / ]; then
        echo "error: $PWD is not in a Tandem project; change to its directory and run the command again" >&2
        exit 2
    fi
    project=$(dirname "$project")
done
# -P: Python does not import modules from the current directory.
PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}" exec "$(dirname "$0")/python" -P -m tandem.cli "$@"

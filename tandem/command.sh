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
# DVC runs `python` for every stage: it must be this environment's, also if it is not activated.
bin=$(cd "$(dirname "$0")" && pwd)
export PATH="$bin:$PATH" PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}"
exec "$bin/python" -P -m tandem.cli "$@" # -P: do not import modules from the current directory

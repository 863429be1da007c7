"""List what `auto` chose on this machine: `tandem choices [--forget]`.

Reads the user's cache (tandem/training/auto_cache.py) and prints a line for each choice of threads and precision.
After --forget, the next training of each shape measures again.
"""

import sys
from argparse import ArgumentParser

from tandem.training import auto_cache


def main(arguments: list[str]) -> int:
    parser = ArgumentParser("tandem choices", description="List what `auto` took on this machine.")
    parser.add_argument("--forget", action="store_true", help="delete the choices: the next trainings measure again")
    options = parser.parse_args(arguments)
    try:
        print(f"forgotten: {auto_cache.clear()}, in {auto_cache.file()}" if options.forget else "\n".join(lines()))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def lines() -> list[str]:
    known = sorted(auto_cache.cached_choices().values(), key=lambda choice: (choice.about, choice.setting))
    return [
        f"{len(known)} in {auto_cache.file()}",
        *(
            f"{choice.about}: {choice.setting} {choice.value} ({choice.sentence()}), measured {choice.measured_at[:16]}"
            for choice in known
        ),
    ]

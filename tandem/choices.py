"""List or clear the threads and precisions that `auto` chose on this machine.

They are in the user's cache and hold for all clones of the project. After --forget, the next training of each shape
measures again.

    tandem choices
    tandem choices --forget

Exit status: 0 done, 1 the cache cannot be written.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from tandem.command import Result
from tandem.training import auto_cache


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--forget", action="store_true", help="delete the choices: the next trainings measure again")


def main(options: Namespace) -> Result:
    file = str(auto_cache.file())
    if options.forget:
        num = auto_cache.clear()
        return Result(f"forgotten: {num}, in {file}", {"forgotten": num, "file": file})
    known = sorted(auto_cache.cached_choices().values(), key=lambda choice: (choice.about, choice.setting))
    lines = [
        f"{choice.about}: {choice.setting} {choice.value} ({choice.sentence()}), measured {choice.measured_at[:16]}"
        for choice in known
    ]
    return Result("\n".join([f"{len(known)} in {file}", *lines]), {"file": file, "choices": [*map(asdict, known)]})

"""What the modules of the commands and tandem/cli.py share: a result, an error and the exit statuses.

A command's module has

    __doc__                     its help: a sentence, then details, examples and the exit statuses
    main(options) -> Result     does the work; what it prints meanwhile goes to stderr with --json
    add_arguments(parser)       if it has arguments
"""

import errno
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tandem.files import FULL, relative

# The exit statuses of all commands; docs/interfaces.md has the table.
DONE, FAILED, NO_ANSWER, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130


class Result(NamedTuple):
    text: str  # printed without --json, if not empty
    document: Any  # printed as JSON with --json
    status: int = DONE
    then: tuple[str, ...] = ()  # a command that runs next, such as ("repro", "sign")


class CommandError(Exception):
    """Ends a command with one sentence. A ValueError or OSError does the same, with the status FAILED."""

    def __init__(self, sentence: str, status: int = FAILED) -> None:
        self.status = status
        super().__init__(sentence)


class WrongArgument(CommandError, ValueError):
    """What the user wrote in the command line is not accepted. As a ValueError, it passes through code that knows no
    commands.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, NO_ANSWER)


def count(text: str) -> int:
    """The type of an argument that is a number of things."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r}; accepted: 1, 2, 3, ...")
    return int(text)


def aligned(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """The rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def sentence_of(error: OSError | ValueError) -> str:
    """The error as one sentence, with the next step."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in FULL:
        where = f" of {error.filename}" if error.filename else ""
        return f"no space left on the disk{where}; free some and run the same command again"
    if error.errno is None or not error.filename:
        return str(error)
    may_not = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    step = "; let this user write there and run the same command again" if may_not else ""
    return f"{relative(Path(error.filename))}: {(error.strerror or str(error)).lower()}{step}"

"""The words of messages: values in one short line, the nearest accepted name, and addresses without passwords."""

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

MAX_LETTERS = 1000  # of a message, which may quote a whole file
NUM_MORE_SEEDS = 4  # beside the first, 0, for a spread of the scores
SEEDS = list(range(1 + NUM_MORE_SEEDS))
SEEDS_OPTION = f"-S 'seeds=[{','.join(map(str, SEEDS))}]'"
MORE_SEEDS = f"`dvc exp run {SEEDS_OPTION}`"


def one_line(text: object) -> str:
    """Return `text` as one printable line of limited length."""
    line = " ".join(str(text).split())
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return line if len(line) <= MAX_LETTERS else f"{line[:MAX_LETTERS]} ..."


def abridged(value: Any) -> str:
    """Return a shortened repr of `value`: a few lines of YAML can stand for gigabytes (`*aliases`)."""
    formatter = reprlib.Repr()
    formatter.maxstring = formatter.maxother = formatter.maxlong = 200
    return formatter.repr(value)


def joined(parts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def similar(name: Any, accepted: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean 'x'?`; empty if no accepted name has the share `cutoff` of its letters in common."""
    text = name[:100] if isinstance(name, str) else abridged(name)
    matches = difflib.get_close_matches(text, list(accepted), 1, cutoff)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def nearest(name: Any, accepted: Iterable[str]) -> str:
    """Return `; did you mean 'x'? accepted: x, y`, without the question if none is similar."""
    accepted = sorted(accepted)
    return f"{similar(name, accepted) or ';'} accepted: {', '.join(accepted)}"


def without_password(url: str) -> str:
    """Return `url` without its user name and password. Text that is not an address is returned unchanged.

    A password may contain an unescaped `/`, `?`, `#` or `@`: everything up to the last `@` is removed.
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else url


def more_seeds_of(workloads: str) -> str:
    """Return how to get a spread of the scores of `workloads`, separated by blanks, without the others."""
    return f"with `seeds: {SEEDS}` in params.yaml, `tandem repro {workloads}` shows the spread"


def seconds(value: float) -> str:
    """A duration in seconds, with at least three significant digits: an epoch on a fast GPU takes milliseconds."""
    return f"{value:#.3g}" if value < 1 else f"{value:,.3f}" if value < 100 else f"{value:,.1f}"

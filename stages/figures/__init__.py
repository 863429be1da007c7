"""The pictures and the report: plain data in, a figure or a page out.

Importing a picture's module imports matplotlib (0.3 s and more): a script that does not always draw imports it where it
draws.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_result(task: str, picture: dict[str, Any], title: str) -> "Figure":
    """The test result of `task`, a module of this package, which gets `Evaluation.picture`."""
    figure: Figure = importlib.import_module(f"{__name__}.{task}").draw(**picture, title=title)
    return figure

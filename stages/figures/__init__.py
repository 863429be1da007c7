"""Figures and the report: functions from plain data to a figure or an HTML page.

Importing a figure's module imports matplotlib (0.3 s and more). A script that does not always draw must import it only
when it draws.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_result(task: str, picture: dict[str, Any], title: str) -> "Figure":
    """Draw the test result of `task`, a module of this package. `picture`: `Evaluation.picture`."""
    figure: Figure = importlib.import_module(f"{__name__}.{task}").draw(**picture, title=title)
    return figure

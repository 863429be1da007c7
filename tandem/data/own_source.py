"""A source in the workload's directory: the function that `preprocess.source: "source.py:read"` names.

Input: what read(folder, **parameters) returns, a DataFrame or Arrays. Output: see tandem/data/__init__.py. The module
`reader` of the params (sequences or series) checks, splits and standardizes it, as it does with a table.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.data import Arrays, Prepared, source_module
from tandem.params.schema import OwnSource

if TYPE_CHECKING:
    import pandas as pd

# A source that took longer is not called a second time to see whether it returns the same.
MAX_SECONDS_TO_REPEAT = 10.0


def prepare(params: OwnSource, folder: Path, target_kind: str) -> Prepared:
    """Call the function and prepare what it returns. Raises ValueError with the file and, if possible, the line."""
    start = time.monotonic()
    data = read(params, folder, {})
    seconds = time.monotonic() - start
    prepared: Prepared = source_module(params.reader).prepare(params, data, target_kind)
    if seconds < MAX_SECONDS_TO_REPEAT and not is_same(data, read(params, folder, {})):
        raise ValueError(
            f"{params.component.place} returns other data when it is called again with the same parameters; seed its "
            "random numbers, for example np.random.default_rng(seed) with a parameter `seed`"
        )
    return prepared


def read(params: OwnSource, folder: Path, changed: dict[str, Any]) -> "pd.DataFrame | Arrays":
    """Call the function with its parameters of params.yaml, of which `changed` replaces some."""
    component = params.component
    function = component.load()
    with component.explained():
        data = function(folder, **{**params.parameters, **changed})
    if not (isinstance(data, Arrays) or is_frame(data)):
        raise ValueError(
            f"{component.place} returns {type(data).__name__}; accepted: a pandas DataFrame, or tandem.data.Arrays"
        )
    return data  # type: ignore[no-any-return]


def is_frame(data: Any) -> bool:
    """Whether it is a DataFrame. A source without one needs no pandas, whose import takes 0.3 s."""
    return "pandas" in sys.modules and isinstance(data, sys.modules["pandas"].DataFrame)


def is_same(first: Any, second: Any) -> bool:
    if is_frame(first):
        return is_frame(second) and bool(first.equals(second))
    return isinstance(second, Arrays) and all(
        np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        for left, right in zip(comparable(first), comparable(second), strict=True)
    )


def comparable(arrays: Arrays) -> list[np.ndarray]:
    """The fields as arrays; objects as text, because a NaN among them differs from itself."""
    fields = map(np.asarray, vars(arrays).values())
    return [array.astype(np.str_) if array.dtype.kind == "O" else array for array in fields]

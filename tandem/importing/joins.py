"""Two tables that belong together: the code that joins them."""

import shlex
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pandas as pd

from tandem.importing import text_format, text_tables
from tandem.importing.long_table import open_parquet, read_parquet


def advice_on_two_tables(paths: Sequence[Path]) -> str:
    """The code that joins two tables, if one has a row for each column of the other, such as the wells of a plate, or
    at most one for each id or step that both have; empty if they are others.
    """
    names, are_text = {path: names_of(path) for path in paths}, not any(map(is_parquet, paths))
    for path, of_columns in permutations(paths) if are_text else ():
        rows = read(of_columns)
        for column in map(str, rows):
            wells = {*names[path]} & {*rows[column].astype(str)}
            others = [name for name in names[path] if name not in wells]
            if others and len(wells) > max(1, len(others)):  # a list of all columns says what they mean
                code = (
                    f"{code_of(path)}.melt({others!r}, var_name={column!r}).merge({code_of(of_columns)}, on={column!r})"
                )
                return (
                    f"{of_columns} has a row for each column of {path}; join them: import pandas; "
                    f"{code}.to_csv('new.csv', index=False); then give new.csv --sequence {shlex.quote(column)}"
                )
    small, large = sorted(paths, key=lambda path: path.stat().st_size)
    rows, shared = read(small), [name for name in names[small] if name in names[large]]
    if not shared or len(shared) == len(names[small]) or rows[shared].dropna().duplicated().any():
        return ""
    keys = keys_of(rows, shared)
    if 2 * len(keys & keys_of(read(large), shared)) < len(keys):  # as the times of two sensors
        return ""
    code = f"{code_of(large)}.merge({code_of(small)}.dropna(subset={shared}), how='left', on={shared})"
    code = code.replace(", dtype=str", "")  # the step of some is 3.0, of others 3
    return (
        f"{small} has a row for each {' and '.join(map(repr, shared))} of {large}, or for some; join them: "
        f"import pandas; {code}.to_csv('new.csv', index=False); then give new.csv"
    )


def keys_of(rows: pd.DataFrame, shared: Sequence[str]) -> set[tuple[str, ...]]:
    """The ids and steps of a table; 3.0 is 3."""
    texts = rows[shared].dropna().astype(str).replace(r"\.0$", "", regex=True)
    return {*texts.itertuples(index=False, name=None)}


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def names_of(path: Path) -> list[str]:
    if is_parquet(path):
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    return [*text_format.find_format(path, {}).names]


def read(path: Path) -> pd.DataFrame:
    if is_parquet(path):
        return read_parquet(path).to_pandas()
    cells = text_tables.read_text(text_format.find_format(path, {})).to_pandas()
    return cells.mask(cells == "")


def code_of(path: Path) -> str:
    """The code that reads a table."""
    return text_tables.pandas_code(path, {})[0].removeprefix("table = ")

"""The header of a text table: which of its first rows name the columns, and which are about the data or its units."""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from tandem.data.tables import MISSING
from tandem.data.times import PERIOD_FORMS, first_day
from tandem.importing import number_signs
from tandem.importing.columns import shortened
from tandem.importing.date_signs import is_date
from tandem.importing.number_signs import MARKED

Note = tuple[str, str, str]  # (what was detected, its value, the reason or the option to change it)
FEWEST_RISING = 8  # rising numbers that make a row a header: fewer may rise by chance
NUMBER = "|".join((number_signs.NUMBER, *map(re.escape, filter(None, MISSING))))


def read_header(rows: Sequence[Sequence[str]]) -> tuple[bool, tuple[str, ...], int, list[Note]]:
    """Whether there is one; the names of the columns, or 1, 2, 3 and so on; the number of rows above the data; and what
    was left out or joined.
    """
    start, end = find_header(rows)
    if not is_header(rows[start:]):
        return False, tuple(str(number) for number in range(1, len(rows[0]) + 1)), 0, []
    names, named_by = joined_names(rows[start:end])
    notes = list[Note]()
    parts = {"before the header": range(start), "text, or no time, where the columns have numbers": range(start, end)}
    for why, places in parts.items():
        lines = [" ".join(filter(None, map(str.strip, rows[row]))) for row in places if row - start not in named_by]
        if lines:
            notes.append(("header", f"{len(lines)} line{'s' * (len(lines) > 1)} left out: {shortened(lines, 4)}", why))
    if len(named_by) > 1:
        notes.append(("header", shortened(names), f"the names of {len(named_by)} lines, joined"))
    return True, names, end, notes


def find_header(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The first row of the header, and the first of the data. Before the header may be lines about the data, which have
    another number of cells, and in it lines with units, further names or counts: text, or no time, where the columns
    have numbers or times.
    """
    widths = [len(row) for row in rows]
    width = max(set(widths), key=widths.count)
    start = widths.index(width)
    below = rows[start + 1 + (len(rows) - start) // 2 :]
    values = columns_of_values(below) if len({*map(len, below)}) == 1 else []
    is_above = is_header(rows[start:])
    if start and values and abs(widths[start - 1] - width) == 1:  # the line above may be the header, with a mistake
        is_above = is_above_values(rows[start], values)
    if start and (len(set(widths[start:])) > 1 or not is_above):
        start = 0  # a row of another length is a mistake, which the reader of the file names
    if set(widths[start:]) != {width} or len(below) < 2:
        return start, start + 1
    end = start + 1
    while values and end < len(rows) - len(below) and (is_above_values(rows[end], values) or lacks_clock(rows[end:])):
        end += 1
    last = next((n for n in range(len(rows) - len(below) - 1, end, -1) if is_above_values(rows[n], values)), start)
    is_named = is_above_values(rows[start], values) and not num_index_names(rows[start])
    if values and last > end and not is_named:  # the lines above have as many cells
        return last, last + 1
    return start, end


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names columns: most of its cells are not numbers, or they count (0, 1, 2, ...), or it has
    nothing above dates, or its numbers rise (1990, 1995, ...; 0.0, 0.1, ...) and those of no other row do.
    """
    row = rows[0]
    numeric = [cell.strip() for cell in row if re.fullmatch(NUMBER, cell.strip())]
    if len(numeric) * 2 < len(row):
        return True
    counts = [int(cell) for cell in numeric if re.fullmatch(r"\d{1,9}", cell)]
    if not row[0].strip() and len(rows) > 1 and all(is_date(other[0].strip()) for other in rows[1:]):
        return True  # as the numbers of sensors above their readings
    # For data without column names, pandas writes a header that begins with nothing.
    if len(counts) == len(numeric) > 2 * bool(row[0].strip()) and all(new - old == 1 for old, new in pairwise(counts)):
        return True
    num_rising = num_rising_cells(row)
    return num_rising >= FEWEST_RISING and all(num_rising_cells(other) < num_rising for other in rows[1:])


def num_rising_cells(row: Sequence[str]) -> int:
    """How many cells are numbers without a sign and with equally many decimals, if each is above the one before it."""
    cells = [cell.strip() for cell in row if re.fullmatch(r"\d+(\.\d+)?", cell.strip())]
    are_alike = len({len(cell.partition(".")[2]) for cell in cells}) == 1
    return len(cells) if are_alike and all(float(before) < float(after) for before, after in pairwise(cells)) else 0


def columns_of_values(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which these rows have numbers or times, or nothing."""
    columns = enumerate(zip(*([cell.strip() for cell in row] for row in rows), strict=True))
    return [place for place, cells in columns if any(cells) and all(is_value(cell) for cell in cells if cell)]


def is_value(cell: str) -> bool:
    cell = cell.strip()
    return bool(re.fullmatch(f"{NUMBER}|{MARKED}", cell) or first_day(cell, PERIOD_FORMS) or is_date(cell))


def is_above_values(row: Sequence[str], values: Sequence[int]) -> bool:
    """Whether a row belongs to the header: where the columns have numbers or times, it has text, or nothing or `-`."""
    cells = ["" if (cell := row[place].strip()) in MISSING else cell for place in values]
    has_text = 2 * len([*filter(None, cells)]) >= len(values) or num_index_names(row)
    return bool(has_text) and not any(is_value(cell) for cell in cells if cell)


def lacks_clock(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row begins with nothing, and the others with numbers that rise: it may count the samples."""
    first, *others = (row[0].strip().replace(",", ".") for row in rows)
    is_clock = not first and all(re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", cell) for cell in others)
    return is_clock and all(float(before) < float(after) for before, after in pairwise(others))


def is_header_of(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a line has as many cells as the rows below it, and text where these have numbers or times."""
    values = columns_of_values([row for row in rows if len(row) == len(cells) == len(rows[0])])
    return bool(values) and is_above_values(cells, values)


def num_index_names(row: Sequence[str]) -> int:
    """How many cells are before the empty ones, which follow up to the end; 0 if there are others."""
    filled = "".join(" x"[bool(cell.strip())] for cell in row)
    return filled.rstrip().count("x") if re.fullmatch("x+ +", filled) else 0


def joined_names(rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], list[int]]:
    """The names of the columns from the rows of a header, and the numbers of the rows that have them: the first one in
    which no name repeats, else all. A last row with a single cell names the first column, as pandas writes it.
    """
    num_names = [num_index_names(row) if number else 0 for number, row in enumerate(rows)]
    index = [n for n, num in enumerate(num_names) if num and not any("".join(row[1:num]).strip() for row in rows[:n])]
    others = [number for number in range(len(rows)) if number not in index]
    distinct = [number for number in others if len({*map(str.strip, rows[number])}) == len(rows[number])]
    chosen = distinct[:1] or others
    *higher, last = (rows[number] for number in chosen)
    names = [*last]
    if higher:  # a name above several columns may be written once
        filled = [[*accumulate(map(str.strip, row), or_left)] for row in higher]
        cells_of = zip(*filled, map(str.strip, last), strict=True)
        names = [" ".join(dict.fromkeys(filter(None, cells))) for cells in cells_of]
    if index:
        names[: num_names[index[-1]]] = rows[index[-1]][: num_names[index[-1]]]
    return tuple(names), chosen + index


def or_left(left: str, cell: str) -> str:
    return cell or left

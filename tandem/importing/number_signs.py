"""Numbers in text: whether a comma or a point is decimal or separates thousands.

`1,014` has two readings. `0,5` and `1,014,145` have one, and so have the other cells of their column. Such a column
decides for the table. What it does not decide is a question to the user. Spaces and apostrophes between digits
(`1 014`, `1'014`) separate thousands. A currency before a number and % after it are left out; K, M and B multiply it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.data.tables import MISSING, cast_or_none
from tandem.terminal.command import NO_ANSWER, CommandError

SIGNS = {",": "comma", ".": "point"}
OTHER = {",": ".", ".": ","}
DECIMAL, THOUSANDS = "decimal", "thousands"
OPPOSITE = {DECIMAL: THOUSANDS, THOUSANDS: DECIMAL}
NAMES = {DECIMAL: "decimal {}s", THOUSANDS: "{}s between thousands"}
# What may stand between thousands -> its characters, and whole numbers with it. India writes 12,34,567.
BETWEEN = {",": ",", ".": r"\.", " ": " \u00a0\u2009\u202f", "'": "'\u2019"}
GROUPED = {sign: rf"[1-9]\d{{0,2}}(?:[{letters}]\d{{3}})+" for sign, letters in BETWEEN.items()}
GROUPED[","] = rf"(?:{GROUPED[',']}|[1-9]\d?(?:,\d\d)+,\d{{3}})"


def number_form(decimal: str, thousands: str, digits: str = "*") -> str:
    """The regular expression of a number with these decimal signs and keys of BETWEEN. A sign has one meaning in it.

    `digits`: how many follow a decimal sign.
    """
    fraction = rf"(?:[{decimal}]\d{digits})?" if decimal else ""
    forms = [rf"\d+{fraction}(?:[eE][+-]?\d+)?", *([rf"[{decimal}]\d+(?:[eE][+-]?\d+)?"] if decimal else [])]
    for sign in thousands:
        other_signs = decimal.replace(sign, "")
        forms.append(GROUPED[sign] + (rf"(?:[{other_signs}]\d{digits})?" if other_signs else ""))
    return f"[+-]?(?:{'|'.join(forms)})"


NUMBER = number_form(".,", "".join(BETWEEN))
# What may stand before and after a number that is read: $1,164.50, 1.2%, 432.5K. After a space, K is the kelvin.
CURRENCY = "$\u20ac\u00a3\u00a5"
MARKED = rf"([+-]?)(?:[{CURRENCY}]\s?)?({NUMBER})(?:\s?[%MB{CURRENCY}]|[Kk])?"
POWERS = {"[Kk]": "e3", "M": "e6", "B": "e9"}
MARKS = {"%$": "without %", f"[{CURRENCY}]": "without the currency"}
MARKS |= {f"{letter}$": f"{letter.strip('[k]')} as 1{power}" for letter, power in POWERS.items()}
WITH_UNIT = rf"({number_form('.,', ''.join(BETWEEN), '+')})(\s?[^\d\s.,]{{1,6}})"  # 1.csv is none


class Example(NamedTuple):
    path: str
    column: str
    cell: str

    def __str__(self) -> str:
        return f"column {self.column!r} holds {self.cell!r}"


@dataclass
class ColumnCells:
    """What the cells of a column show, added chunk by chunk."""

    num: int = 0
    num_numbers: int = 0
    has_unit: bool = False  # such a column stays text, but shows what a sign means
    marks: dict[str, str] = field(default_factory=dict)  # by key of MARKS, a cell that has it
    num_percent: int = 0
    currencies: set[str] = field(default_factory=set)
    spaced: str = ""  # which of the space and the apostrophe separate thousands
    # By sign, the first cell in which it can only be decimal, can only separate thousands, may be both (`1,014`).
    decisive: dict[str, dict[str, Example]] = field(default_factory=lambda: {DECIMAL: {}, THOUSANDS: {}})
    ambiguous: dict[str, Example] = field(default_factory=dict)
    # log10 of the numbers without a sign, and by sign of the cells that may be both, as thousands; 0 is left out
    sizes: dict[str, list[np.ndarray]] = field(default_factory=lambda: {"": [], ",": [], ".": []})

    def add(self, cells: pa.Array, path: str, column: str, na: Sequence[str]) -> None:
        if "." in self.decisive[DECIMAL] and cast_or_none(cells, pa.float64()) is not None:
            self.num += len(cells)  # fast: a chunk without commas and gaps, of a column whose points are known
            self.num_numbers += len(cells)
            return
        counts = cells.value_counts()
        distinct = pc.utf8_trim_whitespace(counts.field("values"))
        is_missing = pc.is_in(distinct, pa.array([*MISSING, *na, None]))
        if not pc.any(pc.match_substring_regex(distinct, r"\d")).as_py():  # fast: a chunk of words
            self.num += pc.sum(counts.field("counts").filter(pc.invert(is_missing))).as_py() or 0
            return
        cells = pc.utf8_trim_whitespace(cells)
        cells = cells.filter(pc.invert(pc.is_in(cells, pa.array([*MISSING, *na])))).drop_null()
        numbers, is_number = cells, matches(cells, NUMBER)
        if is_number.true_count < len(cells):
            marked = cells.filter(matches(cells, MARKED))
            for mark in MARKS if len(marked) else ():
                for marked_cell in marked.filter(pc.match_substring_regex(marked, mark))[:1]:
                    self.marks.setdefault(mark, marked_cell.as_py())
            self.num_percent += pc.match_substring(marked, "%").true_count if len(marked) else 0
            self.currencies |= {sign for sign in CURRENCY if pc.any(pc.match_substring(marked, sign)).as_py()}
            numbers = pc.replace_substring_regex(cells, f"^{MARKED}$", r"\1\2") if len(marked) else cells
            is_number = matches(numbers, NUMBER)
        if 2 * is_number.true_count <= len(cells):
            numbers = pc.replace_substring_regex(numbers, f"^{WITH_UNIT}$", r"\1")
            self.has_unit |= matches(numbers, NUMBER).true_count > is_number.true_count
            is_number = matches(numbers, NUMBER)
        self.num += len(cells)
        self.num_numbers += is_number.true_count
        cells, numbers = cells.filter(is_number), numbers.filter(is_number)
        for sign in " '":
            if sign not in self.spaced and pc.any(pc.match_substring_regex(numbers, f"[{BETWEEN[sign]}]")).as_py():
                self.spaced += sign
        for sign in SIGNS:
            has_sign = pc.match_substring(numbers, sign)
            if not has_sign.true_count:
                continue
            shown, signed = cells.filter(has_sign), numbers.filter(has_sign)
            has_two = matches(signed, two_signs(sign))
            is_ambiguous = matches(signed, rf"[+-]?[1-9]\d{{0,2}}[{sign}]\d{{3}}")
            is_decimal = pc.invert(pc.or_(has_two, is_ambiguous))
            evidence = (
                (has_two, self.decisive[THOUSANDS]),
                (is_decimal, self.decisive[DECIMAL]),
                (is_ambiguous, self.ambiguous),
            )
            for mask, examples in evidence:
                if sign not in examples and mask.true_count:
                    examples[sign] = Example(path, column, shown.filter(mask)[0].as_py())
            self.add_sizes(sign, pc.replace_substring(signed.filter(is_ambiguous), sign, ""))
        self.add_sizes("", numbers.filter(matches(numbers, r"[+-]?\d+")))

    @property
    def has_several_units(self) -> bool:
        """Whether some numbers are in % and others are not, or in several currencies."""
        return 0 < self.num_percent < self.num_numbers or len(self.currencies) > 1

    def add_sizes(self, sign: str, digits: pa.Array) -> None:
        if len(digits) and not any(self.decisive.values()):
            sizes = np.abs(digits.cast(pa.float64()).to_numpy())
            self.sizes[sign].append(np.log10(sizes[sizes > 0]).astype(np.float32))

    def is_nearer_to_thousands(self, sign: str) -> bool:
        """Whether the numbers without a sign are nearer to `1,014` as 1014 than as 1.014."""
        without, thousands = (np.concatenate([[], *self.sizes[key]]) for key in ("", sign))
        if not len(without) or not len(thousands):
            return False
        distance = np.median(without) - np.median(thousands)
        return bool(abs(distance) < abs(distance + 3))  # 1.014 is 3 less than 1014 in log10

    def has(self, sign: str) -> bool:
        return any(sign in examples for examples in (self.ambiguous, *self.decisive.values()))

    def meaning_of(self, sign: str, delimiter: str) -> str:
        """What this column alone says of `sign`, which it has: DECIMAL, THOUSANDS, or "" if it is open."""
        for meaning, examples in self.decisive.items():
            if sign in examples:
                return meaning
        if (sign, delimiter) == (".", ","):
            return DECIMAL
        return THOUSANDS if self.is_nearer_to_thousands(sign) else ""


Converter = Callable[[pa.ChunkedArray], pa.ChunkedArray]  # of the text of a column
Shown = dict[str, dict[str, ColumnCells]]  # by sign and meaning, the first column that is certain of it


def certain_columns(table: Iterable[ColumnCells], delimiter: str) -> Shown:
    shown: Shown = {sign: {} for sign in (*SIGNS, " ")}
    for cells in table:
        for sign in filter(cells.has, SIGNS):
            shown[sign].setdefault(cells.meaning_of(sign, delimiter), cells)
        if cells.spaced:
            shown[" "][THOUSANDS] = cells
    return {sign: {meaning: cells for meaning, cells in of_sign.items() if meaning} for sign, of_sign in shown.items()}


def meaning_of(
    sign: str, cells: ColumnCells, shown: Shown, delimiter: str, requested_signs: Mapping[str, str]
) -> tuple[str, str]:
    """Whether `sign` is DECIMAL or separates THOUSANDS in a column, and the reason; "" if that is open.

    `cells`: of the column. `shown`: what the table shows. `requested_signs`: DECIMAL or THOUSANDS -> the option's sign.
    """
    other, word = OTHER[sign], SIGNS[sign]
    for meaning, examples in cells.decisive.items():
        if sign in examples:
            return meaning, str(examples[sign])
    for meaning, requested_sign in requested_signs.items():
        return meaning if requested_sign == sign else OPPOSITE[meaning], "as requested"
    if (sign, delimiter) == (".", ","):
        return DECIMAL, ""
    if len(shown[sign]) == 1:
        [(meaning, column)] = shown[sign].items()
        if sign in column.decisive[meaning]:
            return meaning, str(column.decisive[meaning][sign])
        return meaning, f"{column.ambiguous[sign]} beside numbers of that size without a {word}"
    if shown[sign]:
        return "", ""
    if len(shown[other]) == 1:
        [meaning] = shown[other]
        return OPPOSITE[meaning], f"the {SIGNS[other]} {'is decimal' if meaning == DECIMAL else 'separates thousands'}"
    if shown[" "]:
        return DECIMAL, "another sign separates thousands"
    if sign == "." and not shown[other] and not cells.sizes[""]:
        return DECIMAL, f"{cells.ambiguous[sign]}, and every number has three digits after a point"
    return "", ""


def find_notation(
    columns: Mapping[str, ColumnCells], delimiter: str, requested_signs: Mapping[str, str]
) -> tuple[dict[str, Converter], dict[str, str]]:
    """The columns to convert, and what the command says of cells that have two readings or are converted, each with the
    reason. `requested_signs`: as in `meaning_of`.

    Raises CommandError with the question if a sign is open, ValueError if one has both meanings in a column.
    """
    numeric = {name: cells for name, cells in columns.items() if 2 * cells.num_numbers > cells.num}
    shown = certain_columns(numeric.values(), delimiter)
    converters, notes = dict[str, Converter](), dict[str, str]()
    for name, cells in numeric.items():
        if cells.has_unit or cells.has_several_units or (cells.marks and cells.num_numbers < cells.num):
            continue
        thousands = cells.spaced
        for sign in filter(cells.has, SIGNS):
            seen = [examples[sign] for examples in cells.decisive.values() if sign in examples]
            if len(seen) == 2:
                raise ValueError(
                    f"{seen[0].path}: {seen[0]} and {seen[1].cell!r}, in which the {SIGNS[sign]} is decimal once and "
                    "separates thousands once; correct the table and run again"
                )
            meaning, why = meaning_of(sign, cells, shown, delimiter, requested_signs)
            if not meaning:
                raise CommandError(question(sign, cells.ambiguous[sign]), NO_ANSWER)
            if meaning == THOUSANDS:
                thousands += sign
            is_usual = (sign, meaning) == (".", DECIMAL) and (delimiter == "," or sign not in cells.ambiguous)
            if not is_usual:
                hint = "" if seen or requested_signs else f" (--{OPPOSITE[meaning]} {sign} reads it otherwise)"
                notes.setdefault(NAMES[meaning].format(SIGNS[sign]), why + hint)
        for sign in cells.spaced:
            notes.setdefault(NAMES[THOUSANDS].format({" ": "space", "'": "apostrophe"}[sign]), f"in column {name!r}")
        for mark, cell in cells.marks.items():
            notes.setdefault(MARKS[mark], f"column {name!r} holds {cell!r}")
        if thousands or cells.has(",") or cells.marks:
            decimal = "".join(sign for sign in SIGNS if sign not in thousands)
            converters[name] = partial(converted, decimal=decimal, thousands=thousands)
    return converters, notes


def question(sign: str, example: Example) -> str:
    thousands, decimal = example.cell.replace(sign, ""), example.cell.replace(sign, ".")
    return (
        f"{example.path}: {example}, in which the {SIGNS[sign]} may separate thousands or be decimal; "
        f"--thousands {sign} reads it as {thousands}, --decimal {sign} as {decimal}"
    )


def two_signs(sign: str) -> str:
    """The form of a number in which `sign` can only separate thousands: it occurs twice, or the other follows."""
    of_india = r"|[1-9]\d?(?:,\d\d)+,\d{3}" if sign == "," else ""
    twice = rf"(?:[1-9]\d{{0,2}}(?:[{sign}]\d{{3}}){{2,}}{of_india})"
    return rf"[+-]?(?:{twice}(?:[{OTHER[sign]}]\d*)?|{GROUPED[sign]}[{OTHER[sign]}]\d*)"


def converted(cells: pa.ChunkedArray, decimal: str, thousands: str) -> pa.ChunkedArray:
    """Text with the numbers of a column as preprocess reads them: 1.164,5 as 1164.5, 432.5K as 432.5e3."""
    texts = pc.utf8_trim_whitespace(cells)
    plain, power = pc.replace_substring_regex(texts, f"^{MARKED}$", r"\1\2"), pa.scalar("")
    for letter, exponent in POWERS.items():
        power = pc.if_else(pc.match_substring_regex(texts, f"{letter}$"), exponent, power)
    is_number = matches(plain, number_form(decimal, thousands))
    if thousands:
        plain = pc.replace_substring_regex(plain, f"[{''.join(BETWEEN[sign] for sign in thousands)}]", "")
    plain = pc.binary_join_element_wise(pc.replace_substring(plain, ",", "."), power, "")
    return pc.if_else(is_number, plain, cells)


def matches(cells: pa.Array, form: str) -> pa.BooleanArray:
    return pc.match_substring_regex(cells, f"^(?:{form})$")

"""Turn a raw table into arrays: checked, split, with velocity, padded and standardized.

In: data/raw/<workload>/<table> (data/raw/README.md is its contract). Out: data/prepared/<workload>/<split>/{values,lengths,targets,ids}.npy
and summary.json, all deterministic. Time and memory are linear in the table. Nothing loops over sequences, except over repeated ones while
they are split. Read with pyarrow, which keeps text and numbers apart without a copy (pandas took twice the memory).

Shapes: R rows of the table, N sequences, T steps of the longest one, F features. values (N, T, F) float32, zero after a sequence's end.
"""

import csv
import gzip
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from stages.params import Columns, Preprocess, Split, load_workload, nearest
from stages.runtime.store import prepared_dir, raw_dir, relative, replacing, sha256_file, write_json

if TYPE_CHECKING:
    import pandas

SPLITS = ("train", "val", "test")
SPLIT_COLUMN = "split"
ENDINGS = (".csv", ".csv.gz", ".parquet")
CHUNK_CELLS = 1 << 20  # cells worked on at once where a whole-array temporary would cost memory


@dataclass(frozen=True)
class Table:
    """The columns asked for, not yet checked. `take` gives a column away, so that two copies of everything never exist."""

    name: str
    columns: dict[str, pa.ChunkedArray]
    place: Callable[[int], str]  # where a row (from 0) stands in the file, as its reader counts

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, column: str) -> pa.ChunkedArray:
        return self.columns.pop(column)


@dataclass(frozen=True)
class Sequences:
    """A whole table as arrays; sequences are in the order of their ids."""

    values: np.ndarray  # (N, T, F) float32
    lengths: np.ndarray  # (N,) int32
    labels: np.ndarray  # (N,) int64, indices into classes
    ids: np.ndarray  # (N,) text
    splits: np.ndarray | None  # (N,) text, where the table says itself
    classes: tuple[Any, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What one table and one block of params come to: everything that is written, before it is written."""

    sequences: Sequences  # standardized, with velocity where asked for
    groups: np.ndarray  # (N,) equal for equal sequences
    parts: dict[str, np.ndarray]  # split -> sorted sequence numbers
    mean: np.ndarray  # (F,) of the training split
    std: np.ndarray  # (F,)


def main(workload: str) -> None:
    start = time.monotonic()
    params = load_workload(workload).preprocess
    path = find_table(raw_dir(workload), params.table)
    prepared = prepare(path, params)
    digests = write_arrays(prepared_dir(workload), prepared)

    summary = summarize(prepared)
    write_json(
        prepared_dir(workload) / "summary.json", {**summary, "table_sha256": sha256_file(path), "sha256": digests}
    )
    counts = ", ".join(f"{name} {len(rows):,}" for name, rows in prepared.parts.items())
    print(
        f"{workload}: {summary['num_sequences']:,} sequences of up to {summary['max_steps']} steps, {len(summary['classes'])} classes; "
        f"{counts}; {time.monotonic() - start:.1f} s"
    )
    crossing = summary["num_duplicates_across_splits"]
    if crossing:
        print(
            f"warning: {crossing} sequences of val and test also stand in another split, because the table's own split column says so"
        )


def prepare(path: Path, params: Preprocess) -> Prepared:
    """The table at `path` as arrays, split and standardized; nothing is written."""
    sequences = to_sequences(read_table(path, params.columns), params.columns, params.velocity)
    groups = duplicate_groups(sequences.values[:, :, : len(params.columns.features)], sequences.lengths)
    parts = split(sequences, groups, params.split, params.seed)
    mean, std = statistics_of(sequences, parts["train"])
    standardize(sequences, mean, std)
    return Prepared(sequences, groups, parts, mean, std)


def find_table(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if (
        parts.is_absolute() or ".." in parts.parts or "\\" in name
    ):  # by name: a link to a large disk is the user's own business
        raise ValueError(
            f"preprocess.table is {name!r}, which leaves {relative(folder)}; put the table there and give its name alone"
        )
    if not name.endswith(ENDINGS):
        raise ValueError(f"preprocess.table is {name!r}; accepted endings: {', '.join(ENDINGS)}")
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{relative(path)} is not there; put the workload's table at that place (data/raw/README.md says what it must hold)"
        )
    return path


def read_table(path: Path, columns: Columns) -> Table:
    """The columns asked for, and `split` where there is one. Raises ValueError where one is missing or the file is not a table at all."""
    wanted = [columns.sequence, columns.step, *columns.features, columns.label]
    for column in wanted:
        if wanted.count(column) > 1 or column == SPLIT_COLUMN:
            raise ValueError(
                f"preprocess.columns names {column!r} {'twice' if column != SPLIT_COLUMN else 'for something else than the split'}; "
                "sequence, step, features and label must be different columns, and the name `split` is kept for train, val or test"
            )
    is_parquet = path.suffix == ".parquet"
    try:
        cells = read_parquet(path, wanted) if is_parquet else read_csv(path, columns)
    except (pa.ArrowException, csv.Error, OSError, EOFError, UnicodeDecodeError) as error:
        why = None if is_parquet else ragged_line(path)
        raise ValueError(
            f"{relative(path)} cannot be read as {'Parquet' if is_parquet else 'CSV'}: {why or ' '.join(str(error).split())}"
        ) from None
    if cells.num_rows == 0:
        raise ValueError(
            f"{relative(path)} has a header but 0 rows; at least one sequence per class and split is needed"
        )
    return Table(
        relative(path),
        dict(zip(cells.column_names, cells.columns, strict=True)),
        row_number if is_parquet else csv_line(path),
    )


def from_frame(frame: "pandas.DataFrame", columns: Columns, name: str) -> Table:
    """A DataFrame as the table that `to_sequences` takes; raises ValueError, with `name` for the table, where it is none."""
    try:
        cells = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise ValueError(f"{name} mixes kinds of values in one column: {' '.join(str(error).split())}") from None
    wanted = present(name, cells.column_names, [columns.sequence, columns.step, *columns.features, columns.label])
    return Table(name, {column: cells.column(column) for column in wanted}, row_number)


def row_number(row: int) -> str:
    return f"row {row + 1}"


def read_parquet(path: Path, wanted: list[str]) -> pa.Table:
    with pa.parquet.ParquetFile(path) as file:
        return file.read(columns=present(relative(path), file.schema_arrow.names, wanted))


def read_csv(path: Path, columns: Columns) -> pa.Table:
    """Ids and labels are read as text, so that `007` and a label `NA` stay what they are; the rest as what it looks like."""
    with open_csv(path) as file:
        header = next(csv.reader(file), None)
    if not header:
        raise ValueError(f"{relative(path)} is empty (0 bytes of table); it must hold a header and at least one row")
    wanted = present(relative(path), header, [columns.sequence, columns.step, *columns.features, columns.label])
    text = pa.dictionary(pa.int32(), pa.string())
    texts = dict.fromkeys((columns.sequence, columns.label, SPLIT_COLUMN), text)
    looks_like = pa.csv.ConvertOptions(include_columns=wanted, column_types=texts, null_values=[""])
    with pa.csv.open_csv(path, convert_options=looks_like) as start:
        types = {field.name: field.type for field in start.schema}
    types.update({name: pa.float64() for name in columns.features if types[name] == pa.int64()})
    typed = pa.csv.ConvertOptions(include_columns=wanted, column_types=types, null_values=[""])
    try:
        # With the types known from the first megabyte: a third of the time and of the memory.
        return pa.csv.read_csv(path, convert_options=typed)
    except pa.ArrowInvalid:
        return pa.csv.read_csv(path, convert_options=looks_like)


def present(name: str, header: list[str], wanted: list[str]) -> list[str]:
    """The columns to read; raises ValueError where one is missing or there twice."""
    for column in wanted:
        if column not in header:
            raise ValueError(f"{name} has no column {column!r}{nearest(column, header)}")
    found = [*wanted, *([SPLIT_COLUMN] if SPLIT_COLUMN in header else [])]
    for column in found:
        if header.count(column) > 1:
            raise ValueError(f"{name} has {header.count(column)} columns {column!r}; rename all but one")
    return found


def open_csv(path: Path) -> Any:
    return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="")


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that hold anything, with their line in the file; the header comes first."""
    with open_csv(path) as file:
        reader = csv.reader(file)
        for cells in reader:
            if cells:
                yield reader.line_num, cells


def csv_line(path: Path) -> Callable[[int], str]:
    """Blank lines make the file's lines differ from the table's rows: the file is read again, once something is wrong with it."""

    def place(row: int) -> str:
        return next(f"line {line}" for index, (line, _) in enumerate(csv_rows(path)) if index == row + 1)

    return place


def ragged_line(path: Path) -> str | None:
    """The first line with more or fewer cells than the header, in words."""
    try:
        rows = csv_rows(path)
        width = len(next(rows)[1])
        odd = next(((line, cells) for line, cells in rows if len(cells) != width), None)
    except (csv.Error, OSError, EOFError, UnicodeDecodeError, StopIteration):
        return None
    return odd and f"line {odd[0]} has {len(odd[1])} cells and the header {width}; correct the table and run again"


def to_sequences(table: Table, columns: Columns, velocity: bool) -> Sequences:
    """Check the long table and pack it, with each feature's difference from the step before (`d<name>`, 0 at the first step) if asked for.

    Every complaint names the place of the row in the file. Takes the columns out of `table`.
    """
    codes, ids = coded(table, columns.sequence)
    step = numbers(table, columns.step)
    num_sequences = len(ids)
    lengths = np.bincount(codes, minlength=num_sequences).astype(np.int32)
    num_steps = int(lengths.max())
    if lengths.min() < 2:
        short = int(lengths.argmin())
        raise ValueError(
            f"{table.name}: sequence {str(ids[short])!r} has {lengths[short]} step; every sequence needs at least 2"
        )
    # Rows that come in order, as they usually do, need no index into them.
    follows = codes[1:] == codes[:-1]
    in_place = bool(((codes[1:] > codes[:-1]) | (follows & (step[1:] > step[:-1]))).all())
    order = None if in_place else np.lexsort((step, codes))
    if order is not None:
        step, ordered = step[order], codes[order]
        follows = ordered[1:] == ordered[:-1]
        twice = np.zeros(len(codes), dtype=bool)
        twice[order[1:]] = follows & (step[1:] == step[:-1])
        refuse(table, twice, f"the same {columns.sequence} and {columns.step} stand in an earlier row")
    del step, follows
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])
    first = starts if order is None else order[starts]

    labels, classes = coded(table, columns.label)
    refuse(table, labels != labels[first][codes], f"column {columns.label!r} changes within a sequence")
    splits = None
    if SPLIT_COLUMN in table.columns:
        splits = split_words(table, first, codes)
    del codes

    num_features = len(columns.features)
    values = np.zeros((num_sequences, num_steps, num_features * (2 if velocity else 1)), dtype=np.float32)
    real = None if int(lengths.min()) == num_steps else np.arange(num_steps)[None, :] < lengths[:, None]
    for index, column in enumerate(columns.features):
        cells = numbers(table, column).astype(np.float32, copy=False)
        cells = cells if order is None else cells[order]
        if real is None:
            padded = cells.reshape(num_sequences, num_steps)
        else:
            padded = np.zeros((num_sequences, num_steps), dtype=np.float32)
            padded[real] = cells
        values[:, :, index] = padded
        if velocity:
            difference = padded[:, 1:] - padded[:, :-1]
            # The step from the last value to the padding is no velocity.
            values[:, 1:, num_features + index] = difference if real is None else np.where(real[:, 1:], difference, 0.0)
    names = columns.features + (tuple(f"d{name}" for name in columns.features) if velocity else ())
    return Sequences(
        values, lengths, labels[first].astype(np.int64), ids.astype(np.str_), splits, tuple(classes.tolist()), names
    )


def coded(table: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """(R,) int32 codes and the distinct values they stand for, in order."""
    cells = table.take(column)
    if cells.null_count:
        refuse(table, pc.is_null(cells).to_numpy(), f"column {column!r} is empty")
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    filled = [chunk for chunk in cells.unify_dictionaries().chunks if len(chunk)]
    codes, found = np.concatenate([chunk.indices.to_numpy() for chunk in filled]), filled[0].dictionary
    if pa.types.is_integer(found.type):
        values, rank = in_order(found.to_numpy())
    else:
        texts = found.cast(pa.string()).to_numpy(zero_copy_only=False).astype(np.str_)
        blank = np.flatnonzero(np.char.strip(texts) == "")
        if len(blank):
            refuse(table, np.isin(codes, blank), f"column {column!r} is empty")
        values, rank = in_order(texts)
    return rank.astype(np.int32)[codes], values


def in_order(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`values` sorted, and the place of each among them: by number where all are numbers, by text else.

    Whole numbers as they are usually written (`10`, not `010`) become int64, so that a CSV and a Parquet file come to the same.
    """
    keys: np.ndarray
    try:
        keys = values.astype(np.int64)
        if values.dtype.kind == "U" and (keys.astype(np.str_) != values).any():
            keys = values.astype(np.float64)
        else:
            values = keys
    except (ValueError, OverflowError):
        try:
            keys = values.astype(np.float64)
        except ValueError:
            keys = np.zeros(len(values))
    order = np.lexsort((values, keys))
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    return values[order], rank


def numbers(table: Table, column: str) -> np.ndarray:
    """(R,) float64 or as the file has them, all finite; else ValueError with the row and what stands there. Times count as their unit."""
    cells = table.take(column)
    if pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type):
        cells = cells.cast(pa.timestamp("ns")).cast(pa.int64())
    if pa.types.is_decimal(cells.type):
        cells = cells.cast(pa.float64())
    why = f"column {column!r} must hold finite numbers"
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        wrong = (not is_number(cell) for chunk in cells.chunks for cell in chunk.to_pylist())
        refuse(table, np.fromiter(wrong, dtype=bool, count=len(cells)), why, cells)
        cells = cells.cast(pa.string()).cast(pa.float64())  # numbers kept as text, which a Parquet file can hold
    if cells.null_count:
        refuse(table, pc.is_null(cells).to_numpy(), why, cells)
    array = cells.to_numpy()
    if array.dtype.kind == "f":
        refuse(table, ~np.isfinite(array), why, cells)
    return array


def is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def split_words(table: Table, first: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(N,) train, val or test, as the table's own column says; it must say so in every row."""
    words = table.take(SPLIT_COLUMN)
    known = pc.index_in(words.cast(pa.string()), pa.array(SPLITS))
    if known.null_count:
        refuse(table, pc.is_null(known).to_numpy(), "column 'split' must be train, val or test", words)
    known = known.to_numpy()
    refuse(table, known != known[first][codes], "column 'split' changes within a sequence", words)
    return np.array(SPLITS)[known[first]]


def refuse(table: Table, wrong: np.ndarray, why: str, found: pa.ChunkedArray | None = None) -> None:
    """Raise ValueError for the first row where `wrong` is true."""
    if wrong.any():
        row = int(wrong.argmax())
        value = None if found is None else found[row].as_py()
        shown = "" if found is None else f", found {'(empty)' if value is None or value == '' else value}"
        more = f" ({int(wrong.sum()):,} rows in all)" if wrong.sum() > 1 else ""
        raise ValueError(f"{table.name}, {table.place(row)}: {why}{shown}{more}; correct the table and run again")


def chunks(num: int, values: np.ndarray) -> Iterator[slice]:
    """Slices over `num` sequences, each of about CHUNK_CELLS cells of `values`."""
    size = max(1, CHUNK_CELLS // (values.shape[1] * values.shape[2]))
    return (slice(low, low + size) for low in range(0, num, size))


def duplicate_groups(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(N,) group numbers: equal for sequences of one length whose values (N, T, F) are equal bit for bit.

    A 64-bit hash decides. Two different sequences that collide (expected once in 37 million tables of a million sequences) would only be
    kept in one split.
    """
    num_cells = values.shape[1] * values.shape[2]
    odd = np.random.default_rng(0).integers(1, 2**63, size=num_cells, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.empty(len(values), dtype=np.uint64)
    for chunk in chunks(len(values), values):
        bits = np.ascontiguousarray(values[chunk]).reshape(-1, num_cells).view(np.uint32)
        hashes[chunk] = bits @ odd
    hashes += (values.shape[1] - lengths).astype(np.uint64) * odd[0]
    return np.unique(hashes, return_inverse=True)[1]


def split(sequences: Sequences, groups: np.ndarray, shares: Split, seed: int) -> dict[str, np.ndarray]:
    """Sorted row numbers of train, val and test.

    The table's own split column wins (a val split that it lacks is taken from its train rows). Else: stratified by class, seeded, of the
    sizes asked for, with equal sequences kept on one side.
    """
    sizes = sizes_of(shares, len(sequences.ids))
    draw = np.random.default_rng(seed)
    if sequences.splits is None:
        check_class_sizes(sequences, sum(size > 0 for size in sizes.values()))
        return stratified(np.arange(len(sequences.ids)), sequences.labels, groups, sizes, draw)
    parts = {name: np.flatnonzero(sequences.splits == name) for name in SPLITS}
    for name in ("train", "test"):
        if len(parts[name]) == 0:
            raise ValueError(
                f"the table's split column has no {name} rows; train and test are needed "
                "(val is taken from train where it lacks)"
            )
    if len(parts["val"]) == 0 and sizes["val"]:
        wanted = max(1, round(len(parts["train"]) * sizes["val"] / (sizes["train"] + sizes["val"])))
        inner = {"test": 0, "val": wanted, "train": len(parts["train"]) - wanted}
        parts = {**stratified(parts["train"], sequences.labels, groups, inner, draw), "test": parts["test"]}
    known = np.unique(sequences.labels[parts["train"]])
    for name in ("val", "test"):
        unseen = np.setdiff1d(sequences.labels[parts[name]], known)
        if len(unseen):
            raise ValueError(
                f"label {sequences.classes[unseen[0]]!r} occurs in {name} but not in train, so no model can learn it; "
                "move some of its sequences to train"
            )
    return parts


def sizes_of(shares: Split, num_sequences: int) -> dict[str, int]:
    """Whole sizes from shares (rounded, the rest to train) or from counts (which must not exceed what is there)."""
    wanted = {"train": shares.train, "val": shares.val, "test": shares.test}
    if all(isinstance(size, int) for size in wanted.values()):
        if sum(wanted.values()) != num_sequences:
            raise ValueError(
                f"preprocess.split asks for {shares.train} + {shares.val} + {shares.test} = {sum(wanted.values()):g} sequences "
                f"and the table holds {num_sequences}; make them equal, or give shares that add up to 1"
            )
        return {name: int(size) for name, size in wanted.items()}
    test = round(shares.test * num_sequences)
    val = round((shares.val + shares.test) * num_sequences) - test
    return {"train": num_sequences - val - test, "val": val, "test": test}


def check_class_sizes(sequences: Sequences, num_splits: int) -> None:
    counts = np.bincount(sequences.labels, minlength=len(sequences.classes))
    if counts.min() < num_splits:
        smallest = int(counts.argmin())
        raise ValueError(
            f"class {sequences.classes[smallest]!r} has {counts[smallest]} sequences and {num_splits} splits want at least one each; "
            "add sequences of it, leave the class out, or set a share of preprocess.split to 0"
        )


def stratified(
    rows: np.ndarray, labels: np.ndarray, groups: np.ndarray, sizes: dict[str, int], draw: np.random.Generator
) -> dict[str, np.ndarray]:
    """Share `rows` out to splits of the given sizes, class by class in proportion, groups of equal sequences whole."""
    classes, own = np.unique(labels[rows], return_inverse=True)
    left = np.bincount(own, minlength=len(classes))
    open_places = {}  # split -> (C,) how many of each class it still takes
    num_left = len(rows)
    for name in ("test", "val"):
        open_places[name] = proportional(left, sizes[name], num_left, draw)
        left, num_left = left - open_places[name], num_left - sizes[name]
    open_places["train"] = left
    names = list(open_places)

    chosen = np.full(len(rows), -1)
    _, group, group_sizes = np.unique(groups[rows], return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(group_sizes[group] > 1)
    members = np.split(
        repeated[np.argsort(group[repeated], kind="stable")], np.cumsum(group_sizes[group_sizes > 1])[:-1]
    )
    for index in draw.permutation(len(members)) if len(repeated) else ():
        need = np.bincount(own[members[index]], minlength=len(classes))
        room = np.array(
            [np.where(need, open_places[name], 0).sum() if np.all(open_places[name] >= need) else 0 for name in names]
        )
        where = draw.choice(len(names), p=room / room.sum()) if room.any() else names.index("train")
        chosen[members[index]] = where
        open_places[names[where]] = open_places[names[where]] - need
    for label in range(len(classes)):
        single = draw.permutation(np.flatnonzero((own == label) & (chosen < 0)))
        places = np.repeat(np.arange(len(names)), [max(0, open_places[name][label]) for name in names])
        chosen[single] = np.concatenate([places, np.full(max(0, len(single) - len(places)), names.index("train"))])[
            : len(single)
        ]
    return {name: np.sort(rows[chosen == names.index(name)]) for name in SPLITS}


def proportional(counts: np.ndarray, size: int, total: int, draw: np.random.Generator) -> np.ndarray:
    """`size` places shared out over classes in proportion to `counts`: floors first, then the largest remainders, ties by lot."""
    quota = counts * (size / max(total, 1))
    places = np.floor(quota).astype(np.int64)
    by_remainder = np.lexsort((draw.random(len(counts)), -(quota - places).round(9)))
    places[by_remainder[: size - places.sum()]] += 1
    return places


def padding(sequences: Sequences) -> np.ndarray:
    """(N, T) bool: True after a sequence's end."""
    return np.arange(sequences.values.shape[1])[None, :] >= sequences.lengths[:, None]


def statistics_of(sequences: Sequences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) over the real steps of `rows` (the training split); a feature that never changes gets 1."""
    num_steps = int(sequences.lengths[rows].sum())
    mean = np.zeros(len(sequences.features))
    variance = np.zeros(len(sequences.features))
    after = padding(sequences)
    for chunk in chunks(len(rows), sequences.values):  # padding is zero: it adds nothing to a sum
        mean += sequences.values[rows[chunk]].sum(axis=(0, 1), dtype=np.float64) / num_steps
    for chunk in chunks(len(rows), sequences.values):
        deviation = sequences.values[rows[chunk]] - mean.astype(np.float32)
        deviation[after[rows[chunk]]] = 0.0
        variance += np.square(deviation).sum(axis=(0, 1), dtype=np.float64) / num_steps
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-12 * np.maximum(1.0, np.abs(mean)), std, 1.0)


def standardize(sequences: Sequences, mean: np.ndarray, std: np.ndarray) -> None:
    """In place; the padding stays zero."""
    after = padding(sequences)
    for chunk in chunks(len(sequences.values), sequences.values):
        values = sequences.values[chunk]
        values -= mean.astype(np.float32)
        values /= std.astype(np.float32)
        values[after[chunk]] = 0.0


def write_arrays(folder: Path, prepared: Prepared) -> dict[str, str]:
    """Write the four arrays of every split; return their sha256 by path relative to `folder`."""
    sequences, digests = prepared.sequences, {}
    for name, rows in prepared.parts.items():
        arrays = {
            "values": sequences.values[rows],
            "lengths": sequences.lengths[rows],
            "targets": sequences.labels[rows],
            "ids": sequences.ids[rows],
        }
        for array_name, array in arrays.items():
            path = folder / name / f"{array_name}.npy"
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            digests[f"{name}/{array_name}.npy"] = sha256_file(path)
    return digests


def summarize(prepared: Prepared) -> dict[str, Any]:
    sequences, groups, parts = prepared.sequences, prepared.groups, prepared.parts
    counts = {
        name: np.bincount(sequences.labels[rows], minlength=len(sequences.classes)) for name, rows in parts.items()
    }
    _, first, group, group_sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    side = np.zeros(len(groups), dtype=np.int8)
    for number, name in enumerate(SPLITS):
        side[parts[name]] = number
    return {
        "num_sequences": len(sequences.ids),
        "num_per_split": {name: len(rows) for name, rows in parts.items()},
        "num_per_class": {
            name: {str(label): int(count) for label, count in zip(sequences.classes, counts[name], strict=True)}
            for name in parts
        },
        "num_duplicates": int(len(groups) - len(group_sizes)),
        "num_duplicates_with_other_label": int((sequences.labels != sequences.labels[first][group]).sum()),
        "num_duplicates_across_splits": int((side != side[first][group]).sum()),
        "classes": list(sequences.classes),
        "features": list(sequences.features),
        "mean": prepared.mean.tolist(),
        "std": prepared.std.tolist(),
        "min_steps": int(sequences.lengths.min()),
        "max_steps": int(sequences.lengths.max()),
    }

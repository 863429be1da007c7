"""Turn a raw table into arrays: checked, split, with velocity, padded and standardized.

In: data/raw/<workload>/<table> (data/raw/README.md is its contract). Out: data/prepared/<workload>/<split>/{values,lengths,targets,ids}.npy
and summary.json, all deterministic. Time and memory are linear in the table; nothing loops over sequences.

Shapes: R rows of the table, N sequences, T steps of the longest one, F features. values (N, T, F) float32, zero after a sequence's end.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.params import Columns, Preprocess, Split, load_workload, nearest
from stages.runtime.store import prepared_dir, raw_dir, relative, replacing, sha256_file, write_json

SPLITS = ("train", "val", "test")
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {".csv": pd.read_csv, ".csv.gz": pd.read_csv, ".parquet": pd.read_parquet}
CHUNK = 1 << 16  # sequences worked on at once where a whole-array temporary would cost memory


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
    sequences = to_sequences(read_table(path), params.columns, relative(path))
    groups = duplicate_groups(sequences.values)
    parts = split(sequences, groups, params.split, params.seed)
    if params.velocity:
        sequences = add_velocity(sequences)
    mean, std = statistics_of(sequences, parts["train"])
    standardize(sequences, mean, std)
    return Prepared(sequences, groups, parts, mean, std)


def find_table(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"preprocess.table is {name!r}, which leaves {relative(folder)}; put the table there and give its name alone"
        )
    if not any(name.endswith(ending) for ending in READERS):
        raise ValueError(f"preprocess.table is {name!r}; accepted endings: {', '.join(READERS)}")
    if not path.is_file():
        raise FileNotFoundError(
            f"{relative(path)} is not there; put the workload's table at that place (data/raw/README.md says what it must hold)"
        )
    return path


def read_table(path: Path) -> pd.DataFrame:
    """The table as pandas reads it; raises ValueError where it is not a table at all."""
    reader = next(reader for ending, reader in READERS.items() if path.name.endswith(ending))
    try:
        return reader(path)
    except pd.errors.EmptyDataError:
        raise ValueError(
            f"{relative(path)} is empty (0 bytes of table); it must hold a header and at least one row"
        ) from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, EOFError) as error:
        raise ValueError(
            f"{relative(path)} cannot be read as {''.join(path.suffixes)}: {' '.join(str(error).split())}"
        ) from None


def to_sequences(table: pd.DataFrame, columns: Columns, name: str) -> Sequences:
    """Check the long table and pack it; every complaint names the row as a text editor counts it (the header is line 1)."""
    wanted = (columns.sequence, columns.step, *columns.features, columns.label)
    for column in wanted:
        if column not in table.columns:
            raise ValueError(f"{name} has no column {column!r}{nearest(column, map(str, table.columns))}")
    if len(table) == 0:
        raise ValueError(f"{name} has a header but 0 rows; at least one sequence per class and split is needed")
    for column in (columns.sequence, columns.label):
        refuse(table[column].isna().to_numpy(), f"column {column!r} is empty", name)
    step = numbers(table, columns.step, name)
    codes, ids = pd.factorize(table[columns.sequence], sort=True)
    num_sequences = len(ids)

    lengths = np.bincount(codes, minlength=num_sequences).astype(np.int32)
    if lengths.min() < 2:
        short = int(lengths.argmin())
        raise ValueError(
            f"{name}: sequence {str(ids[short])!r} has {lengths[short]} step; every sequence needs at least 2"
        )
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)[:-1]])
    in_place = bool(np.all((np.diff(codes) > 0) | ((np.diff(codes) == 0) & (np.diff(step) > 0))))
    order = np.arange(len(table)) if in_place else np.lexsort((step, codes))
    twice = np.zeros(len(table), dtype=bool)
    twice[order[1:]] = (np.diff(codes[order]) == 0) & (np.diff(step[order]) == 0)
    refuse(twice, f"the same {columns.sequence} and {columns.step} stand in an earlier row", name)

    place = np.empty(len(table), dtype=np.int64)  # of each row in the flattened (N, T)
    place[order] = np.arange(len(table)) - starts[codes[order]]
    place += codes.astype(np.int64) * int(lengths.max())
    values = np.zeros((num_sequences * int(lengths.max()), len(columns.features)), dtype=np.float32)
    for index, column in enumerate(columns.features):
        values[place, index] = numbers(table, column, name)
    first = order[starts]

    labels, classes = factorize_labels(table[columns.label])
    refuse(labels != labels[first][codes], f"column {columns.label!r} changes within a sequence", name)
    splits = None
    if "split" in table.columns:
        words = table["split"].astype("string").fillna("(empty)").to_numpy(dtype=object)
        refuse(~np.isin(words, SPLITS), "column 'split' must be train, val or test", name, words)
        refuse(words != words[first][codes], "column 'split' changes within a sequence", name)
        splits = words[first].astype(str)
    return Sequences(
        values.reshape(num_sequences, int(lengths.max()), -1),
        lengths,
        labels[first],
        np.asarray(ids).astype(str),
        splits,
        classes,
        columns.features,
    )


def numbers(table: pd.DataFrame, column: str, name: str) -> np.ndarray:
    """The column as float64, all finite; else ValueError with the row and what stands there."""
    converted = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    refuse(~np.isfinite(converted), f"column {column!r} must hold finite numbers", name, table[column].to_numpy())
    return converted


def refuse(wrong: np.ndarray, why: str, name: str, found: np.ndarray | None = None) -> None:
    """Raise ValueError for the first row where `wrong` is true."""
    if wrong.any():
        row = int(wrong.argmax())
        value = f", found {found[row]!s}" if found is not None else ""
        more = f" ({int(wrong.sum()):,} rows in all)" if wrong.sum() > 1 else ""
        raise ValueError(f"{name}, line {row + 2}: {why}{value}{more}; correct the table and run again")


def factorize_labels(column: pd.Series) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Class indices and the classes in order: by number where all are whole numbers, by text else."""
    as_numbers = pd.to_numeric(column, errors="coerce")
    whole = bool(as_numbers.notna().all() and (as_numbers % 1 == 0).all())
    codes, classes = pd.factorize(as_numbers.astype(np.int64) if whole else column.astype(str), sort=True)
    return codes.astype(np.int64), tuple(int(value) if whole else str(value) for value in classes)


def duplicate_groups(values: np.ndarray) -> np.ndarray:
    """(N,) group numbers: equal for sequences whose values are equal bit for bit.

    A 64-bit hash decides. Two different sequences that collide (expected once in 37 million tables of a million sequences) would only be
    kept in one split.
    """
    flat = values.reshape(len(values), -1).view(np.uint32)
    weights = np.random.default_rng(0).integers(1, 2**63, size=flat.shape[1], dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    hashes = np.empty(len(flat), dtype=np.uint64)
    for low in range(0, len(flat), CHUNK):
        hashes[low : low + CHUNK] = (flat[low : low + CHUNK] * weights).sum(axis=1, dtype=np.uint64)
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
                f"preprocess.split asks for {shares.train} + {shares.val} + {shares.test} = {sum(wanted.values()):g} sequences and the table holds "
                f"{num_sequences}; make them equal, or give shares that add up to 1"
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


def add_velocity(sequences: Sequences) -> Sequences:
    """Append each feature's difference from the step before (0 at the first step) as a feature `d<name>`."""
    values = sequences.values
    doubled = np.zeros((*values.shape[:2], 2 * values.shape[2]), dtype=np.float32)
    doubled[..., : values.shape[2]] = values
    np.subtract(values[:, 1:], values[:, :-1], out=doubled[:, 1:, values.shape[2] :])
    doubled[..., values.shape[2] :][padding(sequences)] = (
        0.0  # the step from the last value to the padding is no velocity
    )
    return replace(
        sequences, values=doubled, features=(*sequences.features, *(f"d{name}" for name in sequences.features))
    )


def padding(sequences: Sequences) -> np.ndarray:
    """(N, T) bool: True after a sequence's end."""
    return np.arange(sequences.values.shape[1])[None, :] >= sequences.lengths[:, None]


def statistics_of(sequences: Sequences, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) over the real steps of `rows` (the training split); a feature that never changes gets 1."""
    num_steps = int(sequences.lengths[rows].sum())
    mean = np.zeros(len(sequences.features))
    variance = np.zeros(len(sequences.features))
    after = padding(sequences)
    chunks = [rows[low : low + CHUNK] for low in range(0, len(rows), CHUNK)]
    for chunk in chunks:  # padding is zero: it adds nothing to a sum
        mean += sequences.values[chunk].sum(axis=(0, 1), dtype=np.float64) / num_steps
    for chunk in chunks:
        deviation = sequences.values[chunk] - mean.astype(np.float32)
        deviation[after[chunk]] = 0.0
        variance += np.square(deviation).sum(axis=(0, 1), dtype=np.float64) / num_steps
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-12 * np.maximum(1.0, np.abs(mean)), std, 1.0)


def standardize(sequences: Sequences, mean: np.ndarray, std: np.ndarray) -> None:
    """In place; the padding stays zero."""
    after = padding(sequences)
    for low in range(0, len(sequences.values), CHUNK):
        chunk = sequences.values[low : low + CHUNK]
        chunk -= mean.astype(np.float32)
        chunk /= std.astype(np.float32)
        chunk[after[low : low + CHUNK]] = 0.0


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

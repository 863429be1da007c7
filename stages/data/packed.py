"""A split's arrays -> the tensors that batches are cut from -> one aligned file, which a device can load as it is."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from stages.data.splits import SPLITS
from stages.files import damaged, relative, replacing, verified

ALIGNMENT_BYTES = 64  # a cache line, and what AVX-512 loads at once


def read_arrays(folder: Path, split: str, summary: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a split in `folder` as tensors (see as_tensors). `summary` is preprocess's.

    Raises ValueError where a file is not the one that preprocess wrote.
    """
    return as_tensors(*(read_array(folder, split, name, summary) for name in ("values", "lengths", "targets")))


def read_array(folder: Path, split: str, name: str, summary: dict[str, Any]) -> np.ndarray:
    """One array of a split. Raises ValueError where its file is not the one that preprocess wrote."""
    recorded = summary["sha256"][f"{split}/{name}.npy"]
    path = verified(folder / split / f"{name}.npy", recorded, f"preprocess@{folder.name}")
    try:
        return np.asarray(np.load(path))
    except (ValueError, EOFError) as error:  # pickled objects are refused too
        raise damaged(relative(path), str(error)) from None


def as_tensors(values: np.ndarray, lengths: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """values (N, T, F), lengths (N,), targets (N, ...) -> values, mask (N, T), True: a real step, and targets."""
    steps = np.arange(values.shape[1])
    return {
        "values": np.ascontiguousarray(values, dtype=np.float32),
        "mask": steps[None, :] < lengths[:, None],
        "targets": targets,
    }


def pack_splits(source: Path, target: Path, summary: dict[str, Any]) -> dict[str, int]:
    """Pack every split of the arrays in `source` into <target>/<split>.safetensors; return each one's bytes of data."""
    return {split: pack(read_arrays(source, split, summary), target / f"{split}.safetensors") for split in SPLITS}


def pack(tensors: dict[str, np.ndarray], path: Path) -> int:
    """Write `tensors` to `path` as safetensors whose data start on a cache line; return the bytes of data.

    The format allows spaces after its JSON header (https://github.com/huggingface/safetensors, "Format"); these align
    the data.
    """
    packed = save(tensors)
    header_bytes = int.from_bytes(packed[:8], "little")
    padding = -(8 + header_bytes) % ALIGNMENT_BYTES
    with replacing(path, num_bytes=len(packed) + padding) as temporary, temporary.open("wb") as file:
        file.write((header_bytes + padding).to_bytes(8, "little"))
        file.write(packed[8 : 8 + header_bytes] + b" " * padding)
        file.write(memoryview(packed)[8 + header_bytes :])
    return sum(tensor.nbytes for tensor in tensors.values())

"""The prepared arrays of a split, and the packed file: one aligned safetensors file, which is memory-mapped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from tandem.data.splits import SPLITS
from tandem.files import damaged, relative, replacing, verified

ALIGNMENT_BYTES = 64  # a cache line, and the width of an AVX-512 load
# safetensors' names of the dtypes that `pack` writes.
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}


def read_prepared(folder: Path, split: str, summary: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read the arrays of a split in `folder`, in the form of `as_arrays`. `summary` is preprocess's summary.json.

    Raises ValueError if a file is not the one that preprocess wrote.
    """
    return as_arrays(*(read_prepared_array(folder, split, name, summary) for name in ("values", "lengths", "targets")))


def read_prepared_array(folder: Path, split: str, name: str, summary: dict[str, Any]) -> np.ndarray:
    """Read one array of a split. Raises ValueError if its file is not the one that preprocess wrote."""
    recorded = summary["sha256"][f"{split}/{name}.npy"]
    path = verified(folder / split / f"{name}.npy", recorded, f"preprocess@{folder.name}")
    try:
        return np.asarray(np.load(path))
    except (ValueError, EOFError) as error:  # np.load also refuses pickled objects
        raise damaged(relative(path), str(error)) from None


def as_arrays(values: np.ndarray, lengths: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Return values (N, T, F), mask (N, T) and targets (N, ...). The mask is True at the first `lengths` (N,) steps."""
    steps = np.arange(values.shape[1])
    return {
        "values": np.ascontiguousarray(values, dtype=np.float32),
        "mask": steps[None, :] < lengths[:, None],
        "targets": targets,
    }


def pack_splits(prepared: Path, packed: Path, summary: dict[str, Any]) -> dict[str, int]:
    """Pack every split in the folder `prepared` into <packed>/<split>.safetensors. Returns {split: bytes of data}.

    If the sequences have groups, the file has their numbers too.
    """
    sizes = {}
    for split in SPLITS:
        arrays = read_prepared(prepared, split, summary)
        if f"{split}/groups.npy" in summary["sha256"]:
            arrays["groups"] = read_prepared_array(prepared, split, "groups", summary)
        sizes[split] = pack(arrays, packed / f"{split}.safetensors")
    return sizes


def pack(tensors: dict[str, np.ndarray], path: Path) -> int:
    """Write `tensors` to `path` as safetensors, with data that starts on a cache line. Returns the bytes of data.

    Spaces after the JSON header, which the format allows (https://github.com/huggingface/safetensors, "Format"), align
    the data.
    """
    content = save(tensors)
    header_bytes = int.from_bytes(content[:8], "little")
    padding = -(8 + header_bytes) % ALIGNMENT_BYTES
    with replacing(path, num_bytes=len(content) + padding) as temporary, temporary.open("wb") as file:
        file.write((header_bytes + padding).to_bytes(8, "little"))
        file.write(content[8 : 8 + header_bytes] + b" " * padding)
        file.write(memoryview(content)[8 + header_bytes :])
    return sum(tensor.nbytes for tensor in tensors.values())


def read_packed(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a packed file, memory-mapped: the system reads pages on access and can reclaim them.

    The mapping is read-only. The mapping of safetensors' own loader is writable, so it counts as memory of this
    process.
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:start].tobytes())
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            content = np.asarray(raw[start + first : start + last])
            arrays[name] = content.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays

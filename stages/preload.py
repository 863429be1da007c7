"""Pack each split into a file that the device can load directly: `python -m flows.stage preload WORKLOAD DEVICE`.

Reads data/prepared/<workload>/. Writes data/packed/<workload>/<device>/{train,val,test}.safetensors and plan.json,
which contains sizes, hashes and the requested data location. plan.json is deterministic because training depends on it;
training resolves `auto` from the memory that is free then. Writes the measurements to
results/preload/<workload>/<device>.json; no stage depends on them. torch is imported only if there is a GPU to
copy to.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from stages.data.packed import pack_splits
from stages.data.splits import SPLITS
from stages.files import hardware_file, packed_dir, preload_file, prepared_dir, read_json, sha256_file, write_json
from stages.machine.identity import require_same_gpu
from stages.params.loading import load_workload

CHUNK_BYTES = 64 * 2**20  # read or copied at a time while measuring
SUMMED_BYTES = 2**20  # widened to 64 bits at a time by `checksum`


def main(workload: str, device: str) -> None:
    wanted = load_workload(workload).preload.data_location
    identity = read_json(hardware_file(device))
    if identity["kind"] == "cuda":
        require_same_gpu(identity)
    source, target = prepared_dir(workload), packed_dir(workload, device)
    summary = read_json(source / "summary.json")

    sizes = pack_splits(source, target, summary)
    measurements = measure_load([target / f"{split}.safetensors" for split in SPLITS], identity["kind"])

    write_json(
        target / "plan.json",
        {
            "residency": wanted,
            "bytes": sizes,
            "sha256": {split: sha256_file(target / f"{split}.safetensors") for split in SPLITS},
        },
    )
    write_json(preload_file(workload, device), measurements)
    rates = ", ".join(
        f"{name.removesuffix('_mib_per_second')} {rate:,.0f} MiB/s"
        for name, rate in measurements.items()
        if name.endswith("_per_second")
    )
    print(f"{workload} on {identity['name']}: {sum(sizes.values()) / 2**20:.2f} MiB, data_location {wanted}; {rates}")


def measure_load(paths: list[Path], kind: str) -> dict[str, Any]:
    """Return the rates of reading the packed files (still in the page cache) and of copying them to the device.

    Values that cannot be measured are absent; `missing_reasons` says why.
    """
    buffer, num_bytes = bytearray(CHUNK_BYTES), 0
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                num_bytes += count
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "file_mib": num_bytes / 2**20,
        "load_mib_per_second": num_bytes / 2**20 / seconds,
        "free_mib": psutil.virtual_memory().available / 2**20,
    }
    if kind == "cpu":
        return {**result, "missing_reasons": "no host-to-device copy: the device is the CPU"}
    try:
        return {**result, **measure_copy(paths)}
    except RuntimeError as error:  # torch's own error, or CUDA's if even its context does not fit
        if "out of memory" not in str(error):
            raise
        raise ValueError(
            f"the GPU has no room for the {CHUNK_BYTES / 2**20:.0f} MiB that preload copies at a time; close what else "
            "uses its memory (`make doctor` says how to find it) and run the same command again"
        ) from None


def measure_copy(paths: list[Path], repeats: int = 5) -> dict[str, Any]:
    """Return the host-to-device rates to cuda:0 from pageable and from pinned memory (medians over one chunk).

    Verifies all bytes on the device; raises RuntimeError if they differ from those that were sent.
    """
    import torch

    mapped = [np.memmap(path, dtype=np.uint8, mode="r") for path in paths]
    # One chunk at a time: data that does not fit on the device may not fit into host memory either.
    chunks = (
        torch.from_numpy(np.array(data[start : start + CHUNK_BYTES]))
        for data in mapped
        for start in range(0, len(data), CHUNK_BYTES)
    )
    free_bytes, rates, num_verified = torch.cuda.mem_get_info()[0], {}, 0
    first = torch.from_numpy(np.array(max(mapped, key=len)[:CHUNK_BYTES]))
    for name, host in {"pageable": first, "pinned": first.pin_memory()}.items():
        seconds = []
        for _ in range(repeats + 1):  # the first copy also initializes CUDA and is not counted
            torch.cuda.synchronize()
            start = time.perf_counter()
            host.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        rates[f"{name}_mib_per_second"] = len(first) / 2**20 / float(np.median(seconds[1:]))
    for chunk in chunks:
        if checksum(chunk.to("cuda")) != checksum(chunk):
            raise RuntimeError(
                f"{len(chunk)} bytes arrived altered on {torch.cuda.get_device_name()}; suspect the hardware"
            )
        num_verified += 1
    return {**rates, "free_mib": free_bytes / 2**20, "num_chunks_verified": num_verified}


def checksum(data: Any) -> int:
    """Return the sum over bytes weighted by position, modulo 2**64: equal on every device; swapped bytes change it.

    It works in blocks: as 64-bit numbers, a chunk is eight times as large, and a small GPU has no room for three of
    them.
    """
    import torch

    positions = torch.arange(1, min(SUMMED_BYTES, data.numel()) + 1, device=data.device, dtype=torch.int64)
    total = torch.zeros((), device=data.device, dtype=torch.int64)
    for start in range(0, data.numel(), SUMMED_BYTES):
        block = data[start : start + SUMMED_BYTES].to(torch.int64)
        total += (block * (positions[: len(block)] + start)).sum()
    return int(total)

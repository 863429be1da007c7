"""Pack each split into a file that the device can load directly: `python -m tandem.stage preload WORKLOAD DEVICE`.

Reads data/prepared/<workload>/. Writes data/packed/<workload>/<device>/{train,val,test}.safetensors and plan.json,
which contains sizes, hashes and the requested data location. plan.json is deterministic because training depends on it;
training resolves `auto` from the memory that is free then. Writes the measurements to
results/preload/<workload>/<device>.json; no stage depends on them. torch is imported only if there is a GPU to
copy to.
"""

import time
from pathlib import Path
from typing import Any

from tandem import files
from tandem.data.packed import pack_splits
from tandem.data.splits import SPLITS
from tandem.devices.hardware import free_memory_bytes
from tandem.devices.names import kind_of
from tandem.files import hardware_file, packed_dir, preload_file, prepared_dir, read_json, sha256_file, write_json
from tandem.params.loading import load_workload

CHUNK_BYTES = 64 * 2**20  # read at a time while measuring


def main(workload: str, device: str) -> None:
    data_location = load_workload(workload).preload.data_location
    hardware = read_json(hardware_file(device))
    kind_of(hardware["kind"]).require_same(hardware)
    prepared, packed = prepared_dir(workload), packed_dir(workload, device)
    summary = read_json(prepared / "summary.json")

    sizes = pack_splits(prepared, packed, summary)
    measurements = measure_load([packed / f"{split}.safetensors" for split in SPLITS], hardware["kind"])

    write_json(
        packed / "plan.json",
        {
            "data_location": data_location,
            "bytes": sizes,
            "sha256": {split: sha256_file(packed / f"{split}.safetensors") for split in SPLITS},
        },
    )
    write_json(preload_file(workload, device), measurements)
    rates = ", ".join(
        f"{name.removesuffix('_mib_per_second')} {rate:,.0f} MiB/s"
        for name, rate in measurements.items()
        if name.endswith("_per_second")
    )
    print(f"{sum(sizes.values()) / 2**20:.2f} MiB, data_location {data_location}; {rates}")


def measure_load(paths: list[Path], kind: str) -> dict[str, Any]:
    """Return the rates of reading the packed files (still in the page cache) and of copies from the host to a GPU.

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
        "measured_at": files.now(),
        "file_mib": num_bytes / 2**20,
        "load_mib_per_second": num_bytes / 2**20 / seconds,
        "free_mib": free_memory_bytes() / 2**20,
    }
    if not kind_of(kind).is_accelerator:
        return {**result, "missing_reasons": "no host-to-device copy: the device is the CPU"}
    from tandem.machine.rates import host_to_device_rate

    try:
        for name, pinned in (("pageable", False), ("pinned", True)):
            rate = host_to_device_rate(kind_of(kind)(), pinned)
            result[f"{name}_mib_per_second"] = rate / 2**20
    except RuntimeError as error:  # torch's own error, or CUDA's if even its context does not fit
        if "out of memory" not in str(error):
            raise
        raise ValueError(
            "the GPU has too little free memory for the copies that preload measures; close other programs that use it "
            "(`make doctor` lists commands) and run the same command again"
        ) from None
    return result

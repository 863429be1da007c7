"""Pack each split into one file of tensors: `python -m tandem.stage preload WORKLOAD DEVICE`.

Reads data/prepared/<workload>/. Writes data/packed/<workload>/<device>/{train,val,test}.safetensors and plan.json,
which contains sizes, hashes and the requested data location. plan.json is deterministic because training depends on it;
training resolves `auto` from the memory that is free then.
"""

from tandem.data.packed import pack_splits
from tandem.data.splits import SPLITS
from tandem.devices.names import kind_of
from tandem.files import hardware_file, packed_dir, prepared_dir, read_json, sha256_file, write_json
from tandem.params.loading import load_workload


def main(workload: str, device: str) -> None:
    data_location = load_workload(workload).preload.data_location
    hardware = read_json(hardware_file(device))
    kind_of(hardware["kind"]).require_same(hardware)
    prepared, packed = prepared_dir(workload), packed_dir(workload, device)
    summary = read_json(prepared / "summary.json")

    sizes = pack_splits(prepared, packed, summary)
    write_json(
        packed / "plan.json",
        {
            "data_location": data_location,
            "bytes": sizes,
            "sha256": {split: sha256_file(packed / f"{split}.safetensors") for split in SPLITS},
        },
    )
    print(f"{sum(sizes.values()) / 2**20:.2f} MiB, data_location {data_location}")

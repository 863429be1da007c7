"""Memory that runs out, in a process of its own."""

import resource
from pathlib import Path

MIB = 2**20
FREED = "freed the cached memory of the allocators"
RECOMPUTED = "activations are recomputed instead of stored"


def under_a_limit() -> None:
    """As `ulimit -d` before the process: with room for everything, until `leave`, or again after it."""
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))


def leave(mib: float) -> None:
    """From here on this process can allocate so much more. None of it is left over from before."""
    from tandem.devices.memory import free_cache
    from tandem.devices.names import kind_of

    free_cache(kind_of("cpu")())
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + int(mib * MIB), resource.RLIM_INFINITY))


def data_bytes() -> int:
    """What counts against the limit."""
    return int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024


def leave_in_gpu(mib: float) -> None:
    """As `leave`, of the card's memory."""
    import torch

    from tandem.devices.memory import free_cache
    from tandem.devices.names import kind_of

    free_cache(kind_of("cuda")())
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min((torch.cuda.memory_reserved() + mib * MIB) / total, 1.0))


def allocated_in_gpu() -> int:
    """Bytes of tensors. torch counts the workspaces of cuBLAS too, 32 MiB for each stream and thread on a Hopper."""
    import torch

    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()

"""Which errors mean that memory ran out, how to free what is cached, and how much the process keeps."""

import ctypes
import errno
import gc
import resource

import torch

from tandem.devices.device import Device

ONEDNN = "could not create a primitive"  # the whole message; for an unsupported primitive, oneDNN's message is longer
# Messages of the CPU allocator, C++, mmap, the CUDA driver and its libraries. torch's own error is a class.
MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "unable to mmap",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "_ALLOC_FAILED",  # cuBLAS, cuDNN, cuFFT, cuSOLVER
    "ALLOCATION_FAILED",  # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_{HOST,DEVICE}_ALLOCATION_FAILED
    "when calling `cublasCreate",  # if the GPU is full, cuBLAS says that it is not initialized
    "Cuda failure 2 'out of memory'",  # nccl
    "Triton Error [CUDA]: out of memory",  # of train.step compile
    "CUDA ran out of memory outside PyTorch's allocator",  # cuDNN's attention
)
# Messages that mean either no memory or a broken installation: cuDNN's handle, which the first forward and the first
# backward pass make, and cuSOLVER's; no cuDNN algorithm for a convolution could run.
UNCLEAR = (
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "when calling `cusolverDnCreate",
    "unable to find an engine to execute this computation",
)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 32 * 2**20  # the largest value that glibc accepts
KEPT_BYTES_UNDER_A_LIMIT = 2**16
NEARLY_FULL_BYTES = 256 * 2**20  # free memory of a GPU that cuDNN may need for its kernels


def is_out_of_memory(error: Exception) -> bool:
    """torch's CUDA error has its own class; this function recognizes the others by their message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error)
    if not isinstance(error, RuntimeError):
        return False
    if message.strip() == ONEDNN or any(word in message for word in MESSAGES):
        return True
    return any(word in message for word in UNCLEAR) and lacked_gpu_memory()


def lacked_gpu_memory() -> bool:
    """Whether torch's allocator has run out of GPU memory since `Device.reset_peaks`, or little GPU memory is free."""
    if not torch.cuda.is_initialized():
        return False
    return torch.cuda.memory_stats().get("num_ooms", 0) > 0 or torch.cuda.mem_get_info()[0] < NEARLY_FULL_BYTES


def shorten(error: Exception) -> str:
    """The first line of the message: torch explains CUDA's errors in further ones."""
    return next(
        (" ".join(line.split())[:160] for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


def free_cache(device: Device) -> None:
    """Return unused memory to the device and to the system."""
    gc.collect()
    device.free_cache()
    ctypes.CDLL(None).malloc_trim(0)  # glibc's


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of a step's tensors in the next step, up to KEPT_BYTES per tensor.

    By default glibc returns memory to the system after each step, and the next step waits while the kernel clears the
    same pages again: 6,000 page faults and a quarter of the time of a step of a small GRU. If the memory of this
    process is limited (ulimit -d, -v), glibc keeps almost nothing, because memory freed in one size may be missing in
    another. mallopt(3) documents the two values.
    """
    mallopt = ctypes.CDLL(None).mallopt
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    is_limited = any(limit != resource.RLIM_INFINITY for limit in limits)
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES_UNDER_A_LIMIT if is_limited else KEPT_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_UNDER_A_LIMIT if is_limited else 2**31 - 1)

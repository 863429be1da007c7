"""Which errors mean that memory ran out, and how to free what is cached."""

import ctypes
import errno
import gc

import torch

ONEDNN = "could not create a primitive"  # the whole message; for an unsupported primitive, oneDNN's message is longer
# Messages of the CPU allocator, C++, mmap, the CUDA driver and its libraries. torch's own error is a class.
MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "unable to mmap",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",  # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_{HOST,DEVICE}_ALLOCATION_FAILED
    "when calling `cublasCreate",  # if the GPU is full, cuBLAS says that it is not initialized
    "Cuda failure 2 'out of memory'",  # nccl
)
# torch's message if no cuDNN algorithm for a convolution could run: no memory, or a broken installation.
NO_ENGINE = "unable to find an engine to execute this computation"
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
    if NO_ENGINE in message:
        return lacked_gpu_memory()
    return message.strip() == ONEDNN or any(word in message for word in MESSAGES)


def lacked_gpu_memory() -> bool:
    """Whether torch's allocator has run out of GPU memory in this process, or little GPU memory is free."""
    if not torch.cuda.is_initialized():
        return False
    return torch.cuda.memory_stats().get("num_ooms", 0) > 0 or torch.cuda.mem_get_info()[0] < NEARLY_FULL_BYTES


def shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def free_cache() -> None:
    """Return unused memory to the GPU and to the system."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)  # glibc's

"""What a training or an evaluation does when memory runs out. It tries these fallbacks, in this order:

1. Free the memory that Python and the allocators cache.
2. Drop the CUDA graph. Its memory pool is separate from that of eager work, such as validation.
3. Read the data from its packed file instead of holding it on the device. The batches and all results stay the same.
4. Use smaller micro-batches (gradient accumulation), down to single sequences. A step still uses the same batch; its
   result is equal within rounding.
5. Recompute activations instead of storing them, if the model supports it (Chen et al. 2016, arXiv:1604.06174).
6. Raise `OutOfMemory`, which lists what the user can do, in the recommended order.

A fallback stays active for the rest of the training. It is printed, saved in the checkpoint and tagged in MLflow. The
weights change only at the end of a step, so a step that ran out of memory can be repeated.
"""

import copy
import ctypes
import errno
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from tandem.training.device import emulates_bf16

Result = TypeVar("Result")
CLOSE_OTHERS = "close other programs that use the memory (`make doctor` lists commands) and run the same command again"
SMALLER = "lower train.model.hidden_size or the length of the sequences"
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


class Data(Protocol):
    """Data that the fallbacks move: a Split (batches.py)."""

    data_location: str

    @property
    def num_bytes_in_file(self) -> int: ...
    def make_resident(self) -> None: ...
    def release_to_host(self) -> None: ...


class OutOfMemory(ValueError, MemoryError):
    """No fallback is left. The message says what failed, which fallbacks were taken, and what the user can do."""

    def __init__(self, failed: str, fallbacks: Sequence[str], advice: Sequence[str]) -> None:
        self.fallbacks = list(fallbacks)
        tried = f"after these fallbacks: {', '.join(fallbacks)}" if fallbacks else "and no fallback is possible here"
        super().__init__(f"out of memory ({failed}) {tried}; next, {', then '.join(advice)}")


def advice(device: torch.device, precision: str = "") -> list[str]:
    """What the user can do, cheapest first. `precision`: the training's, if there is one."""
    left = [CLOSE_OTHERS]
    if precision in ("fp32", "tf32") and not emulates_bf16(device):
        left.append("set train.precision to bf16")
    left.append(SMALLER)
    if device.type != "cpu":
        left.append("set devices to [cpu]")
    return left


class OomPolicy:
    """Takes the fallbacks of one training or evaluation and records them."""

    def __init__(
        self,
        model: nn.Module | None = None,
        splits: Sequence[Data] = (),
        advice: Sequence[str] = (CLOSE_OTHERS, SMALLER),
    ) -> None:
        self.model, self.splits, self.advice = model, splits, advice
        self.fallbacks: list[str] = []  # the fallbacks taken, as sentences
        self.num_eval_parts = 1  # number of parts in which a batch is evaluated, without gradients
        self.has_freed = self.recomputes = False
        self.may_fall_back = True  # False: errors are raised, because a trial must not change the training
        # Of all splits: `device`, or `host` (their files).
        self.data_location = "device" if any(split.data_location == "device" for split in splits) else "host"
        self.free_graphs: Callable[[], str] = lambda: ""  # `Step` replaces it
        self.on_fallback: Callable[[list[str]], object] = lambda fallbacks: None  # called after each fallback

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        """Call `work` and return its result. If memory runs out, take one fallback and call `work` again.

        The common fallbacks come first, then `fallbacks`. A fallback returns a sentence about what it did, or "" if it
        has nothing left to do. Raises OutOfMemory after the last one.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if isinstance(error, OutOfMemory) or not self.may_fall_back or not is_out_of_memory(error):
                    raise
                failed = shorten(error)
            # This runs outside the `except`, because the error references the tensors of the failed pass.
            free_cache()
            for fallback in (self.retry_after_freeing, self.free_graphs, self.release_to_host, *fallbacks):
                if done := fallback():
                    self.add_fallback(done)
                    break
            else:
                raise OutOfMemory(failed, self.fallbacks, self.advice)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """In the body, raise an out-of-memory error instead of taking a fallback."""
        before, self.may_fall_back = self.may_fall_back, False
        try:
            yield
        finally:
            self.may_fall_back = before

    def add_fallback(self, done: str) -> None:
        """Record and print a fallback. The training notices it by the length of `fallbacks`."""
        self.fallbacks.append(done)
        print(f"out of memory: {done}", flush=True)
        self.on_fallback(self.fallbacks)

    def retry_after_freeing(self) -> str:
        """Count the retry after `free_cache` as the first fallback."""
        if self.has_freed:
            return ""
        self.has_freed = True
        return "freed the cached memory of the allocators"

    def release_to_host(self) -> str:
        size = sum(split.num_bytes_in_file for split in self.splits)
        if self.data_location == "host" or not size:
            return ""
        self.data_location = "host"
        for split in self.splits:
            split.release_to_host()
        return f"the data ({size / 2**20:,.1f} MiB) is read from its file batch by batch instead of held in memory"

    def use_smaller_eval_batches(self, batch_size: int) -> str:
        if self.num_eval_parts >= batch_size:
            return ""
        self.num_eval_parts = min(2 * self.num_eval_parts, batch_size)
        return f"a batch of {batch_size} is evaluated in {self.num_eval_parts} parts"

    def concatenate(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else self.run_with_fallbacks(lambda: torch.cat(parts))

    def recompute_activations(self) -> str:
        if getattr(self.model, "checkpoint_activations", True):  # not supported by the model, or already on
            return ""
        self.recomputes = True
        setattr(self.model, "checkpoint_activations", True)  # noqa: B010  (a Module's attributes are Tensors to mypy)
        return "activations are recomputed instead of stored"

    def make_resident(self) -> None:
        """Copy the splits to the device. If they do not fit, they stay in their files."""
        self.data_location = "device"

        def copy_all() -> None:
            if self.data_location == "device":
                for split in self.splits:
                    split.make_resident()

        self.run_with_fallbacks(copy_all)

    def state(self) -> dict[str, Any]:
        kept = ("fallbacks", "num_eval_parts", "has_freed", "data_location", "recomputes")
        return copy.deepcopy({name: getattr(self, name) for name in kept})

    def restore(self, state: dict[str, Any]) -> None:
        """Take the fallbacks in `state`, in addition to those already taken."""
        self.fallbacks = [*state["fallbacks"], *(done for done in self.fallbacks if done not in state["fallbacks"])]
        self.num_eval_parts = max(self.num_eval_parts, state["num_eval_parts"])
        self.has_freed = self.has_freed or state["has_freed"]
        if state["data_location"] == "host":
            self.release_to_host()
        if state["recomputes"]:
            self.recompute_activations()


@contextmanager
def translate_oom(oom: OomPolicy) -> Iterator[None]:
    """Convert out-of-memory errors of the body, which has no fallback, to OutOfMemory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(shorten(error), oom.fallbacks, oom.advice) from None


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

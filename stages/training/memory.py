"""What a training or an evaluation does when memory runs out: one fallback after the other, the mildest first.

1. free what Python and the allocators keep
2. drop the CUDA graph, whose activations have memory of their own beside that of all eager work (validation, say)
3. read the data from its packed file instead of holding it on the device: the same batches in the same order, the same
   bits
4. pass a batch in twice as many parts, down to single sequences: a step still uses all of it, equal within rounding
5. recompute activations instead of keeping them, where the model can (Chen et al. 2016, arXiv:1604.06174)
6. raise `OutOfMemory`, which says what the user can do, in the order in which to try it

Where oneDNN runs out of memory, the CPU computes without it from then on: equal within rounding. Without this fallback
trainings are lost that finish with it: once oneDNN fails to make a kernel, it fails in that thread for every later one,
whatever memory is free.

An action once taken stays: it is printed, saved with the checkpoint (`state`), and tagged in MLflow. Weights change
only after a whole batch has passed, so that a batch can always be tried again.
"""

import ctypes
import errno
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stages.training.batches import Batch, Split

Result = TypeVar("Result")
CLOSE_OTHERS = "close what else uses the memory (`make doctor` says how to find it) and run the same command again"
SMALLER = "lower train.model.hidden_size or the length of the sequences"
ONEDNN = "could not create a primitive"
# Messages of the CPU's allocator, C++, mmap, the CUDA driver and its libraries; torch has a class of its own.
WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "unable to mmap",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",  # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_{HOST,DEVICE}_ALLOCATION_FAILED
    "when calling `cublasCreate",  # on a full card cuBLAS says that it is not initialized
    "Cuda failure 2 'out of memory'",  # nccl
)
# What torch says where none of cuDNN's algorithms for a convolution could run: no memory, or a broken installation.
NO_ENGINE = "unable to find an engine to execute this computation"
NEARLY_FULL_BYTES = 256 * 2**20  # of a GPU: what cuDNN may need for its kernels


class OutOfMemory(ValueError, MemoryError):
    """No fallback is left. One sentence: what failed, what was done about it, what the user can do."""

    def __init__(self, failed: str, actions: Sequence[str], advice: Sequence[str]) -> None:
        self.actions = list(actions)
        done = (
            f"after this was done about it: {', '.join(actions)}" if actions else "where nothing can be done about it"
        )
        super().__init__(f"out of memory ({failed}) {done}; what is left to you: {', then '.join(advice)}")


def advice(device: torch.device, precision: str = "") -> list[str]:
    """What the user can do, cheapest first. `precision`: that of a training."""
    left = [CLOSE_OTHERS]
    if precision in ("fp32", "tf32"):
        left.append("set train.precision to bf16")
    left.append(SMALLER)
    if device.type != "cpu":
        left.append("set devices to [cpu]")
    return left


class OomPolicy:
    """The fallbacks of one training or evaluation: which were taken, and how to take the next one."""

    def __init__(
        self,
        model: nn.Module | None = None,
        splits: Sequence[Split] = (),
        advice: Sequence[str] = (CLOSE_OTHERS, SMALLER),
    ) -> None:
        self.model, self.splits, self.advice = model, splits, advice
        self.actions: list[str] = []  # the fallbacks taken, as sentences
        self.num_passes = 1  # parts that a batch passes in where no gradients are needed
        self.has_freed = self.recomputes = self.without_onednn = False
        self.streams = not any(split.is_resident for split in splits)
        self.drop_graph: Callable[[], str] = lambda: ""  # a step that may be captured sets it

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        """Returns what `work` returns. Repeats it after each fallback: first those of every work, then `fallbacks`.

        A fallback returns what it did, or "" where it can do no more. Raises OutOfMemory after the last one.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
                    raise
                failed = shorten(error)
            # Outside the `except`: the error holds the tensors of the pass that failed.
            free_cache()
            first = [self.leave_onednn] if failed == ONEDNN else []
            for fallback in (*first, self.free, self.drop_graph, self.release_to_host, *fallbacks):
                if done := fallback():
                    self.say(done)
                    break
            else:
                raise OutOfMemory(failed, self.actions, self.advice)

    @property
    def residency(self) -> str:
        """Where the splits are held now: `device`, or `host` (in their files)."""
        return "host" if self.streams else "device"

    def say(self, done: str) -> None:
        self.actions.append(done)
        print(f"out of memory: {done}", flush=True)

    def free(self) -> str:
        if self.has_freed:
            return ""
        self.has_freed = True
        return "freed what the allocators keep"

    def leave_onednn(self) -> str:
        if self.without_onednn:
            return ""
        self.without_onednn = True
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        return "the CPU computes without oneDNN, whose memory ran out"

    def release_to_host(self) -> str:
        if self.streams:
            return ""
        self.streams = True
        for split in self.splits:
            split.release_to_host()
        size = sum(tensor.nbytes for split in self.splits if split.path for tensor in split.tensors.values())
        return f"the data ({size / 2**20:,.1f} MiB) is read from its file batch by batch instead of held in memory"

    def take_smaller_passes(self, batch_size: int) -> str:
        if self.num_passes >= batch_size:
            return ""
        self.num_passes = min(2 * self.num_passes, batch_size)
        return f"a batch of {batch_size} is evaluated in {self.num_passes} parts"

    def by_parts(self, batch: Batch, compute: Callable[[Batch], Result]) -> list[Result]:
        """What `compute` returns for each part of the batch, which passes in `num_passes` parts."""
        return self.run_with_fallbacks(
            lambda: [compute(part) for part in batch.parts(self.num_passes)],
            lambda: self.take_smaller_passes(len(batch)),
        )

    def joined(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else self.run_with_fallbacks(lambda: torch.cat(parts))

    def recompute(self) -> str:
        if getattr(self.model, "checkpoint_activations", True):  # a model that has no such thing, or does it already
            return ""
        self.recomputes = True
        setattr(self.model, "checkpoint_activations", True)  # noqa: B010  (a Module's attributes are Tensors to mypy)
        return "activations are computed again instead of kept"

    def make_resident(self) -> None:
        """Copy the splits to the device; they stay in their files where they do not fit."""
        self.streams = False

        def copy() -> None:
            for split in () if self.streams else self.splits:
                split.make_resident()

        self.run_with_fallbacks(copy)

    def batches(
        self, split: Split, order: Tensor, batch_size: int, *changes: Callable[[Batch], Batch]
    ) -> Iterator[Batch]:
        """The split's batches, with `changes` applied. Where one does not fit, starts again from that batch on."""
        batches: Iterator[Batch] | None = None
        done = 0

        def following() -> Batch:
            nonlocal batches
            if batches is None:
                batches = split.batches(order[done:], batch_size)
            try:
                batch = next(batches)
                for change in changes:
                    batch = change(batch)
            except Exception:
                batches = None  # a generator that raised is over
                raise
            return batch

        while done < len(order):
            batch = self.run_with_fallbacks(following)
            done += len(batch)
            yield batch

    def state(self) -> dict[str, Any]:
        kept = ("num_passes", "has_freed", "without_onednn", "streams", "recomputes")
        return {"actions": list(self.actions), **{name: getattr(self, name) for name in kept}}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the actions that `state` holds, in addition to those taken here already."""
        self.actions = [*state["actions"], *(done for done in self.actions if done not in state["actions"])]
        self.num_passes = max(self.num_passes, state["num_passes"])
        self.has_freed = self.has_freed or state["has_freed"]
        if state["without_onednn"]:
            self.leave_onednn()
        if state["streams"]:
            self.release_to_host()
        if state["recomputes"]:
            self.recompute()


@contextmanager
def translate_oom(oom: OomPolicy) -> Iterator[None]:
    """Translates out-of-memory errors of the body, where no fallback helps, to OutOfMemory with the same message."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(shorten(error), oom.actions, oom.advice) from None


def is_out_of_memory(error: Exception) -> bool:
    """torch's error for CUDA has a class of its own; the others are recognized by their message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error)
    if not isinstance(error, RuntimeError):
        return False
    if NO_ENGINE in message:
        return lacked_gpu_memory()
    return message.strip() == ONEDNN or any(word in message for word in WORDS)


def lacked_gpu_memory() -> bool:
    """Whether torch's allocator has refused memory of the GPU in this process, or little of it is free."""
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
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)

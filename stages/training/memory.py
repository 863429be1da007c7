"""What is done when memory runs out: one thing after the other, gentlest first, each of them said, and no result is lost by it.

1. what Python and the allocators keep is given back
2. the data is read from its packed file instead of held on the device: the same batches in the same order, the same bits
3. a batch goes through in twice as many parts, down to single sequences: a step is still taken on all of it, the same within rounding
4. activations are computed again instead of kept, where the model can (Chen et al. 2016, arXiv:1604.06174)
5. a CUDA graph, whose memory is its own, is let go
6. `OutOfMemory`, with what the user can do, in the order in which to try it

oneDNN, where memory ran out in it, is done without from then on: the same within rounding.

What was done stays done: it is saved with the training (`state`), said in its answers and tagged in MLflow. Weights change only once a
whole batch has gone through, so that a batch can always be tried again.
"""

import ctypes
import errno
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stages.params.schema import Train
from stages.training.batches import Batch, Split

Result = TypeVar("Result")
CLOSE_OTHERS = "close what else uses the memory (`make doctor` says how to find it) and run the same command again"
SMALLER = "lower train.model.hidden_size or the length of the sequences"
ONEDNN = "could not create a primitive"
# The CPU's allocator, C++, a file that cannot be mapped; the driver and CUDA's libraries, beside torch's own class of error.
WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "unable to mmap",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class OutOfMemory(ValueError, MemoryError):
    """Nothing is left to try. One sentence: what failed, what was done about it, what the user can do."""

    def __init__(self, failed: str, actions: Sequence[str], advice: Sequence[str]) -> None:
        self.actions = list(actions)
        done = (
            f"after this was done about it: {', '.join(actions)}" if actions else "where nothing can be done about it"
        )
        super().__init__(f"out of memory ({failed}) {done}; what is left to you: {', then '.join(advice)}")


def advice(device: torch.device, precision: str = "") -> list[str]:
    """What is left to the user, cheapest first. `precision`: of a training."""
    left = [CLOSE_OTHERS]
    if precision in ("fp32", "tf32"):
        left.append("set train.precision to bf16")
    left.append(SMALLER)
    if device.type != "cpu":
        left.append("set train.on_out_of_memory to cpu, which lets device auto finish on the CPU")
    return left


def may_finish_on_cpu(device: str, identity: dict[str, Any], settings: Train) -> bool:
    """Only `auto` chooses: who asks for a GPU gets it or an error."""
    return device == "auto" and identity["kind"] != "cpu" and settings.on_out_of_memory == "cpu"


class OomPolicy:
    """The ladder of one training or evaluation: how far down it is, and the way to take the next rung."""

    def __init__(
        self,
        model: nn.Module | None = None,
        splits: Sequence[Split] = (),
        advice: Sequence[str] = (CLOSE_OTHERS, SMALLER),
    ) -> None:
        self.model, self.splits, self.advice = model, splits, advice
        self.actions: list[str] = []  # what was done, in words
        self.num_passes = 1  # that a batch goes through in where no gradients are wanted
        self.has_freed = self.recomputes = self.without_onednn = False
        self.streams = not any(split.is_resident for split in splits)
        self.moved = False  # whether the CPU took over from another device

    def run_with_fallbacks(self, work: Callable[[], Result], *fallbacks: Callable[[], str]) -> Result:
        """What `work` gives, tried again after each rung: those that help everywhere, then `rungs`.

        A rung returns what it did, or nothing where there is nothing left of it. Raises OutOfMemory after the last.
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
            for fallback in (
                *([self.leave_onednn] if failed == ONEDNN else []),
                self.free,
                self.release_to_host,
                *fallbacks,
            ):
                if done := fallback():
                    self.say(done)
                    break
            else:
                raise OutOfMemory(failed, self.actions, self.advice)

    def say(self, done: str) -> None:
        self.actions.append(done)
        print(f"out of memory: {done}", flush=True)

    def free(self) -> str:
        if self.has_freed:
            return ""
        self.has_freed = True
        return "freed what the allocators keep"

    def leave_onednn(self) -> str:
        """Where memory ran out while it made a kernel, it makes no other one any more: the error stays with the thread."""
        if self.without_onednn:
            return ""
        self.without_onednn = True
        torch._C._set_mkldnn_enabled(False)  # `torch.backends.mkldnn.flags` would set its TF32 switch as well
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
        """The split's batches, each after `changes`. Where one does not fit, the rest is begun anew from there."""
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
        kept = ("num_passes", "has_freed", "without_onednn", "streams", "recomputes", "moved")
        return {"taken": list(self.actions), **{name: getattr(self, name) for name in kept}}

    def restore(self, state: dict[str, Any]) -> None:
        """Down to where `state` was. What was done here meanwhile stays done too."""
        self.actions = [*state["taken"], *(done for done in self.actions if done not in state["taken"])]
        self.num_passes = max(self.num_passes, state["num_passes"])
        self.has_freed, self.moved = self.has_freed or state["has_freed"], self.moved or state["moved"]
        if state["without_onednn"]:
            self.leave_onednn()
        if state["streams"]:
            self.release_to_host()
        if state["recomputes"]:
            self.recompute()


@contextmanager
def translate_oom(oom: OomPolicy) -> Iterator[None]:
    """Memory that runs out in the body, where nothing can be done about it, is told in the same words."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(shorten(error), oom.actions, oom.advice) from None


def is_out_of_memory(error: Exception) -> bool:
    """CUDA's error has a class of its own; the others are told by their words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error)
    return isinstance(error, RuntimeError) and (message.strip() == ONEDNN or any(word in message for word in WORDS))


def shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def free_cache() -> None:
    """Give back what nobody uses any more: to the GPU, and to the system."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)

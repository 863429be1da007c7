"""`Executor` holds the execution of a training or an evaluation, and replaces it when memory runs out. It tries these
fallbacks, in this order:

1. Free the memory that Python and the allocators cache.
2. Drop the CUDA graph. Its memory pool is separate from that of eager work, such as validation.
3. Read the data from its packed file instead of holding it on the device. The batches and all results stay the same.
4. Use smaller micro-batches (gradient accumulation), down to single sequences. A step still uses the same batch; its
   result is equal within rounding, but for dropout, which each part draws. In an evaluation: smaller parts.
5. Recompute activations instead of storing them, if the model supports it (Chen et al. 2016, arXiv:1604.06174).
6. Raise `OutOfMemory`, which lists what the user can do, in the recommended order.

`cheaper` (execution.py) has the order of 2 to 5; `Executor` puts what it returns into force. A fallback stays active
for the rest of the training. It is printed, saved in the checkpoint and tagged in MLflow. The weights change only at
the end of a step, so a step that ran out of memory can be repeated.

Where memory can run out, and what handles it:

- a batch, a step, an evaluation: `run_with_fallbacks`
- a capture, which cannot be repeated: `give_up_graph`
- the rest, such as opening a training: `translate_oom` raises `OutOfMemory`, without a fallback
- one of several workers: it ends, and the launcher starts all of them again with smaller micro-batches
  (`stop_on_out_of_memory` in opening.py)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tandem.devices.device import Device
from tandem.devices.graphs import CaptureFailed
from tandem.devices.memory import free_cache, is_out_of_memory, shorten
from tandem.training.batches import Batch, Split
from tandem.training.execution import EAGERLY, ON_CPU, Execution, cheaper, merged, without_graph

Result = TypeVar("Result")
CLOSE_OTHERS = "close other programs that use the memory (`tandem doctor` says how) and run the same command again"
FREED = "freed the cached memory of the allocators"
SMALLER = "lower train.model.hidden_size or the length of the sequences"


class OutOfMemory(ValueError, MemoryError):
    """No fallback is left. The message says what failed, which fallbacks were taken, and what the user can do."""

    def __init__(self, failed: str, fallbacks: Sequence[str], advice: Sequence[str]) -> None:
        self.failed = failed
        tried = f"after these fallbacks: {', '.join(fallbacks)}" if fallbacks else "and no fallback is possible here"
        super().__init__(f"out of memory ({failed}) {tried}; next, {', then '.join(advice)}")


def advice_for(device: Device, precision: str = "") -> list[str]:
    """What the user can do, cheapest first. `precision`: the training's, if there is one."""
    left = [CLOSE_OTHERS]
    if precision in ("fp32", "tf32") and "bf16" in device.precisions():
        left.append("set train.precision to bf16")
    left.append(SMALLER)
    if device.is_accelerator:
        left.append("set devices to [cpu]")
    return left


class Executor:
    """The present execution of a training or an evaluation. If memory runs out, it puts a cheaper one into force."""

    def __init__(
        self,
        execution: Execution = ON_CPU,
        model: nn.Module | None = None,
        splits: Sequence[Split] = (),
        advice: Sequence[str] = (CLOSE_OTHERS, SMALLER),
        may_fall_back: bool = True,
    ) -> None:
        self.execution = execution
        self.model, self.splits, self.advice = model, splits, advice
        self.may_fall_back = may_fall_back  # False: errors are raised, because a trial must not change the training
        self.fallbacks: list[str] = []  # the fallbacks taken, as sentences
        self.graphs = execution.device.graphs() if execution.step == "graph" else None
        self.on_fallback: Callable[[list[str]], object] = lambda fallbacks: None  # called after each fallback

    def run_with_fallbacks(self, compute: Callable[[], Result], work: str = "data", batch_size: int = 0) -> Result:
        """Call `compute` and return its result. If memory runs out, take one fallback and call it again.

        `work`, `batch_size`: as in `cheaper`. Raises OutOfMemory after the last fallback.
        """
        while True:
            try:
                return compute()
            except Exception as error:
                if isinstance(error, OutOfMemory) or not self.may_fall_back or not is_out_of_memory(error):
                    raise
                failed = shorten(error)
            # This runs outside the `except`, because the error references the tensors of the failed pass.
            free_cache(self.execution.device)
            if FREED not in self.fallbacks:
                self.add_fallback(FREED)
                continue
            fallback = cheaper(
                self.execution,
                work,
                batch_size,
                has_graph=self.has_graph,
                data_bytes=sum(split.num_bytes_in_file for split in self.splits),
                can_recompute=hasattr(self.model, "checkpoint_activations"),
            )
            if not fallback:
                raise OutOfMemory(failed, self.fallbacks, self.advice)
            self.fall_back(*fallback)

    def batches(
        self, split: Split, order: Tensor, batch_size: int, change: Callable[[Batch], Batch] | None = None
    ) -> Iterator[Batch]:
        """Yield the batches of `order` ((N,) int64 on the CPU) of a split, with `change` applied. One that does not fit
        into memory is made again after a fallback.
        """
        batches: Iterator[Batch] | None = None
        num_done, data_location = 0, ""

        def make_next() -> Batch:
            nonlocal batches, data_location
            if batches is None or data_location != split.data_location:  # a step may have changed it
                batches, data_location = split.batches(order[num_done:], batch_size), split.data_location
            try:
                batch = next(batches)
                return change(batch) if change else batch
            except Exception:
                batches = None  # a generator that raised cannot continue
                raise

        while num_done < len(order):
            batch = self.run_with_fallbacks(make_next)
            num_done += len(batch)
            yield batch

    @property
    def has_graph(self) -> bool:
        """Whether a graph is captured, which holds memory of its own."""
        return self.graphs is not None and bool(self.graphs.captured)

    def fall_back(self, execution: Execution, sentence: str) -> None:
        self.use(execution)
        self.add_fallback(sentence)

    def use(self, execution: Execution) -> None:
        """Execute the next steps like this. Model and graphs follow, and data that must leave the device;
        `make_resident` copies data to it.
        """
        before, self.execution = self.execution, execution
        if execution.data_location == "host":
            for split in self.splits:
                split.release_to_host()
        if execution.recomputes and hasattr(self.model, "checkpoint_activations"):
            setattr(self.model, "checkpoint_activations", True)  # noqa: B010  (a Module's attributes are Tensors to mypy)
        if execution != before:
            self.drop_graphs()

    def drop_graphs(self) -> None:
        """Free the captured graphs, which fix how a step is executed and where its tensors are. Later steps capture new
        ones if their execution says so.
        """
        if self.graphs is not None:
            self.execution.device.synchronize()  # replays may run
            self.graphs.captured.clear()  # a method of `graphs` may still be running
            if self.model is not None:
                self.model.zero_grad()  # the gradients are in the graph's memory
        self.graphs = self.execution.device.graphs() if self.execution.step == "graph" else None

    def give_up_graph(self, error: RuntimeError) -> None:
        """Take eager steps after a failed capture, or if the graph left too little memory.

        Raises `error` if it has another cause, or if memory ran out and `may_fall_back` is false.
        """
        is_memory = is_out_of_memory(error)
        if not isinstance(error, CaptureFailed) and not (is_memory and self.may_fall_back):
            raise error
        eager, sentence = without_graph(self.execution, "" if is_memory and self.has_graph else shorten(error))
        if is_memory:
            self.fall_back(eager, sentence)
            free_cache(self.execution.device)
        else:
            self.use(eager)
            if self.may_fall_back:
                print(f"{EAGERLY}: {error}", flush=True)

    def add_fallback(self, done: str) -> None:
        """Record and print a fallback."""
        self.fallbacks.append(done)
        print(f"out of memory: {done}", flush=True)
        self.on_fallback(self.fallbacks)

    def concatenate(self, parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else self.run_with_fallbacks(lambda: torch.cat(parts))

    def make_resident(self) -> None:
        """Copy the splits to the device. If they do not fit, they stay in their files."""
        self.use(replace(self.execution, data_location="device"))

        def copy_all() -> None:
            if self.execution.data_location == "device":
                for split in self.splits:
                    split.make_resident()

        self.run_with_fallbacks(copy_all)

    def state(self) -> dict[str, Any]:
        execution = vars(self.execution) | {"device": self.execution.device.name()}
        return {"execution": execution, "fallbacks": [*self.fallbacks]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the fallbacks in `state`, in addition to those already taken."""
        self.fallbacks = [*state["fallbacks"], *(done for done in self.fallbacks if done not in state["fallbacks"])]
        self.use(merged(Execution(**state["execution"] | {"device": self.execution.device}), self.execution))


@contextmanager
def translate_oom(executor: Executor) -> Iterator[None]:
    """Convert out-of-memory errors of the body, which has no fallback, to OutOfMemory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(shorten(error), executor.fallbacks, executor.advice) from None

"""Rates are known work over measured seconds, clocks are read at the right moments, and unknown readings have a reason.

Where a clock decides, it is a virtual one that the measured work itself moves on: the expected numbers are exact, on
any machine.
"""

import time
from collections.abc import Callable

import psutil
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from stages.diagnosis.counts import Traffic
from stages.machine import rates
from stages.machine.nvml import Gpu
from stages.machine.rates import best_seconds, has_cores, host_to_device_rate, matrix_rate, memory_rate
from stages.machine.regions import measure, peak_rss_mib, seconds_of, seconds_per_item
from stages.machine.turns import in_turns

CPU = torch.device("cpu")


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def work(self, *seconds: float) -> Callable[[], None]:
        """Work that takes so many seconds in its first, second, ... call, and as many as the last one from then on."""
        durations = iter(seconds)
        last = seconds[-1]

        def work() -> None:
            self.seconds += next(durations, last)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_matrix_rate_is_the_counted_flop_per_second(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    counted, dtypes = [], []

    def count(work: Callable[[], object], device: torch.device) -> float:
        product, mm = torch.mm, lambda *args, out: (dtypes.append(out.dtype), product(*args, out=out))
        with FlopCounterMode(display=False) as counter, pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "mm", mm)
            work()
        counted.append(counter.get_total_flops())
        return 0.5

    monkeypatch.setattr(rates, "best_seconds", count)
    monkeypatch.setitem(rates.MATRIX_SIZE, "cpu", 64)
    assert matrix_rate(CPU, dtype) == counted[0] / 0.5 == 2 * 64**3 / 0.5
    assert set(dtypes) == {dtype}


def test_the_memory_rate_is_the_bytes_read_and_written_per_second(monkeypatch: pytest.MonkeyPatch):
    counted = []

    def count(work: Callable[[], object], device: torch.device) -> float:
        with Traffic() as traffic:
            work()
        counted.append(traffic.num_bytes)
        return 0.5

    monkeypatch.setattr(rates, "best_seconds", count)
    assert memory_rate(CPU) == counted[0] / 0.5


def test_the_best_run_counts_and_the_first_never_does(clock: Clock):
    assert best_seconds(clock.work(0.001, 5.0, 3.0, 4.0), CPU) == pytest.approx(3.0)
    runs = []
    work = clock.work(0.004)
    assert best_seconds(lambda: runs.append(work()), CPU) == pytest.approx(0.004)
    assert len(runs) == pytest.approx(1 + rates.RATE_SECONDS / 0.004, abs=1), "short runs are repeated"


def test_seconds_are_a_mean_over_calls_and_items_without_the_first_call(clock: Clock):
    assert seconds_of(clock.work(9.0, 1.0, 2.0, 3.0), CPU, budget=5.5) == pytest.approx(2.0)
    work, sizes = clock.work(0.3), iter([9, 4, 4, 2])  # as an epoch's batches: the last one is smaller
    assert seconds_per_item(lambda: work() or next(sizes), CPU, budget=0.8) == pytest.approx(0.9 / 10)
    assert seconds_of(clock.work(9.0, 1.0), CPU, budget=0.0) == pytest.approx(1.0)


def test_measurements_take_turns_in_alternating_order(clock: Clock):
    calls = []

    def measurement(name: str) -> Callable[[], str]:
        return lambda: calls.append(name) or f"{name}{len(calls)}"

    found = in_turns({name: measurement(name) for name in "abc"}, rounds=3)
    assert "".join(calls) == "abccbaabc"
    assert found == {"a": ["a1", "a6", "a7"], "b": ["b2", "b5", "b8"], "c": ["c3", "c4", "c9"]}


@pytest.mark.parametrize(
    ("limits", "num_rounds"),
    [
        ({"rounds": 2}, 2),
        ({"rounds": 2, "seconds": 4.5}, 5),
        ({"rounds": 7, "seconds": 4.5}, 7),
        ({"rounds": 7, "longest_seconds": 2.5}, 3),
        ({"rounds": 7, "longest_seconds": 0.1}, 1),
        ({"rounds": 0}, 1),
    ],
)
def test_rounds_end_by_number_and_by_time(limits: dict[str, float], num_rounds: int, clock: Clock):
    assert len(in_turns({"a": clock.work(0.25), "b": clock.work(0.75)}, **limits)["a"]) == num_rounds


@pytest.mark.parametrize(("speedup", "expected"), [(lambda threads: threads, True), (lambda threads: 1, False)])
def test_threads_have_cores_where_a_product_gains_from_them(
    speedup: Callable[[int], int], expected: bool, monkeypatch: pytest.MonkeyPatch
):
    before, seconds = torch.get_num_threads(), 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 1 / speedup(torch.get_num_threads())
        return seconds

    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        assert has_cores(2) is expected
    torch.set_num_threads(before)


def test_a_region_has_its_seconds_its_cpu_time_and_reasons_for_the_rest(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    cpu = Clock()
    monkeypatch.setattr(time, "process_time", cpu)
    with measure(CPU) as found:
        clock.seconds += 4.0
        cpu.seconds += 3.0
    assert found.seconds == 4.0 and found.cpu_share == 0.75
    missing = {name for name, value in vars(found).items() if value is None}
    assert found.missing_reasons.keys() == missing
    assert {"peak_allocated_mib", "process_mib", "gpu_busy_share", "energy_joules"} <= missing
    assert all("no GPU" in reason for reason in found.missing_reasons.values())


def test_the_peak_of_resident_memory_is_at_least_what_is_resident_and_never_falls():
    before = peak_rss_mib()
    now = psutil.Process().memory_info().rss / 2**20
    assert 0.95 * now < peak_rss_mib() < psutil.virtual_memory().total / 2**20
    grown = torch.ones(int(before - now + 64) * 2**18)  # 64 MiB more than there ever was
    assert peak_rss_mib() > before + 32
    del grown
    assert peak_rss_mib() > before + 32


def test_a_gpu_that_nvml_does_not_know_has_no_memory_of_this_process():
    gpu = Gpu("GPU-00000000-0000-0000-0000-000000000000")
    found, reason = gpu.process_mib()
    assert found is None and reason.startswith("NVML: ")
    gpu.start()
    numbers, reasons = gpu.stop(2.0)
    assert not numbers and reasons.keys() == {*gpu.samples, "energy_joules"}


@pytest.mark.gpu
def test_cuda_takes_memory_of_its_own():
    device = torch.device("cuda", 0)
    torch.ones(1, device=device)
    found, reason = Gpu.of(device).process_mib()
    assert reason if found is None else found > torch.cuda.memory_reserved(device) / 2**20


@pytest.mark.gpu
def test_a_region_on_a_gpu_has_every_reading_or_its_reason():
    device = torch.device("cuda", 0)
    with measure(device) as found:
        kept = torch.ones(2**26, device=device)
    assert found.peak_allocated_mib >= kept.nbytes / 2**20 <= found.peak_reserved_mib
    assert found.missing_reasons.keys() == {name for name, value in vars(found).items() if value is None}
    assert "less than the driver averages over" in found.missing_reasons["gpu_busy_share"]


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [True, False])
def test_copies_to_the_gpu_are_measured_from_the_memory_asked_for(pinned: bool, monkeypatch: pytest.MonkeyPatch):
    sources, copy_ = [], torch.Tensor.copy_

    def watch(self: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        sources.append(source)
        return copy_(self, source, non_blocking=non_blocking)

    monkeypatch.setattr(rates, "best_seconds", lambda work, device: (work(), 0.5)[1])
    monkeypatch.setattr(torch.Tensor, "copy_", watch)
    rate = host_to_device_rate(torch.device("cuda", 0), pinned)
    [source] = [source for source in sources if source.nbytes == rates.SENT_BYTES]
    assert source.is_pinned() is pinned and rate == source.nbytes / 0.5

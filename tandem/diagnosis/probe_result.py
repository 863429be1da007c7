"""The result of a probe: the shares of a step's time, its bottleneck and the advice, as numbers and sentences.

- data, copy: waiting for a batch. Gathering (data) and copying to the GPU (copy) overlap, so the slower one gets the
  wait.
- compute: on the CPU, the additional time of a step over a step on two sequences; on a GPU, the time in which a
  kernel runs. If that is unknown, the step's, if the host enqueues a step in less than half of it.
- launch: the rest. A step on a GPU is launch-bound if the host takes longer to enqueue it than the GPU takes to compute
  it.

Kernels that run all the time may still leave most of a GPU idle: those of a recurrent layer wait for each other, step
by step. Such a step is latency-bound: it computes at a small part of the GPU's rate, and a larger batch is faster.
"""

from dataclasses import asdict, dataclass

MIN_GAIN = 1.1  # smaller gains are not reported
BOTTLENECK_SHARE = 0.5  # minimum share of a step
IDLE_RATE = 0.1  # a step on a GPU that computes at a smaller share of its rate may be latency-bound
SMALL_SHARE = 0.1  # of the device's memory; the message explains smaller needs
NO_GPU = "the device is the CPU, which launches no kernels"
GPU_FIELDS = ("host_seconds", "device_seconds", "num_kernels", "memory_context_mib")


@dataclass(frozen=True)
class ProbeResult:
    """Seconds are per step of `batch_size` sequences. None: not measured; `missing_reasons` says why."""

    batch_size: int
    data_seconds: float  # for the batches alone
    copy_seconds: float  # for the copy of a batch to the device alone; 0 if there is none
    wait_seconds: float  # waiting for a batch in the loop
    step_seconds: float
    overhead_seconds: float  # for a step on two sequences
    gather_seconds: float | None  # for streamed data, on the host
    host_seconds: float | None  # until the host has enqueued the step
    device_seconds: float | None  # in which a kernel ran
    num_kernels: int | None
    flop_per_second: float  # of the step
    peak_flop_per_second: float  # in the precision of most of the step's arithmetic
    memory_mib: dict[str, float]  # purpose -> amount
    device_mib: float  # the device's whole memory
    gains: dict[str, float]  # alternative -> times as many sequences per second
    missing_reasons: dict[str, str]

    @property
    def total_seconds(self) -> float:
        return self.wait_seconds + self.step_seconds

    @property
    def bottleneck(self) -> str:
        """The bottleneck: data, copy, launch, latency or compute."""
        shares = self.shares()
        waiting = max(("data", "copy"), key=lambda name: shares[name])
        if shares[waiting] >= BOTTLENECK_SHARE:
            return waiting
        if self.host_seconds is not None and self.device_seconds is not None:
            if self.host_seconds > self.device_seconds:
                return "launch"
            grows = any(change.startswith("batch ") and gain >= MIN_GAIN for change, gain in self.gains.items())
            return "latency" if grows and self.flop_of_peak < IDLE_RATE else "compute"
        return max(("launch", "compute"), key=lambda name: shares[name])

    def shares(self) -> dict[str, float]:
        """Return the shares of a step's time, which sum to 1."""
        is_copy = self.gather_seconds is not None and self.copy_seconds > self.gather_seconds
        if self.device_seconds is not None:
            compute = min(self.device_seconds, self.step_seconds)
        elif self.host_seconds is not None and self.host_seconds < self.step_seconds / 2:
            compute = self.step_seconds  # the host waits for the GPU
        else:
            compute = max(self.step_seconds - self.overhead_seconds, 0.0)
        parts = {
            "data": 0.0 if is_copy else self.wait_seconds,
            "copy": self.wait_seconds if is_copy else 0.0,
            "launch": self.step_seconds - compute,
            "compute": compute,
        }
        return {name: seconds / self.total_seconds for name, seconds in parts.items()}

    @property
    def flop_of_peak(self) -> float:
        return self.flop_per_second / self.peak_flop_per_second

    def sentence(self) -> str:
        """Return the bottleneck and the most effective changes as a sentence."""
        return f"{self.bottleneck}-bound: {self.bottleneck_sentence()}; {self.advice()}"

    def advice(self) -> str:
        best = sorted(((gain, change) for change, gain in self.gains.items() if gain >= MIN_GAIN), reverse=True)[:2]
        text = ", ".join(f"{change} would be about {gain:.1f} times as fast" for gain, change in best)
        return text or f"no setting that was tried is {MIN_GAIN} times as fast"

    def bottleneck_sentence(self) -> str:
        shares, host, device = self.shares(), self.host_seconds, self.device_seconds
        rate = f"{self.flop_of_peak:.0%} of the matrix-product rate"
        if self.bottleneck == "latency":
            return (
                f"a kernel runs during {shares['compute']:.0%} of the step time, but they reach {rate} measured here: "
                "they do too little work at once to fill the GPU"
            )
        share = f"{shares[self.bottleneck]:.0%} of the step time"
        if self.bottleneck == "data":
            return f"{share} is spent waiting for the batch"
        if self.bottleneck == "copy":
            return f"{share} is spent waiting for the copy to the GPU"
        if self.bottleneck == "launch":
            if host is None or device is None:
                return f"{share} is needed even for two sequences"
            computing = f"the GPU computes during {device / self.total_seconds:.0%} of the step time"
            return f"{computing}, and the host takes {1000 * host:.2g} ms to launch its {self.num_kernels} kernels"
        return f"{share} is computation, at {rate} measured here"

    def memory_sentence(self) -> str:
        parts = ", ".join(f"{name} {mib:.1f}" for name, mib in self.memory_mib.items())
        total = sum(self.memory_mib.values())
        message = f"this training needs {total:.1f} MiB: {parts}"
        if total > SMALL_SHARE * self.device_mib:
            return message
        return f"{message}; the device has {self.device_mib:,.0f} MiB, but model and data are small"

    def missing_sentence(self) -> str:
        """Return the measurements that failed on this device, with the reasons."""
        reasons = self.missing_reasons.items()
        missing = ", ".join(f"{name} ({reason})" for name, reason in reasons if name in GPU_FIELDS and reason != NO_GPU)
        return f"not measured: {missing}" if missing else ""

    def numbers(self) -> dict[str, float]:
        """Return all measurements as a flat mapping."""
        flat = {name: value for name, value in asdict(self).items() if isinstance(value, int | float)}
        shares = {f"{name}_share": share for name, share in self.shares().items()}
        memory = {f"memory_{name}_mib": mib for name, mib in self.memory_mib.items()}
        gains = {f"gain {name}": gain for name, gain in self.gains.items()}
        return {**flat, **shares, "flop_of_peak": self.flop_of_peak, **memory, **gains}

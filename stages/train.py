"""Train one workload's model on one device.

In: the packed splits and their plan, the hardware, params.yaml. Out, in results/runs/<workload>/<device>/: what is deterministic
(`best.safetensors`, `last.safetensors`, `model.json`, `history.csv`), apart from that what was measured (`timings.csv`, `timings.json`, and
`measured.json`: where, when and of what), and `tracking.json`, the MLflow run. A killed training goes on from its checkpoint; Ctrl+C once
finishes the epoch and saves, twice stops at once.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stages.models import Shape
from stages.params import Rally, Workload, flatten, load_params, load_workload
from stages.runtime import store, tracking
from stages.runtime.store import (
    code_file,
    hardware_file,
    packed_dir,
    prepared_dir,
    preset_file,
    read_json,
    run_dir,
    sha256_file,
)
from stages.runtime.terminal import Interruption, Progress
from stages.tasks import Task, open_task

if TYPE_CHECKING:  # torch is imported in `main`, after mlflow's process has started
    from stages.runtime.checkpoint import Checkpoint
    from stages.runtime.fit import Epoch, Fit

    # Makes the same training on the CPU: (its state, what was done about memory) -> fit
    Elsewhere = Callable[[dict[str, Any] | None, list[str]], Fit]

# What training runs through besides the workload's own model and task (results/code/): dvc.yaml names the same files.
CODE = (
    "stages/train.py",
    "stages/augment.py",
    "stages/models/kernels/attention.py",
    "stages/models/kernels/decoder.py",
    "stages/models/kernels/dropout.py",
    "stages/models/kernels/gru.py",
    "stages/models/parts.py",
    "stages/runtime/batches.py",
    "stages/runtime/count.py",
    "stages/runtime/device.py",
    "stages/runtime/fit.py",
    "stages/runtime/loop.py",
    "stages/runtime/measure.py",
    "stages/runtime/precision.py",
    "stages/runtime/probe.py",
    "stages/runtime/relief.py",
    "stages/runtime/step.py",
)
# What preprocess learned from the data, which a new table must be treated with too.
LEARNED = ("features", "classes", "mean", "std", "target")
# Checkpoints take at most this share of the time; otherwise one is never older than these seconds, or an epoch.
CHECKPOINT_SHARE = 0.01
CHECKPOINT_SECONDS = 10.0
# What timings.json holds for the whole run, under MLflow's names.
RUN_METRICS = {
    "time/epoch_seconds_median": "epoch_seconds",
    "time/train_seconds": "train_seconds",
    "throughput/samples_per_second_median": "samples_per_second",
    "vram/peak_allocated_mib_max": "peak_allocated_mib",
    "vram/peak_reserved_mib_max": "peak_reserved_mib",
    "vram/peak_process_mib_max": "process_mib",
    "vram/peak_device_mib_max": "device_mib",
    "gpu/busy_share_mean": "gpu_busy_share",
    "gpu/power_watts_mean": "power_watts",
    "gpu/energy_joules_sum": "energy_joules",
    "cpu/share_mean": "cpu_share",
}
# What is measured of an epoch besides its time: MLflow's name, and the field of a Measurement.
EPOCH_METRICS = {
    "vram/peak_allocated_mib": "peak_allocated_mib",
    "vram/peak_reserved_mib": "peak_reserved_mib",
    "vram/peak_process_mib": "process_mib",
    "vram/peak_device_mib": "device_mib",
    "gpu/busy_share": "gpu_busy_share",
    "gpu/power_watts": "power_watts",
    "gpu/energy_joules": "energy_joules",
    "memory/peak_rss_mib": "peak_rss_mib",
    "cpu/share": "cpu_share",
}


@dataclass(frozen=True)
class Job:
    """One training as the files describe it."""

    workload: str
    device: str
    params: Workload
    identity: dict[str, Any]
    plan: dict[str, Any]
    summary: dict[str, Any]
    inputs: dict[str, Any]
    preset: str

    @classmethod
    def of(cls, workload: str, device: str) -> Job:
        return cls(
            workload,
            device,
            load_workload(workload),
            read_json(hardware_file(device)),
            read_json(packed_dir(workload, device) / "plan.json"),
            read_json(prepared_dir(workload) / "summary.json"),
            read_inputs(workload, device),
            read_json(preset_file(workload))["preset"],
        )

    @property
    def task(self) -> Task:
        return open_task(self.params.task, self.summary)

    @property
    def data_sha256(self) -> str:
        """Of the raw table; of the packed training split where the data is simulated."""
        return str(self.summary.get("table_sha256", self.inputs["data"]["train"]))

    @property
    def shape(self) -> Shape:
        return Shape.of(self.summary, self.task)


@dataclass
class Record:
    """What the epochs so far came to; saved with every checkpoint. `token` names the MLflow run across interruptions."""

    token: str
    history: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    probe: dict[str, float] = field(default_factory=dict)  # where a step's time goes, in numbers
    said: dict[str, str] = field(default_factory=dict)  # and in words


def main(workload: str, device: str) -> None:
    job = Job.of(workload, device)
    journal = tracking.start()
    status = "FAILED"
    try:
        from stages.runtime.checkpoint import Checkpoint
        from stages.runtime.relief import may_finish_on_cpu, told

        elsewhere = partial(on_the_cpu, job) if may_finish_on_cpu(device, job.identity, job.params.train) else None
        checkpoint = Checkpoint.of(workload, device, job.inputs)
        with checkpoint.held(), Interruption() as interruption:
            fit, record = begin(job, checkpoint, elsewhere)
            open_run(job, fit, record, journal)
            fit = run_epochs(job, fit, record, checkpoint, journal, interruption, elsewhere)
            with told(fit.relief):
                refuse_changed_inputs(job, fit, record, checkpoint)
                result = write_results(job, fit, record, journal)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        known = journal.end(status)
    store.write_json(
        run_dir(workload, device) / "tracking.json", {"token": record.token, "experiment": workload, **known}
    )
    checkpoint.path.unlink(missing_ok=True)
    timed = "no epoch of it was timed there"
    if result["num_epochs_measured"]:
        timed = (
            f"epoch {result['epoch_seconds']:.3f} s (median of {result['num_epochs_measured']}), "
            f"{result['samples_per_second']:,.0f} samples/s"
        )
    finished = ", finished on the CPU" if fit.relief.moved else ""
    print(f"{workload} on {job.identity['name']}{finished}: {timed}, {result['train_seconds']:.1f} s in all")


def begin(job: Job, checkpoint: Checkpoint, elsewhere: Elsewhere | None) -> tuple[Fit, Record]:
    """A new training, or an interrupted one where it stopped, with the record to go on with."""
    import torch

    from stages.runtime.relief import OutOfMemory

    saved, found = checkpoint.load(torch.device("cpu"))
    if found:
        print(
            found + (f", epoch {saved['fit']['epochs_done']} of {job.params.train.epochs}" if saved else ""), flush=True
        )
    record = Record(**saved["record"]) if saved else Record(tracking.new_token())
    state = saved["fit"] if saved else None
    kind = state["device"] if state else job.identity["kind"]
    try:
        fit = make_fit(job, kind, state)
        prepare(job, fit, record)
        return fit, record
    except OutOfMemory as error:
        if elsewhere is None or kind == "cpu":
            raise
        taken = error.taken
    fit = elsewhere(state, taken)
    prepare(job, fit, record)
    return fit, record


def make_fit(job: Job, kind: str, state: dict[str, Any] | None) -> Fit:
    """The device, the model and its training, all from the seed, and the data; then where `state` says."""
    import torch

    from stages import models
    from stages.runtime.batches import load_split
    from stages.runtime.device import open_device
    from stages.runtime.fit import Fit
    from stages.runtime.relief import Relief, advice, told

    settings = job.params.train
    if kind == "cpu" != job.identity["kind"] and settings.precision == "fp16":
        settings = replace(settings, precision="fp32")  # of the two the CPU has only this
    device = open_device({**job.identity, "kind": kind}, settings.threads, settings.deterministic, settings.precision)
    with told(Relief(advice=advice(device, settings.precision))):
        train, val = (
            load_split(store.packed_file(job.workload, job.device, split, job.plan), device, "host")
            for split in ("train", "val")
        )
        torch.manual_seed(settings.seed)
        model = models.build(settings.model, job.shape).to(device)
        fit = Fit(model, train, val, settings, job.task)
        if state is not None:
            fit.restore(state)
        if job.plan["residency"] == "device" and not (state and state["relief"]["streams"]):
            fit.relief.hold()
    return fit


def on_the_cpu(job: Job, state: dict[str, Any] | None, taken: list[str]) -> Fit:
    """The same training on the CPU, from `state` on, where memory ran out at the end of everything that was `taken`.

    Batches, their order and what augmentation draws are as they would have been: all of it comes from generators on the CPU.
    """
    fit = make_fit(job, "cpu", None)
    if state is not None:
        # The CPU's memory is another one: there it begins with whole batches again.
        precision = "fp32" if state["precision"] == "fp16" else state["precision"]
        step = {**state["step"], "accumulation": fit.step.accumulation}
        fit.restore({**state, "precision": precision, "step": step, "relief": fit.relief.state()})
    fit.relief.taken[:0] = taken
    fit.relief.moved = True
    fit.relief.say(f"the training goes on on the CPU, from the start of epoch {fit.epochs_done + 1}")
    return fit


def prepare(job: Job, fit: Fit, record: Record) -> None:
    """What is found out about a training before it starts: its precision, and where a step's time goes."""
    from stages.runtime import precision, probe

    if fit.epochs_done:
        return
    if job.params.train.precision == "auto":
        chosen, said = precision.choose(fit, {**job.identity, "kind": fit.device.type})
        fit.set_precision(chosen)
        print(said, flush=True)
    if job.params.train.probe:
        found = probe.probe(fit)
        if isinstance(found, str):
            record.said["bound"] = f"not probed: {found}"
        else:
            record.probe = found.numbers()
            record.said = {"bound": found.sentence(), "memory": found.memory_sentence()}
            if missing := found.missing_sentence():
                record.said["not_measured"] = missing
        print(record.said["bound"], flush=True)


def run_epochs(
    job: Job,
    fit: Fit,
    record: Record,
    checkpoint: Checkpoint,
    journal: tracking.Journal,
    interruption: Interruption,
    elsewhere: Elsewhere | None,
) -> Fit:
    """Train to the end; return the fit that got there, which is another one where `elsewhere` had to take over."""
    settings, score, num_samples = job.params.train, job.task.score_name, len(fit.train_split)
    progress = Progress(f"{job.workload} on {job.identity['name']}", settings.epochs, fit.epochs_done)
    saved_at, save_seconds = time.monotonic(), 0.0
    while fit.epochs_done < settings.epochs:
        fit, epoch = next_epoch(fit, journal, elsewhere)
        check_finite(epoch, checkpoint)
        record.history.append(history_row(epoch, score))
        record.timings.append(timing_row(epoch, num_samples, settings.warmup_epochs, fit.relief.moved))
        journal.metrics(epoch_metrics(epoch, num_samples, score), step=epoch.number)
        progress.show(epoch, score, num_samples)

        since = time.monotonic() - saved_at
        due = epoch.number == 1 or since > max(CHECKPOINT_SECONDS, save_seconds / CHECKPOINT_SHARE)
        if (due or interruption.asked) and fit.epochs_done < settings.epochs:
            start = time.monotonic()
            save(fit, record, checkpoint)
            saved_at, save_seconds = time.monotonic(), time.monotonic() - start
            if interruption.asked:
                where = store.relative(checkpoint.path)
                print(f"interrupted after epoch {fit.epochs_done}, saved in {where}; run again to go on", flush=True)
                raise KeyboardInterrupt
    progress.close()
    return fit


def next_epoch(fit: Fit, journal: tracking.Journal, elsewhere: Elsewhere | None) -> tuple[Fit, Epoch]:
    """Move on by an epoch. Where memory runs out for good, it begins again in the fit that `elsewhere` makes, if that may be."""
    from stages.runtime.fit import on_cpu
    from stages.runtime.relief import OutOfMemory, told

    num_taken, start = len(fit.relief.taken), None
    try:
        with told(fit.relief):
            if elsewhere and not fit.relief.moved:
                start = on_cpu(fit.state())
            return fit, fit.epoch()
    except OutOfMemory as error:
        if start is None:
            raise
        taken = error.taken
    finally:
        if len(fit.relief.taken) > num_taken:
            journal.tags(memory_tags(fit))
    # Outside the `except`: the error holds what lay in the memory that ran out.
    assert elsewhere is not None
    fit = elsewhere(start, taken)
    journal.tags(memory_tags(fit))
    return next_epoch(fit, journal, None)


def memory_tags(fit: Fit) -> dict[str, str]:
    """What MLflow is told about memory that ran out; nothing where it did not."""
    tags = {"out_of_memory": "; ".join(fit.relief.taken)} if fit.relief.taken else {}
    return {**tags, "finished_on": fit.device.type} if fit.relief.moved else tags


def save(fit: Fit, record: Record, checkpoint: Checkpoint) -> None:
    from stages.runtime.relief import told

    with told(fit.relief):
        checkpoint.save({"fit": fit.state(), "record": vars(record)})


def refuse_changed_inputs(job: Job, fit: Fit, record: Record, checkpoint: Checkpoint) -> None:
    """DVC would record a result of old inputs under the new ones (treeverse/dvc#11058)."""
    now = read_inputs(job.workload, job.device)
    changed = [name for name in now if now[name] != job.inputs[name]]
    if changed:
        save(fit, record, checkpoint)
        raise ValueError(
            f"{' and '.join(changed)} of {job.workload} changed while it trained, so the result belongs to neither; "
            "the checkpoint is kept: put back what was changed to use it, or run `dvc repro` again to train on what is there now"
        )


def write_results(job: Job, fit: Fit, record: Record, journal: tracking.Journal) -> dict[str, Any]:
    """Write all but tracking.json, hand copies to MLflow, return what timings.json holds."""
    from safetensors.torch import save_file

    from stages.runtime.fit import snapshot

    out = run_dir(job.workload, job.device)
    for name, weights in {"best": fit.best_weights, "last": snapshot(fit.model)}.items():
        with store.replacing(out / f"{name}.safetensors") as temporary:
            save_file(weights, temporary)
    about = {
        "model": asdict(job.params.train.model),
        "shape": asdict(job.shape),
        "task": job.params.task,
        "workload": job.workload,
    }
    store.write_json(out / "model.json", {**about, "preprocessing": preprocessing_of(job)})
    store.write_table(out / "history.csv", record.history)
    store.write_table(out / "timings.csv", record.timings)
    result = summarize(record.timings)
    record.said["device"] = device_sentence(
        fit,
        job.identity["kind"],
        sum(row["is_elsewhere"] for row in record.timings),
        {**result, "num_kernels": record.probe.get("num_kernels")},
    )
    if fit.relief.taken:
        record.said["out_of_memory"] = f"memory ran out: {', then '.join(fit.relief.taken)}"
    absent = {name: why for name, why in fit.absent.items() if result.get(name) is None}
    if not result["num_epochs_measured"]:
        why = f"memory ran out before an epoch after warm-up was timed on {job.identity['kind']}; those on the CPU do not count for it"
        absent |= dict.fromkeys(("epoch_seconds", "samples_per_second"), why)
    store.write_json(out / "timings.json", result)  # numbers alone: it is a DVC metric
    store.write_json(
        out / "measured.json",
        {
            **circumstances(absent, job.identity),
            **digests(job.inputs),
            "out_of_memory": fit.relief.taken,
            "finished_on": fit.device.type,
            "precision": fit.step.precision,
            "probe": record.probe,
            "said": record.said,
        },
    )

    journal.metrics({name: result[key] for name, key in RUN_METRICS.items()})
    journal.metrics({f"probe/{name.replace(' ', '_')}": value for name, value in record.probe.items()})
    journal.text("".join(f"{key}: {sentence}\n" for key, sentence in record.said.items()), "answers.txt")
    for name in ("history.csv", "timings.csv"):
        journal.artifact(out / name)
    return result


def device_sentence(fit: Fit, asked: str, num_elsewhere: int, result: dict[str, Any]) -> str:
    """Whether the device was used: what was checked, and what was measured on the one asked for."""
    places = {asked: len(fit.verified) - num_elsewhere, fit.device.type: num_elsewhere or len(fit.verified)}
    said = " and ".join(f"on {kind} in each of {count} epochs" for kind, count in places.items() if count)
    measured = {
        "{:,.0f} kernels a step seen on the GPU": result["num_kernels"],
        "the process kept {:.2f} CPU cores busy": result["cpu_share"],
        "a kernel ran {:.0%} of the time": result["gpu_busy_share"],
        "peak VRAM of this process {:,.0f} MiB": result["process_mib"],
        "of tensors {:,.0f} MiB": result["peak_allocated_mib"],
    }
    found = [text.format(value) for text, value in measured.items() if value is not None]
    return ", ".join([f"parameters, batches and outputs were {said}", *found])


def open_run(job: Job, fit: Fit, record: Record, journal: tracking.Journal) -> None:
    """Tell MLflow what is about to be trained, where, on what, from which code."""
    from stages.runtime.device import describe

    about, git = describe(fit.device, job.identity), tracking.git_tags()
    num_parameters = sum(parameter.numel() for parameter in fit.model.parameters())
    journal.run(
        record.token,
        experiment=job.workload,
        name=f"{job.workload}-{fit.device.type}-{time.strftime('%m%d-%H%M%S')}",
        # What two runs may differ in stands among the parameters too: MLflow's compare page shows no tags.
        params={
            **flatten(job.params),
            **{name: about[name] for name in ("device", "device.name", "cpu.threads", "torch")},
            "preset": job.preset,
            "precision": fit.step.precision,
            "data.sha256": job.data_sha256,
            "git.commit": git.get("mlflow.source.git.commit", "none"),
            "num_parameters": num_parameters,
            "residency": job.plan["residency"],
        },
        tags={
            **about,
            "mlflow.source.name": f"train@{job.workload}-{job.device}",
            "mlflow.source.type": "LOCAL",
            "workload": job.workload,
            "requested_device": job.device,
            "preset": job.preset,
            "data.sha256": job.data_sha256,
            **git,
            **memory_tags(fit),
            **tracking.caller_tags(),
        },
        dataset=dataset_of(job),
    )


def read_inputs(workload: str, device: str) -> dict[str, Any]:
    """All that decides the outcome: what a checkpoint belongs to, and what must not change while training."""
    load_params.cache_clear()
    parameters = flatten(load_workload(workload).train)
    del parameters["on_out_of_memory"]  # where a training may go on does not make it another one
    return {
        "parameters": parameters,
        "data": read_json(packed_dir(workload, device) / "plan.json")["sha256"],
        "code": {**read_json(code_file(workload)), **{name: sha256_file(store.ROOT / name) for name in CODE}},
        "hardware": read_json(hardware_file(device)),
    }


def digests(inputs: dict[str, Any]) -> dict[str, str]:
    """What a comparison of two runs' times must find equal."""
    return {
        f"{name}_sha256": hashlib.sha256(json.dumps(inputs[name], sort_keys=True).encode()).hexdigest()
        for name in ("parameters", "data")
    }


def preprocessing_of(job: Job) -> dict[str, Any]:
    """What must be done to a new table before the model sees it."""
    return {**asdict(job.params.preprocess), **{name: job.summary[name] for name in LEARNED if name in job.summary}}


def dataset_of(job: Job) -> dict[str, Any]:
    """The fields of mlflow.entities.Dataset."""
    summary, params = job.summary, job.params.preprocess
    table = None if isinstance(params, Rally) else store.raw_dir(job.workload) / params.table
    source = store.relative(table) if table else "stages/rally.py"
    profile = {"num_sequences": summary["num_sequences"], "features": summary["features"]}
    if "classes" in summary:
        profile["num_classes"] = len(summary["classes"])
    return {
        "name": job.workload,
        "digest": job.data_sha256[:16],
        "source_type": "local",
        "source": json.dumps({"uri": source}),
        "schema": None,
        "profile": json.dumps(profile),
    }


def check_finite(epoch: Epoch, checkpoint: Checkpoint) -> None:
    if epoch.train_loss - epoch.train_loss != 0:  # NaN or infinite
        kept = (
            f"; the last good checkpoint is kept in {store.relative(checkpoint.path)}"
            if checkpoint.path.exists()
            else ""
        )
        raise ValueError(
            f"the training loss is {epoch.train_loss} in epoch {epoch.number}{kept}; "
            "try a smaller train.learning_rate, or train.clip_norm 1.0"
        )


def history_row(epoch: Epoch, score: str) -> dict[str, Any]:
    return {
        "epoch": epoch.number,
        "learning_rate": epoch.learning_rate,
        "train_loss": epoch.train_loss,
        "val_loss": epoch.val_loss,
        f"val_{score}": epoch.val_score,
    }


def timing_row(epoch: Epoch, num_samples: int, warmup_epochs: int, is_elsewhere: bool) -> dict[str, Any]:
    measured = epoch.training
    return {
        "epoch": epoch.number,
        "is_warmup": int(epoch.number <= warmup_epochs),
        "is_elsewhere": int(is_elsewhere),  # on another device than the one asked for
        "epoch_seconds": measured.seconds,
        "samples_per_second": num_samples / measured.seconds,
        "validation_seconds": epoch.validation.seconds,
        **{name: getattr(measured, name) for name in EPOCH_METRICS.values()},
    }


def epoch_metrics(epoch: Epoch, num_samples: int, score: str) -> dict[str, float | None]:
    measured = epoch.training
    return {
        "train/loss": epoch.train_loss,
        "train/learning_rate": epoch.learning_rate,
        "val/loss": epoch.val_loss,
        f"val/{score}": epoch.val_score,
        "time/epoch_seconds": measured.seconds,
        "time/validation_seconds": epoch.validation.seconds,
        "throughput/samples_per_second": num_samples / measured.seconds,
        **{name: getattr(measured, key) for name, key in EPOCH_METRICS.items()},
    }


def summarize(timings: list[dict[str, Any]]) -> dict[str, Any]:
    """The run's measurements: medians and quartiles over the epochs after warm-up; peaks, means and sums over all of them.

    Epochs on another device than the one asked for count in `train_seconds` alone. What could not be measured is None.
    """
    here = [row for row in timings if not row["is_elsewhere"]]
    measured = [row for row in here if not row["is_warmup"]]
    seconds = [row["epoch_seconds"] for row in measured]
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else (None, None, None)
    reduced: list[tuple[Callable[[list[float]], float], tuple[str, ...]]] = [
        (max, ("peak_allocated_mib", "peak_reserved_mib", "process_mib", "device_mib", "peak_rss_mib")),
        (statistics.fmean, ("gpu_busy_share", "power_watts", "cpu_share")),
        (sum, ("energy_joules",)),
    ]
    found: dict[str, float | None] = {}
    for reduce, names in reduced:
        for name in names:
            values = [row[name] for row in here if row[name] is not None]
            found[name] = reduce(values) if values else None
    return {
        "epoch_seconds": statistics.median(seconds) if seconds else None,
        "epoch_seconds_quartile_low": low,
        "epoch_seconds_quartile_high": high,
        "samples_per_second": statistics.median(row["samples_per_second"] for row in measured) if measured else None,
        "num_epochs_measured": len(measured),
        "num_epochs_warmup": len(here) - len(measured),
        "train_seconds": sum(row["epoch_seconds"] + row["validation_seconds"] for row in timings),
        **found,
    }


def circumstances(absent: dict[str, str], identity: dict[str, Any]) -> dict[str, Any]:
    """Where and when, without which a timing is worth nothing, and why what is missing could not be measured."""
    return {
        "absent": absent,
        "torch": identity["torch"],
        "device": identity["kind"],
        "device_name": identity["name"],
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "measured_on": platform.node(),
    }

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
from dataclasses import asdict, dataclass, field
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

# What training runs through besides the workload's own model and task (results/code/): dvc.yaml names the same files.
CODE = (
    "stages/train.py",
    "stages/augment.py",
    "stages/models/kernels/attention.py",
    "stages/models/kernels/dropout.py",
    "stages/models/kernels/gru.py",
    "stages/models/parts.py",
    "stages/runtime/batches.py",
    "stages/runtime/device.py",
    "stages/runtime/fit.py",
    "stages/runtime/loop.py",
    "stages/runtime/measure.py",
    "stages/runtime/precision.py",
    "stages/runtime/probe.py",
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
    job = Job(
        workload,
        device,
        load_workload(workload),
        read_json(hardware_file(device)),
        read_json(packed_dir(workload, device) / "plan.json"),
        read_json(prepared_dir(workload) / "summary.json"),
        read_inputs(workload, device),
        read_json(preset_file(workload))["preset"],
    )
    journal = tracking.start()
    status = "FAILED"
    try:
        from stages.runtime.checkpoint import Checkpoint

        checkpoint = Checkpoint.of(workload, device, job.inputs)
        with checkpoint.held(), Interruption() as interruption:
            fit = make_fit(job)
            record = resume(job, fit, checkpoint)
            prepare(job, fit, record)
            open_run(job, fit, record, journal)
            run_epochs(job, fit, record, checkpoint, journal, interruption)
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
    print(
        f"{workload} on {job.identity['name']}: epoch {result['epoch_seconds']:.3f} s "
        f"(median of {result['num_epochs_measured']}), {result['samples_per_second']:,.0f} samples/s, "
        f"{result['train_seconds']:.1f} s in all"
    )


def make_fit(job: Job) -> Fit:
    """The device, the data on it, the model and its training, all from the seed."""
    import torch

    from stages import models
    from stages.runtime.batches import load_split
    from stages.runtime.device import open_device
    from stages.runtime.fit import Fit

    settings = job.params.train
    device = open_device(job.identity, settings.threads, settings.deterministic, settings.precision)
    train, val = (
        load_split(store.packed_file(job.workload, job.device, split, job.plan), device, job.plan["residency"])
        for split in ("train", "val")
    )
    torch.manual_seed(settings.seed)
    model = models.build(settings.model, job.shape).to(device)
    return Fit(model, train, val, settings, job.task)


def resume(job: Job, fit: Fit, checkpoint: Checkpoint) -> Record:
    """Put `fit` where an interrupted training stopped, if there is one; return the record to go on with."""
    saved, found = checkpoint.load(fit.device)
    if found:
        print(
            found + (f", epoch {saved['fit']['epochs_done']} of {job.params.train.epochs}" if saved else ""), flush=True
        )
    if saved is None:
        return Record(tracking.new_token())
    fit.restore(saved["fit"])
    return Record(**saved["record"])


def prepare(job: Job, fit: Fit, record: Record) -> None:
    """What is found out about a training before it starts: its precision, and where a step's time goes."""
    from stages.runtime import precision, probe

    if fit.epochs_done:
        return
    if job.params.train.precision == "auto":
        chosen, said = precision.choose(fit, job.identity)
        fit.set_precision(chosen)
        print(said, flush=True)
    if job.params.train.probe:
        found = probe.probe(fit)
        if isinstance(found, str):
            record.said["bound"] = f"not probed: {found}"
        else:
            record.probe = found.numbers()
            record.said = {"bound": found.sentence(), "memory": found.memory_sentence()}
        print(record.said["bound"], flush=True)


def run_epochs(
    job: Job, fit: Fit, record: Record, checkpoint: Checkpoint, journal: tracking.Journal, interruption: Interruption
) -> None:
    settings, score, num_samples = job.params.train, job.task.score_name, len(fit.train_split)
    progress = Progress(f"{job.workload} on {job.identity['name']}", settings.epochs, fit.epochs_done)
    saved_at, save_seconds = time.monotonic(), 0.0
    while fit.epochs_done < settings.epochs:
        epoch = fit.epoch()
        check_finite(epoch, checkpoint)
        record.history.append(history_row(epoch, score))
        record.timings.append(timing_row(epoch, num_samples, settings.warmup_epochs))
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


def save(fit: Fit, record: Record, checkpoint: Checkpoint) -> None:
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
    record.said["device"] = device_sentence(fit, result)
    store.write_json(out / "timings.json", result)  # numbers alone: it is a DVC metric
    store.write_json(
        out / "measured.json",
        {
            **circumstances(fit.absent, job.identity),
            **digests(job.inputs),
            "out_of_memory": fit.step.relief.taken,
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


def device_sentence(fit: Fit, result: dict[str, Any]) -> str:
    """Whether the device was used: what was checked, and what was measured."""
    said = (
        f"parameters, batches and outputs were on {fit.device.type} in each of {len(fit.verified)} epochs, "
        f"the process kept {result['cpu_share']:.2f} CPU cores busy"
    )
    if fit.device.type == "cpu":
        return said
    measured = {
        "a kernel ran {:.0%} of the time": result["gpu_busy_share"],
        "peak VRAM of this process {:,.0f} MiB": result["process_mib"],
        "of tensors {:,.0f} MiB": result["peak_allocated_mib"],
    }
    return ", ".join([said, *(text.format(value) for text, value in measured.items() if value is not None)])


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
            **tracking.caller_tags(),
        },
        dataset=dataset_of(job),
    )


def read_inputs(workload: str, device: str) -> dict[str, Any]:
    """All that decides the outcome: what a checkpoint belongs to, and what must not change while training."""
    load_params.cache_clear()
    return {
        "parameters": flatten(load_workload(workload).train),
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


def timing_row(epoch: Epoch, num_samples: int, warmup_epochs: int) -> dict[str, Any]:
    measured = epoch.training
    return {
        "epoch": epoch.number,
        "is_warmup": int(epoch.number <= warmup_epochs),
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

    What could not be measured is None; measured.json says why.
    """
    measured = [row for row in timings if not row["is_warmup"]]
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
            values = [row[name] for row in timings if row[name] is not None]
            found[name] = reduce(values) if values else None
    return {
        "epoch_seconds": statistics.median(seconds),
        "epoch_seconds_quartile_low": low,
        "epoch_seconds_quartile_high": high,
        "samples_per_second": statistics.median(row["samples_per_second"] for row in measured),
        "num_epochs_measured": len(measured),
        "num_epochs_warmup": len(timings) - len(measured),
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

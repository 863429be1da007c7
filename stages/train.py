"""Train one workload's model on one device: `python -m flows.stage train WORKLOAD DEVICE SEED`.

In: the packed splits and their plan, the hardware, params.yaml. Out, in results/runs/<workload>/<device>/<seed>/: what
is deterministic (`best.safetensors`, `last.safetensors`, `model.json`, `history.csv`), apart from it what was measured
(`timings.csv`, `timings.json`, and `measured.json`: where, when and of what), and `tracking.json`, the MLflow run.

A killed training resumes from its checkpoint. Under DVC the checkpoint of the last epoch stays until dvc.lock has the
result: what keeps DVC from storing it costs no second training. Ctrl+C once finishes the epoch and saves, twice stops
at once. Where the GPU's memory runs out for good and the CPU may take over, flows/stage.py runs this stage again there,
from the checkpoint.

Of several workers (device 2xcpu), which stages/training/launcher.py starts, the first runs `main` as one alone would;
the others run `follow`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors.torch import save

from stages import files
from stages.diagnosis import probe
from stages.files import preset_file, read_json
from stages.machine import conditions
from stages.machine.identity import identify
from stages.machine.regions import sampled
from stages.params.devices import split_device
from stages.params.loading import load_params
from stages.params.parsing import as_written, flatten
from stages.params.schema import Rally
from stages.records import journal as tracking
from stages.records import manifest, provenance
from stages.records.checkpoint import Checkpoint
from stages.records.history import (
    RUN_METRICS,
    Record,
    circumstances,
    device_sentence,
    epoch_metrics,
    history_row,
    memory_tags,
    note_workers,
    summarize,
    summarize_gpu,
    timing_row,
    timings_here,
    workers_of,
)
from stages.records.inputs import Inputs, read_inputs
from stages.records.terminal import Interruption, Progress
from stages.training import auto
from stages.training.device import describe
from stages.training.memory import OutOfMemory, translate_oom
from stages.training.trainer import Epoch, Trainer, snapshot
from stages.training.workers import Workers, joined_group
from stages.training.workers import describe as describe_workers
from stages.training.workload import Job, open_trainer, smaller_parts_asked

# What preprocess learned from the data, which a new table must be treated with too.
LEARNED = ("features", "classes", "mean", "std", "offsets", "target")
# Checkpoints take at most this share of the time; otherwise one is never older than these seconds, or an epoch.
CHECKPOINT_SHARE = 0.01
CHECKPOINT_SECONDS = 10.0
# What the manifest takes from measured.json and timings.json.
REALIZED = (
    "threads", "precision", "step", "why_not_graph", "residency", "finished_on", "out_of_memory", "workers",
    "workers_from_epoch", "batch_size", "learning_rate",
)  # fmt: skip
TIMING = (
    "epoch_seconds", "samples_per_second", "num_epochs_measured", "train_seconds",
    "peak_allocated_mib", "peak_reserved_mib", "process_mib", "peak_rss_mib", "missing_reasons",
)  # fmt: skip


def main(workload: str, device: str, seed: str, journal: tracking.Journal) -> list[str] | None:
    """Returns None; or, where the stage has to run again on the CPU, what was done about memory before."""
    status: str | None = "FAILED"
    try:
        job = Job.of(workload, device, int(seed))
        inputs = Inputs(workload, device, int(seed), job.summary.get("table_sha256"))
        checkpoint = Checkpoint.of(workload, *checkpointed(job, inputs.values))
        files.require_writable(job.folder)
        with checkpoint.locked(), joined_group(device, job.num_workers, job.kind) as workers:
            with Interruption() as interruption:
                workers.require_same(inputs.values)
                job, saved = resume(job, checkpoint)
                workers.told(saved)
                train(job, saved, inputs, checkpoint, journal, interruption, workers)
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit):  # several workers end by the latter, to be started again
        status = "KILLED"
        raise
    except OutOfMemory as error:
        if not job.may_finish_on_cpu:
            raise
        status = None  # the same MLflow run goes on
        return error.actions
    finally:
        known = journal.end(status)
    run = {"token": saved["record"]["token"], "experiment": workload, **known}
    files.write_json(job.folder / "tracking.json", run)
    if "DVC_STAGE" in os.environ:
        checkpoint.ended(job.folder / "timings.csv")  # it stays until DVC has the result
    else:
        checkpoint.remove()
    return None


def follow(workload: str, device: str, seed: str) -> None:
    """What the workers other than the first do: they train, and neither print nor keep anything."""
    job = Job.of(workload, device, int(seed))
    with joined_group(device, job.num_workers, job.kind) as workers:
        workers.require_same(read_inputs(workload, device, job.seed))
        saved = workers.told()
        trainer = open_trainer(job, saved, workers)
        with smaller_parts_asked(trainer), translate_oom(trainer.oom):
            trainer.set_precision(workers.told())
            trainer.join(workers)
            while trainer.epochs_done < job.settings.epochs:
                trainer.epoch()
                if trainer.epochs_done < job.settings.epochs and workers.told():
                    return  # interrupted: the first worker has saved, or does


def checkpointed(job: Job, inputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The device and the inputs that a checkpoint belongs to: another number of workers goes on from it, unless their
    number decides the batch.
    """
    if job.num_workers == 1 or job.params.train.scaling != "strong":
        return job.device, inputs
    kind = split_device(job.device)[1]
    return kind, {**inputs, "hardware": identify(kind)}


def train(
    job: Job,
    saved: dict[str, Any],
    inputs: Inputs,
    checkpoint: Checkpoint,
    journal: tracking.Journal,
    interruption: Interruption,
    workers: Workers,
) -> None:
    """Train from where `saved` is to the end, and write the results."""
    trainer, record = open_trainer(job, saved, workers), Record(**saved["record"])
    with smaller_parts_asked(trainer), translate_oom(trainer.oom):
        if not trainer.epochs_done:
            print(introduction(job, trainer), flush=True)
            record.start = describe_start(trainer)
            realized = auto.realize(trainer, job.identity)
            print(*realized.values(), sep="\n", end="\n" if realized else "", flush=True)
            find_bound(trainer, record)
            record.summary_lines |= realized
        join(job, trainer, record, workers)
        open_run(job, trainer, record, inputs.values, journal)
        saver, first_epoch = Saver(job, trainer, record, checkpoint, journal), trainer.epochs_done + 1
        restate(job, record, journal)
        if not record.end:
            with journal.watched(gpu_uuid(trainer.device)), sampled(trainer.device) as readings:
                for epoch in epochs(job, trainer, journal):
                    check_finite(epoch, checkpoint)
                    keep(job, trainer, record, epoch)
                    record.sampled[first_epoch] = readings.totals()
                    send_metrics(job, record, journal, epoch.number)
                    refuse_changed_inputs(job, inputs, saver)
                    saver.save_if_due(interruption)
            record.sampled[first_epoch] = readings.totals()  # with the last reading
            workers.close()
            record.end = describe_end(trainer, record)
            saver.save_last()
        write_results(job, trainer, record, inputs.values, journal)


def join(job: Job, trainer: Trainer, record: Record, workers: Workers) -> None:
    """Have the other workers, where there are any, train with this one, and say who they are."""
    if workers.count > 1:
        workers.told(trainer.step.precision)
        trainer.join(workers)
    if changed := note_workers(record, trainer.epochs_done, workers.count):
        print(changed, flush=True)
    if workers.count > 1:
        record.summary_lines["workers"] = describe_workers(workers, job.kind, trainer.params, job.params.train)
        print(record.summary_lines["workers"], flush=True)


def introduction(job: Job, trainer: Trainer) -> str:
    """The first line: what is measured before the first epoch may take seconds."""
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    model, num_sequences = job.params.train.model.name, len(trainer.train_split)
    return (
        f"{job.workload} on {job.identity['name']}: {model} with {num_parameters:,} parameters, {num_sequences:,} "
        f"sequences to train on, {job.settings.epochs} epoch{'s' * (job.settings.epochs > 1)}"
    )


def describe_start(trainer: Trainer) -> dict[str, Any]:
    """What the manifest holds of a training's first moment, also where another process ends it."""
    return {
        "tree": provenance.tree(),
        "conditions": conditions.read(gpu_uuid(trainer.device)),
        "weights_sha256": trainer.weights_sha256(),
        "process": os.getpid(),
    }


def describe_end(trainer: Trainer, record: Record) -> dict[str, Any]:
    """What the results hold of a training's last moment, also where another process writes them."""
    before, after = record.start["conditions"], conditions.read(gpu_uuid(trainer.device))
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "conditions": after,
        # The processor's time is counted by process: that of a resumed training has no sum.
        "between": conditions.between(before, after) if record.start["process"] == os.getpid() else {},
        **({"workers": trainer.workers.count} if trainer.workers.count > 1 else {}),
    }


def resume(job: Job, checkpoint: Checkpoint) -> tuple[Job, dict[str, Any]]:
    """The job and its checkpoint, whose trainer is None where no epoch is saved.

    A training that the CPU took over goes on there.
    """
    checkpoint.prune()
    saved, message = checkpoint.load(torch.device("cpu"))
    if saved and (end := saved["record"].get("end")) and end.get("workers", 1) != job.num_workers:
        saved, message = None, ""  # the whole of another training, which is equal within rounding and timed otherwise
    if saved and saved["trainer"]:
        written = ": all are trained, the results are written again" if saved["record"].get("end") else ""
        print(f"{message}, epoch {saved['trainer']['epochs_done']} of {job.settings.epochs}{written}", flush=True)
        return (replace(job, kind="cpu") if saved["kind"] == "cpu" else job), saved
    if saved is None:
        if message:
            print(message, flush=True)
        saved = {"kind": job.kind, "trainer": None, "oom": None, "record": vars(Record(checkpoint.token()))}
        if job.may_finish_on_cpu:  # where the first epoch fails, the CPU goes on in the same MLflow run
            checkpoint.save(saved)
    return job, saved


def find_bound(trainer: Trainer, record: Record) -> None:
    """Record what bounds a training step and what would help, where params.yaml asks for it."""
    if not trainer.params.probe:
        return
    found = "a fit in closed form takes no steps" if trainer.closed_form else probe.probe(trainer)
    if isinstance(found, str):
        record.summary_lines["bound"] = f"not probed: {found}"
    else:
        record.probe, record.not_probed = found.numbers(), found.missing_reasons
        record.bound = {"bound": found.bound, "advice": found.advice()}
        record.summary_lines = {"bound": found.sentence(), "memory": found.memory_sentence()}
        if missing := found.missing_sentence():
            record.summary_lines["not_measured"] = missing
    print(record.summary_lines["bound"], flush=True)


def epochs(job: Job, trainer: Trainer, journal: tracking.Journal) -> Iterator[Epoch]:
    """The epochs that are left. MLflow gets what is done about memory, also in an epoch that fails."""
    num_samples = len(trainer.train_split)
    progress = Progress(job.workload, job.settings.epochs, trainer.epochs_done)
    if trainer.closed_form:
        trainer.closed_form.on_features = progress.show_features
    while trainer.epochs_done < job.settings.epochs:
        num_actions = len(trainer.oom.actions)
        try:
            epoch = trainer.epoch()
        finally:
            if len(trainer.oom.actions) > num_actions:
                journal.tags(memory_tags(trainer.oom.actions))
        progress.show(epoch, job.task.score_name, num_samples)
        yield epoch
    progress.close()


def keep(job: Job, trainer: Trainer, record: Record, epoch: Epoch) -> None:
    num_samples, num_warmup = len(trainer.train_split), job.settings.warmup_epochs
    record.history.append(history_row(epoch, job.task.score_name))
    record.digests.append(epoch.digests)
    record.timings.append(timing_row(epoch, num_samples, num_warmup, job.is_on_fallback))
    if not job.is_on_fallback:  # the reasons are those of the device that was asked for
        record.missing_reasons = trainer.missing_reasons


def send_metrics(job: Job, record: Record, journal: tracking.Journal, epoch: int) -> None:
    rows = record.history[epoch - 1], record.timings[epoch - 1]
    journal.metrics(epoch_metrics(*rows, job.task.score_name), step=epoch)


def restate(job: Job, record: Record, journal: tracking.Journal) -> None:
    """Tell MLflow what the checkpoint holds: a kill between saving and telling, or a server that was away, left it out.

    What MLflow has of it is not sent again.
    """
    journal.hold()
    for row in record.history:
        send_metrics(job, record, journal, row["epoch"])
    journal.saved()


class Saver:
    """Saves a training at the ends of epochs; where the CPU may take over, at each, because it starts from there."""

    def __init__(
        self, job: Job, trainer: Trainer, record: Record, checkpoint: Checkpoint, journal: tracking.Journal
    ) -> None:
        self.job, self.trainer, self.record, self.checkpoint = job, trainer, record, checkpoint
        self.journal = journal
        self.saved_at, self.save_seconds = time.monotonic(), 0.0

    def save_if_due(self, interruption: Interruption) -> None:
        """Raises KeyboardInterrupt, after it has saved, where the user asked for it."""
        epochs_done = self.trainer.epochs_done
        if epochs_done == self.job.settings.epochs:
            return
        is_old = time.monotonic() - self.saved_at > max(CHECKPOINT_SECONDS, self.save_seconds / CHECKPOINT_SHARE)
        asked = self.trainer.workers.told(interruption.asked)  # all stop after the same epoch
        if is_old or epochs_done == 1 or self.job.may_finish_on_cpu or asked:
            self.save()
        if asked:
            where = files.relative(self.checkpoint.path)
            print(f"interrupted after epoch {epochs_done}, saved in {where}; run again to go on", flush=True)
            raise KeyboardInterrupt

    def save_last(self) -> None:
        """Where that fails, the results are written all the same."""
        try:
            self.save()
        except OSError as error:
            print(f"warning: {error}", file=sys.stderr, flush=True)

    def save(self) -> None:
        start = time.monotonic()
        trainer = self.trainer
        state = {"kind": self.job.kind, "trainer": trainer.state(), "oom": trainer.oom.state()}
        self.checkpoint.save({**state, "threads": trainer.params.num_threads, "record": vars(self.record)})
        self.journal.saved()
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - start


def check_finite(epoch: Epoch, checkpoint: Checkpoint) -> None:
    if epoch.train_loss - epoch.train_loss != 0:  # NaN or infinite
        where = files.relative(checkpoint.path)
        kept = f"; the last good checkpoint is kept in {where}" if checkpoint.path.exists() else ""
        raise ValueError(
            f"the training loss is {epoch.train_loss} in epoch {epoch.number}{kept}; "
            "try a smaller train.learning_rate, or train.clip_norm 1.0"
        )


def refuse_changed_inputs(job: Job, inputs: Inputs, saver: Saver) -> None:
    """Raises ValueError where an input changed: DVC would record the result under the new one (treeverse/dvc#11058)."""
    changed = inputs.changed()
    if not changed:
        return
    packed = files.relative(files.packed_dir(job.workload, job.device))
    if not any(packed in words for words in changed):  # this epoch may have seen other data
        saver.save()
    raise ValueError(
        f"{' and '.join(changed)} of {job.workload} changed while it trained, so a result would belong to neither; "
        f"the checkpoint is kept ({files.relative(saver.checkpoint.path)}): put back what was changed and run again to "
        "go on from it, or run `dvc repro` again to train on what is there now"
    )


def write_results(
    job: Job, trainer: Trainer, record: Record, inputs: dict[str, Any], journal: tracking.Journal
) -> None:
    """Write all but tracking.json, and give MLflow copies."""
    out = job.folder
    for name, weights in {"best": trainer.best_weights, "last": snapshot(trainer.model)}.items():
        files.write_bytes(out / f"{name}.safetensors", save(weights))
    files.write_json(out / "model.json", describe_model(job))
    files.write_table(out / "history.csv", record.history)
    files.write_table(out / "timings.csv", record.timings)
    of_gpu, missing_reasons = summarize_gpu(record.sampled.values())
    result = {**summarize(timings_here(record)), **of_gpu}
    record.missing_reasons |= missing_reasons
    files.write_json(out / "timings.json", result)
    measured = describe_measurement(job, trainer, record, inputs, result)
    files.write_json(out / "measured.json", measured)
    files.write_json(out / manifest.OF_TRAINING, describe_run(job, trainer, record, inputs, {**result, **measured}))

    journal.metrics({name: result[key] for name, key in RUN_METRICS.items()})
    if record.probe:
        probed = {"probe": record.probe, "not_probed": record.not_probed}
        journal.text(json.dumps(probed, indent=2) + "\n", "probe.json")
    journal.text("".join(f"{key}: {sentence}\n" for key, sentence in record.summary_lines.items()), "answers.txt")
    for name in ("history.csv", "timings.csv"):
        journal.artifact(out / name)
    journal.artifact(out / manifest.OF_TRAINING, name=manifest.NAME)

    timed = "no epoch of it was timed there"
    if result["num_epochs_measured"]:
        timed = (
            f"epoch {result['epoch_seconds']:.3f} s (median of {result['num_epochs_measured']}), "
            f"{result['samples_per_second']:,.0f} samples/s"
        )
    finished = ", finished on the CPU" if job.is_on_fallback else ""
    print(f"{job.workload} on {job.identity['name']}{finished}: {timed}, {result['train_seconds']:.1f} s in all")


def describe_measurement(
    job: Job, trainer: Trainer, record: Record, inputs: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """measured.json. Completes the record's sentences."""
    num_on_cpu = sum(row["is_elsewhere"] for row in record.timings)
    seen = {**result, "num_kernels": record.probe.get("num_kernels")}
    record.summary_lines["device"] = device_sentence(job.identity["kind"], len(trainer.verified), num_on_cpu, seen)
    if trainer.oom.actions:
        record.summary_lines["out_of_memory"] = f"memory ran out: {', then '.join(trainer.oom.actions)}"
    missing_reasons = {name: why for name, why in record.missing_reasons.items() if result.get(name) is None}
    if not result["num_epochs_measured"]:
        why = (
            f"memory ran out before an epoch after warm-up was timed on {job.identity['kind']}; "
            "those on the CPU do not count for it"
        )
        missing_reasons |= dict.fromkeys(("epoch_seconds", "samples_per_second"), why)
    return {
        **circumstances(missing_reasons, job.identity, trainer.params.num_threads, record.end["measured_at"]),
        **{f"{name}_sha256": digest(inputs[name]) for name in ("parameters", "data")},
        "out_of_memory": trainer.oom.actions,
        "finished_on": job.kind,
        **workers_of(record),
        **batch_of(job),
        "residency": trainer.oom.residency,
        "precision": trainer.step.precision,
        "step": trainer.step.execution_mode,
        **({"why_not_graph": why} if (why := trainer.step.fallback_reason) else {}),
        "asked": {name: getattr(job.params.train, name) for name in ("threads", "precision", "step")},
        "probe": record.probe,
        "not_probed": record.not_probed,
        "summary_lines": record.summary_lines,
    }


def batch_of(job: Job) -> dict[str, Any]:
    """What several workers came to with `scaling: weak-...`; otherwise params.yaml has it."""
    if job.settings.batch_size == job.params.train.batch_size:
        return {}
    return {"batch_size": job.settings.batch_size, "learning_rate": job.settings.learning_rate}


def describe_run(
    job: Job, trainer: Trainer, record: Record, inputs: dict[str, Any], measured: dict[str, Any]
) -> dict[str, Any]:
    """The manifest (stages/records/manifest.py) without the test's result."""
    found = provenance.environment()
    if trainer.device.type == "cuda":
        found["versions"] |= provenance.gpu_versions(job.identity["driver"])
    losses = ("epoch", "learning_rate", "train_loss", "val_loss", f"val_{job.task.score_name}")
    return {
        "schema": manifest.SCHEMA,
        **{name: measured[name] for name in ("device", "measured_at")},
        "workload": job.workload,
        "requested": job.device,
        "seed": job.seed,
        "machine": measured["measured_on"],
        "token": record.token,
        "tree": record.start["tree"],
        "block": as_written(job.params),
        "preset": read_json(preset_file(job.workload))["preset"],
        "realized": {
            **{name: measured[name] for name in REALIZED if name in measured},
            "accumulation": trainer.step.accumulation,
        },
        "digests": {
            "data": {
                "table": job.summary.get("table_sha256"),
                "prepared": job.summary["sha256"],
                "packed": inputs["data"],
            },
            "code": inputs["code"],
            "weights": {
                "initial": record.start["weights_sha256"],
                **{name: files.sha256_file(job.folder / f"{name}.safetensors") for name in ("best", "last")},
            },
        },
        "environment": found,
        "hardware": job.identity,
        "kernels": "cuDNN" if trainer.device.type == "cuda" else "Tandem's kernels",
        "conditions": {
            "before": record.start["conditions"],
            "after": record.end["conditions"],
            "between": record.end["between"],
        },
        "epochs": [
            {**{name: row[name] for name in losses}, **digests}
            for row, digests in zip(record.history, record.digests, strict=True)
        ],
        "timing": {name: measured[name] for name in TIMING},
    }


def gpu_uuid(device: torch.device) -> str | None:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def describe_model(job: Job) -> dict[str, Any]:
    """model.json: how to build the network, and what must be done to a new table before the model sees it."""
    learned = {name: job.summary[name] for name in LEARNED if name in job.summary}
    return {
        "model": asdict(job.params.train.model),
        "shape": asdict(job.shape),
        "task": job.params.task,
        "workload": job.workload,
        "preprocessing": {**asdict(job.params.preprocess), **learned},
    }


def open_run(job: Job, trainer: Trainer, record: Record, inputs: dict[str, Any], journal: tracking.Journal) -> None:
    """Tell MLflow what is trained, where, on what data, and from which code."""
    about, git = describe(trainer.device, job.identity), provenance.git_tags(record.start["tree"])
    preset = read_json(preset_file(job.workload))["preset"]
    seeds, group = load_params().seeds, group_of(inputs)
    experiment = os.environ.get("DVC_EXP_NAME")
    device = job.device if job.num_workers > 1 else trainer.device.type
    name = f"{f'{experiment}: ' if experiment else ''}{job.workload}-{device}"
    journal.run(
        record.token,
        experiment=job.workload,
        name=f"{name}-{time.strftime('%m%d-%H%M%S')}",
        # What two runs may differ in stands among the parameters too: MLflow's compare page shows no tags.
        params={
            **flatten(job.params),
            **{name: about[name] for name in ("device", "device.name", "torch")},
            "preset": preset,
            "seed": job.seed,
            "threads": trainer.params.num_threads,
            "precision": trainer.step.precision,
            "step": trainer.step.execution_mode,
            **({"workers": job.num_workers} if job.num_workers > 1 else {}),
            "data.sha256": data_sha256(job),
            "git.commit": git.get("mlflow.source.git.commit", "none"),
            "git.dirty": git.get("git.dirty", "unknown"),
            "code.sha256": digest(inputs["code"])[:16],
            "environment.sha256": digest(provenance.environment())[:16],
            "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
            "residency": trainer.oom.residency,
            **record.bound,
        },
        tags={
            **about,
            "mlflow.source.name": f"train@{job.workload}-{job.device}-{job.seed}",
            "mlflow.source.type": "LOCAL",
            "workload": job.workload,
            "requested_device": job.device,
            "preset": preset,
            "data.sha256": data_sha256(job),
            "tandem.group": group,
            **git,
            **memory_tags(trainer.oom.actions),
            **({"finished_on": job.kind} if job.is_on_fallback else {}),
            **provenance.caller_tags(),
        },
        dataset=dataset_of(job),
        parent={"token": group, "name": f"{name}, {len(seeds)} seeds"} if len(seeds) > 1 else None,
    )


def group_of(inputs: dict[str, Any]) -> str:
    """What the runs have in common that differ in their seed alone."""
    return digest({**inputs, "seed": None, "experiment": os.environ.get("DVC_EXP_NAME")})[:32]


def data_sha256(job: Job) -> str:
    """Of the raw table; where the data is simulated, of the packed training split."""
    return str(job.summary.get("table_sha256", job.plan["sha256"]["train"]))


def dataset_of(job: Job) -> dict[str, Any]:
    """The fields of mlflow.entities.Dataset."""
    summary, params = job.summary, job.params.preprocess
    table = None if isinstance(params, Rally) else files.raw_dir(job.workload) / params.table
    source = files.relative(table) if table else "stages/data/rally.py"
    profile = {"num_sequences": summary["num_sequences"], "features": summary["features"]}
    if "classes" in summary:
        profile["num_classes"] = len(summary["classes"])
    return {
        "name": job.workload,
        "digest": data_sha256(job)[:16],
        "source_type": "local",
        "source": json.dumps({"uri": source}),
        "schema": None,
        "profile": json.dumps(profile),
    }

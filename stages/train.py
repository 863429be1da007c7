"""Train one workload's model on one device.

In: the packed splits and their plan, the hardware, params.yaml. Out, in results/runs/<workload>/<device>/: what is deterministic
(`best.safetensors`, `last.safetensors`, `model.json`, `history.csv`), apart from that what was measured (`timings.csv`, `timings.json`, and
`measured.json`: where, when and of what), and `journal.json`, the MLflow run. A killed training goes on from its checkpoint; Ctrl+C once
finishes the epoch and saves, twice stops at once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stages import files
from stages.closure import closure, named_by
from stages.files import hardware_file, packed_dir, preset_file, read_json, run_dir
from stages.models import Shape
from stages.params.loading import load_params, load_workload
from stages.params.parsing import flatten
from stages.params.schema import Rally
from stages.records import journal as tracking
from stages.records import provenance
from stages.records.history import (
    RUN_METRICS,
    Record,
    circumstances,
    device_sentence,
    epoch_metrics,
    history_row,
    memory_tags,
    summarize,
    timing_row,
)
from stages.records.terminal import Interruption, Progress
from stages.tasks import Task, open_task
from stages.training.workload import JobFiles

if TYPE_CHECKING:  # torch is imported in `main`, after mlflow's process has started
    from stages.records.checkpoint import Checkpoint
    from stages.training.trainer import Epoch, Trainer

    # Makes the same training on the CPU: (its state, what was done about memory) -> fit
    Elsewhere = Callable[[dict[str, Any] | None, list[str]], Trainer]

# What preprocess learned from the data, which a new table must be treated with too.
LEARNED = ("features", "classes", "mean", "std", "target")
# Checkpoints take at most this share of the time; otherwise one is never older than these seconds, or an epoch.
CHECKPOINT_SHARE = 0.01
CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class Job(JobFiles):
    """One training as the files describe it."""

    inputs: dict[str, Any]
    preset: str

    @classmethod
    def more(cls, workload: str, device: str) -> dict[str, Any]:
        return {"inputs": read_inputs(workload, device), "preset": read_json(preset_file(workload))["preset"]}

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


def main(workload: str, device: str) -> None:
    job = Job.of(workload, device)
    journal = tracking.start()
    status = "FAILED"
    try:
        from stages.records.checkpoint import Checkpoint
        from stages.training.memory import may_finish_on_cpu, translate_oom

        elsewhere = partial(on_the_cpu, job) if may_finish_on_cpu(device, job.identity, job.params.train) else None
        checkpoint = Checkpoint.of(workload, device, job.inputs)
        with checkpoint.locked(), Interruption() as interruption:
            trainer, record = begin(job, checkpoint, elsewhere)
            open_run(job, trainer, record, journal)
            trainer = run_epochs(job, trainer, record, checkpoint, journal, interruption, elsewhere)
            with translate_oom(trainer.oom):
                refuse_changed_inputs(job, trainer, record, checkpoint)
                result = write_results(job, trainer, record, journal)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        known = journal.end(status)
    files.write_json(
        run_dir(workload, device) / "tracking.json", {"token": record.token, "experiment": workload, **known}
    )
    checkpoint.path.unlink(missing_ok=True)
    timed = "no epoch of it was timed there"
    if result["num_epochs_measured"]:
        timed = (
            f"epoch {result['epoch_seconds']:.3f} s (median of {result['num_epochs_measured']}), "
            f"{result['samples_per_second']:,.0f} samples/s"
        )
    finished = ", finished on the CPU" if trainer.oom.moved else ""
    print(f"{workload} on {job.identity['name']}{finished}: {timed}, {result['train_seconds']:.1f} s in all")


def begin(job: Job, checkpoint: Checkpoint, elsewhere: Elsewhere | None) -> tuple[Trainer, Record]:
    """A new training, or an interrupted one where it stopped, with the record to go on with."""
    import torch

    from stages.training.memory import OutOfMemory, translate_oom

    saved, found = checkpoint.load(torch.device("cpu"))
    if found:
        print(
            found + (f", epoch {saved['fit']['epochs_done']} of {job.params.train.epochs}" if saved else ""), flush=True
        )
    record = Record(**saved["record"]) if saved else Record(tracking.new_token())
    state = saved["fit"] if saved else None
    kind = state["device"] if state else job.identity["kind"]
    try:
        trainer = make_trainer(job, kind, state)
        with translate_oom(trainer.oom):
            prepare(job, trainer, record)
        return trainer, record
    except OutOfMemory as error:
        if elsewhere is None or kind == "cpu":
            raise
        actions = error.actions
    trainer = elsewhere(state, actions)
    with translate_oom(trainer.oom):
        prepare(job, trainer, record)
    return trainer, record


def make_trainer(job: Job, kind: str, state: dict[str, Any] | None) -> Trainer:
    """The device, the model and its training, all from the seed, and the data; then where `state` says."""
    import torch

    from stages import models
    from stages.training.batches import load_split
    from stages.training.device import open_device
    from stages.training.memory import OomPolicy, advice, translate_oom
    from stages.training.trainer import Trainer

    settings = job.params.train
    if kind == "cpu" != job.identity["kind"] and settings.precision == "fp16":
        settings = replace(settings, precision="fp32")  # of the two the CPU has only this
    device = open_device({**job.identity, "kind": kind}, settings.threads, settings.deterministic, settings.precision)
    with translate_oom(OomPolicy(advice=advice(device, settings.precision))):
        train, val = (
            load_split(files.packed_file(job.workload, job.device, split, job.plan), device, "host")
            for split in ("train", "val")
        )
        torch.manual_seed(settings.seed)
        model = models.build(settings.model, job.shape).to(device)
        trainer = Trainer(model, train, val, settings, job.task)
        if state is not None:
            trainer.restore(state)
        if job.plan["residency"] == "device" and not (state and state["oom"]["streams"]):
            trainer.oom.make_resident()
    return trainer


def on_the_cpu(job: Job, state: dict[str, Any] | None, actions: list[str]) -> Trainer:
    """The same training on the CPU, from `state` on, where memory ran out at the end of everything that was `taken`.

    Batches, their order and what augmentation draws are as they would have been: all of it comes from generators on the CPU.
    """
    trainer = make_trainer(job, "cpu", None)
    if state is not None:
        # The CPU's memory is another one: there it begins with whole batches again.
        precision = "fp32" if state["precision"] == "fp16" else state["precision"]
        step = {**state["step"], "accumulation": trainer.step.accumulation}
        trainer.restore({**state, "precision": precision, "step": step, "oom": trainer.oom.state()})
    trainer.oom.actions[:0] = actions
    trainer.oom.moved = True
    trainer.oom.say(f"the training goes on on the CPU, from the start of epoch {trainer.epochs_done + 1}")
    return trainer


def prepare(job: Job, trainer: Trainer, record: Record) -> None:
    """What is found out about a training before it starts: its precision, and where a step's time goes."""
    from stages.diagnosis import probe
    from stages.training import precision

    if trainer.epochs_done:
        return
    if job.params.train.precision == "auto":
        chosen, message = precision.choose(trainer, {**job.identity, "kind": trainer.device.type})
        trainer.set_precision(chosen)
        print(message, flush=True)
    if job.params.train.probe:
        found = probe.probe(trainer)
        if isinstance(found, str):
            record.summary_lines["bound"] = f"not probed: {found}"
        else:
            record.probe, record.not_probed = found.numbers(), found.missing_reasons
            record.summary_lines = {"bound": found.sentence(), "memory": found.memory_sentence()}
            if missing := found.missing_sentence():
                record.summary_lines["not_measured"] = missing
        print(record.summary_lines["bound"], flush=True)


def run_epochs(
    job: Job,
    trainer: Trainer,
    record: Record,
    checkpoint: Checkpoint,
    journal: tracking.Journal,
    interruption: Interruption,
    elsewhere: Elsewhere | None,
) -> Trainer:
    """Train to the end; return the fit that got there, which is another one where `elsewhere` had to take over."""
    settings, score, num_samples = job.params.train, job.task.score_name, len(trainer.train_split)
    progress = Progress(f"{job.workload} on {job.identity['name']}", settings.epochs, trainer.epochs_done)
    saved_at, save_seconds = time.monotonic(), 0.0
    while trainer.epochs_done < settings.epochs:
        trainer, epoch = next_epoch(trainer, journal, elsewhere)
        check_finite(epoch, checkpoint)
        record.history.append(history_row(epoch, score))
        record.timings.append(timing_row(epoch, num_samples, settings.warmup_epochs, trainer.oom.moved))
        if not trainer.oom.moved:  # of the device asked for
            record.missing_reasons = trainer.missing_reasons
        journal.metrics(epoch_metrics(epoch, num_samples, score), step=epoch.number)
        progress.show(epoch, score, num_samples)

        since = time.monotonic() - saved_at
        due = epoch.number == 1 or since > max(CHECKPOINT_SECONDS, save_seconds / CHECKPOINT_SHARE)
        if (due or interruption.asked) and trainer.epochs_done < settings.epochs:
            start = time.monotonic()
            save(trainer, record, checkpoint)
            saved_at, save_seconds = time.monotonic(), time.monotonic() - start
            if interruption.asked:
                where = files.relative(checkpoint.path)
                print(
                    f"interrupted after epoch {trainer.epochs_done}, saved in {where}; run again to go on", flush=True
                )
                raise KeyboardInterrupt
    progress.close()
    return trainer


def next_epoch(trainer: Trainer, journal: tracking.Journal, elsewhere: Elsewhere | None) -> tuple[Trainer, Epoch]:
    """Move on by an epoch. Where memory runs out for good, it begins again in the fit that `elsewhere` makes, if that may be."""
    from stages.training.memory import OutOfMemory, translate_oom
    from stages.training.trainer import on_cpu

    num_taken, start = len(trainer.oom.actions), None
    try:
        with translate_oom(trainer.oom):
            if elsewhere and not trainer.oom.moved:
                start = on_cpu(trainer.state())
            return trainer, trainer.epoch()
    except OutOfMemory as error:
        if start is None:
            raise
        actions = error.actions
    finally:
        if len(trainer.oom.actions) > num_taken:
            journal.tags(memory_tags(trainer))
    # Outside the `except`: the error holds what lay in the memory that ran out.
    assert elsewhere is not None
    trainer = elsewhere(start, actions)
    journal.tags(memory_tags(trainer))
    return next_epoch(trainer, journal, None)


def save(trainer: Trainer, record: Record, checkpoint: Checkpoint) -> None:
    from stages.training.memory import translate_oom

    with translate_oom(trainer.oom):
        checkpoint.save({"fit": trainer.state(), "record": vars(record)})


def refuse_changed_inputs(job: Job, trainer: Trainer, record: Record, checkpoint: Checkpoint) -> None:
    """DVC would record a result of old inputs under the new ones (treeverse/dvc#11058)."""
    now = read_inputs(job.workload, job.device)
    changed = [name for name in now if now[name] != job.inputs[name]]
    if changed:
        save(trainer, record, checkpoint)
        raise ValueError(
            f"{' and '.join(changed)} of {job.workload} changed while it trained, so the result belongs to neither; "
            "the checkpoint is kept: put back what was changed to use it, or run `dvc repro` again to train on what is there now"
        )


def write_results(job: Job, trainer: Trainer, record: Record, journal: tracking.Journal) -> dict[str, Any]:
    """Write all but journal.json, hand copies to MLflow, return what timings.json holds."""
    from safetensors.torch import save_file

    from stages.training.trainer import snapshot

    out = run_dir(job.workload, job.device)
    for name, weights in {"best": trainer.best_weights, "last": snapshot(trainer.model)}.items():
        with files.replacing(out / f"{name}.safetensors") as temporary:
            save_file(weights, temporary)
    about = {
        "model": asdict(job.params.train.model),
        "shape": asdict(job.shape),
        "task": job.params.task,
        "workload": job.workload,
    }
    files.write_json(out / "model.json", {**about, "preprocessing": preprocessing_of(job)})
    files.write_table(out / "history.csv", record.history)
    files.write_table(out / "timings.csv", record.timings)
    result = summarize(record.timings)
    record.summary_lines["device"] = device_sentence(
        trainer,
        job.identity["kind"],
        sum(row["is_elsewhere"] for row in record.timings),
        {**result, "num_kernels": record.probe.get("num_kernels")},
    )
    if trainer.oom.actions:
        record.summary_lines["out_of_memory"] = f"memory ran out: {', then '.join(trainer.oom.actions)}"
    missing_reasons = {name: why for name, why in record.missing_reasons.items() if result.get(name) is None}
    if not result["num_epochs_measured"]:
        why = f"memory ran out before an epoch after warm-up was timed on {job.identity['kind']}; those on the CPU do not count for it"
        missing_reasons |= dict.fromkeys(("epoch_seconds", "samples_per_second"), why)
    files.write_json(out / "timings.json", result)  # numbers alone: it is a DVC metric
    files.write_json(
        out / "measured.json",
        {
            **circumstances(missing_reasons, job.identity),
            **digests(job.inputs),
            "out_of_memory": trainer.oom.actions,
            "finished_on": trainer.device.type,
            "precision": trainer.step.precision,
            "probe": record.probe,
            "not_probed": record.not_probed,
            "summary_lines": record.summary_lines,
        },
    )

    journal.metrics({name: result[key] for name, key in RUN_METRICS.items()})
    journal.metrics({f"probe/{name.replace(' ', '_')}": value for name, value in record.probe.items()})
    journal.text("".join(f"{key}: {sentence}\n" for key, sentence in record.summary_lines.items()), "answers.txt")
    for name in ("history.csv", "timings.csv"):
        journal.artifact(out / name)
    return result


def open_run(job: Job, trainer: Trainer, record: Record, journal: tracking.Journal) -> None:
    """Tell MLflow what is about to be trained, where, on what, from which code."""
    from stages.training.device import describe

    about, git = describe(trainer.device, job.identity), provenance.git_tags()
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    journal.run(
        record.token,
        experiment=job.workload,
        name=f"{job.workload}-{trainer.device.type}-{time.strftime('%m%d-%H%M%S')}",
        # What two runs may differ in stands among the parameters too: MLflow's compare page shows no tags.
        params={
            **flatten(job.params),
            **{name: about[name] for name in ("device", "device.name", "cpu.threads", "torch")},
            "preset": job.preset,
            "precision": trainer.step.precision,
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
            **memory_tags(trainer),
            **provenance.caller_tags(),
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
        "code": closure("train", named_by(load_workload(workload))),
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
    table = None if isinstance(params, Rally) else files.raw_dir(job.workload) / params.table
    source = files.relative(table) if table else "stages/data/rally.py"
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
            f"; the last good checkpoint is kept in {files.relative(checkpoint.path)}"
            if checkpoint.path.exists()
            else ""
        )
        raise ValueError(
            f"the training loss is {epoch.train_loss} in epoch {epoch.number}{kept}; "
            "try a smaller train.learning_rate, or train.clip_norm 1.0"
        )

"""Score one trained model on the test split.

In: the weights that `evaluate.weights` names, the packed test split. Out, in results/runs/<workload>/<device>/: what is deterministic
(`metrics.json`, `result.json`, `scores.csv`, `confusion.csv`, `predictions.csv`) apart from what was measured (`evaluate.json`), and the
pictures (`plots/`): the result, the training, and for a simulation the score against its noise. Everything is added to the training's
MLflow run.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages import files
from stages.files import prepared_dir, read_json, write_json
from stages.params.schema import Rally, Workload
from stages.records import journal as tracking
from stages.tasks import Evaluation, open_task
from stages.training.workload import JobFiles

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stages.training.memory import OomPolicy

# Makes the model folder one that `mlflow.pyfunc.load_model` loads, through code of this project instead of a pickle.
MLMODEL = """flavors:
  python_function:
    loader_module: stages.predictor
    python_version: {python}
"""
BATCH_SIZE = 1024  # no gradients are kept: what fits in training fits here
NUM_NOISE_SEQUENCES = 500


class Job(JobFiles):
    """One trained model as the files describe it."""

    def read(self, split: str, name: str) -> np.ndarray:
        """An array that preprocess wrote; raises ValueError where it is not the one it wrote."""
        import numpy as np

        recorded = self.summary["sha256"][f"{split}/{name}.npy"]
        path = prepared_dir(self.workload) / split / f"{name}.npy"
        return np.load(files.verified(path, recorded, f"preprocess@{self.workload}"))


def main(workload: str, device: str) -> None:
    job = Job.of(workload, device)
    journal = tracking.start()  # before torch: mlflow is imported in its own process meanwhile
    try:
        trained = read_json(job.folder / "tracking.json")
        journal.run(trained["token"], experiment=workload, name=f"{workload}-{device}", params={}, tags={}, dataset={})
        result, measured = evaluate(job)
        paths = write_files(job, result, measured)
        is_elsewhere = measured["device"] != job.identity["kind"]  # its times are not those of the run's device
        journal.metrics(
            {
                **{f"test/{name}": value for name, value in result.metrics.items()},
                "test/seconds": None if is_elsewhere else measured["evaluate_seconds"],
                "test/samples_per_second": None if is_elsewhere else measured["samples_per_second"],
            }
        )
        if measured["out_of_memory"]:
            journal.tags({"out_of_memory.evaluate": "; ".join(measured["out_of_memory"])})
        for path in paths:
            journal.artifact(path, "evaluation")
        journal.artifact(job.folder / f"{job.params.evaluate.weights}.safetensors", "model", "model.safetensors")
        journal.artifact(job.folder / "model.json", "model")
        journal.text(MLMODEL.format(python=platform.python_version()), "model/MLmodel")
    finally:
        known = journal.end(None)
    found = known.get("run_id", "not known yet")
    score = open_task(job.params.task, job.summary).score_name
    print(
        f"{workload} on {job.identity['name']}: {score} {result.metrics[score]:.4f}; {result.sentence}; MLflow run {found}"
    )


def evaluate(job: Job) -> tuple[Evaluation, dict[str, Any]]:
    """What the test split comes to, and what was measured meanwhile: on the run's device, or on the CPU where that may take over."""
    from stages.training.memory import OutOfMemory, may_finish_on_cpu

    try:
        return evaluate_on(job, job.identity["kind"], [])
    except OutOfMemory as error:
        if not may_finish_on_cpu(job.device, job.identity, job.params.train):
            raise
        actions = error.actions
    return evaluate_on(job, "cpu", actions)


def evaluate_on(job: Job, kind: str, actions: list[str]) -> tuple[Evaluation, dict[str, Any]]:
    """`taken`: what was done about memory before."""
    from stages.machine.regions import measure
    from stages.predictor import load_network
    from stages.training import loop
    from stages.training.batches import load_split, sequential_indices
    from stages.training.device import open_device
    from stages.training.memory import OomPolicy, advice, translate_oom

    settings = job.params.train
    where = open_device({**job.identity, "kind": kind}, settings.threads, settings.deterministic)
    split = load_split(files.packed_file(job.workload, job.device, "test", job.plan), where, "host")
    oom = OomPolicy(splits=[split], advice=advice(where))
    if actions:
        oom.actions += actions
        oom.say("the evaluation is done on the CPU")
    with translate_oom(oom):
        model, _ = load_network(job.folder, job.params.evaluate.weights)
        model.to(where)
        if job.plan["residency"] == "device":
            oom.make_resident()
        batches = lambda: oom.batches(split, sequential_indices(split), BATCH_SIZE)  # noqa: E731
        loop.predict_outputs(model, batches(), oom)  # warm-up: the first pass also allocates and chooses kernels
        with measure(where) as measured:
            outputs = loop.predict_outputs(model, batches(), oom)

        result = open_task(job.params.task, job.summary).evaluate(outputs.cpu(), job.read)
        if isinstance(job.params.preprocess, Rally):
            result.metrics.update(scores_by_noise(job, job.params.preprocess, model, where, oom))
    return result, {
        "device": kind,
        "out_of_memory": oom.actions,
        "evaluate_seconds": measured.seconds,
        "samples_per_second": len(split) / measured.seconds,
        "num_samples": len(split),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "measured_on": platform.node(),
    }


def scores_by_noise(
    job: Job, params: Rally, model: torch.nn.Module, where: torch.device, oom: OomPolicy
) -> dict[str, float]:
    """The score on newly simulated sequences with less and more noise than in training: how much camera the model can do without."""
    import torch

    from stages.data import open_source
    from stages.training import loop
    from stages.training.batches import Split, sequential_indices

    task = open_task(job.params.task, job.summary)
    found = {}
    source = open_source(params.source)
    for factor in source.NOISE_FACTORS:
        simulated = source.with_noise(params, factor, NUM_NOISE_SEQUENCES, job.summary)
        values, targets = torch.from_numpy(simulated.values), torch.from_numpy(simulated.labels)
        split = Split(
            {"values": values, "mask": torch.ones(targets.shape, dtype=torch.bool), "targets": targets}, where
        )
        batches = oom.batches(split, sequential_indices(split), BATCH_SIZE)
        outputs = loop.predict_outputs(model, batches, oom).cpu()
        mask = split.tensors["mask"]
        score = task.score(task.predict(outputs, mask), targets, mask)
        found[f"{task.score_name}_at_noise_{factor * params.noise:g}px"] = score
    return found


def write_files(job: Job, result: Evaluation, measured: dict[str, Any]) -> list[Path]:
    """Write the files and pictures; return those that MLflow gets a copy of."""
    from stages.figures import draw_result, drawing, noise, training

    out, task = job.folder, open_task(job.params.task, job.summary)
    score = task.score_name
    write_json(out / "metrics.json", result.metrics)  # numbers alone: it is a DVC metric
    write_json(out / "result.json", {"score_name": score, "score": result.metrics[score], "sentence": result.sentence})
    write_json(out / "evaluate.json", measured)
    tables = {
        "scores": result.scores,
        "confusion": [{"actual": actual, "predicted": predicted} for actual, predicted in result.confusion],
        "predictions": result.predictions,
    }
    for name, rows in tables.items():
        files.write_table(out / f"{name}.csv", rows)
    num_test = job.summary["num_per_split"]["test"]
    title = f"{job.workload}: {score} {result.metrics[score]:.3f} on {num_test:,} test sequences"
    pictures = {
        "result": draw_result(job.params.task, result.picture, title),
        "training": training.page(job.workload, [files.read_run(job.workload, job.device)]),
    }
    if by_noise := noise_curve(result.metrics, score, job.params):
        pictures["noise"] = noise.noise(*by_noise, f"{job.workload}: {score} against noise")
    for name, figure in pictures.items():
        drawing.save(figure, out / "plots" / f"{name}.png")
    copied = ("metrics.json", "result.json", *(f"{name}.csv" for name in tables))
    return [out / name for name in copied] + [out / "plots" / f"{name}.png" for name in pictures]


def noise_curve(metrics: dict[str, float], score: str, params: Workload) -> tuple[list[float], list[float]] | None:
    """(noise in pixels, score), in order; None for data that has no noise of its own."""
    if not isinstance(params.preprocess, Rally):
        return None
    start = f"{score}_at_noise_"
    points = {float(name[len(start) : -2]): value for name, value in metrics.items() if name.startswith(start)}
    points[params.preprocess.noise] = metrics[score]
    return sorted(points), [points[noise] for noise in sorted(points)]

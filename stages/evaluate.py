"""Score one trained model on the test split.

In: the weights that `evaluate.weights` names, the packed test split. Out, in results/runs/<workload>/<device>/: what is deterministic
(`metrics.json`, `per_class.csv`, `confusion.csv`, `confusion.png`, `predictions.csv`) apart from what was measured (`evaluate.json`).
Everything is added to the training's MLflow run.
"""

import platform
import time
from pathlib import Path
from typing import Any

from stages.params import load_workload
from stages.runtime import store, tracking
from stages.runtime.store import hardware_file, packed_dir, prepared_dir, read_json, run_dir, write_json

# Makes the model folder one that `mlflow.pyfunc.load_model` loads, through code of this project instead of a pickle.
MLMODEL = """flavors:
  python_function:
    loader_module: stages.predictor
    python_version: {python}
"""
BATCH_SIZE = 1024  # no gradients are kept: what fits in training fits here


def main(workload: str, device: str) -> None:
    params, identity = load_workload(workload), read_json(hardware_file(device))
    out, summary = run_dir(workload, device), read_json(prepared_dir(workload) / "summary.json")
    plan, trained = read_json(packed_dir(workload, device) / "plan.json"), read_json(out / "tracking.json")
    journal = tracking.start()  # before torch: mlflow is imported in its own process meanwhile
    try:
        journal.run(trained["token"], experiment=workload, name=f"{workload}-{device}", params={}, tags={}, dataset={})
        metrics, measured = evaluate(workload, device, params, identity, plan, summary)
        journal.metrics(
            {
                **{f"test/{name}": value for name, value in metrics.items()},
                "test/seconds": measured["evaluate_seconds"],
                "test/samples_per_second": measured["samples_per_second"],
            }
        )
        for name in ("metrics.json", "per_class.csv", "confusion.csv", "confusion.png", "predictions.csv"):
            journal.artifact(out / name, "evaluation")
        journal.artifact(out / f"{params.evaluate.weights}.safetensors", "model", "model.safetensors")
        journal.artifact(out / "model.json", "model")
        journal.text(MLMODEL.format(python=platform.python_version()), "model/MLmodel")
    finally:
        known = journal.end(None)
    found = known.get("run_id", "kept in .tandem/journals until the server is back")
    print(
        f"{workload} on {identity['name']}: "
        + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        + f"; MLflow run {found}"
    )


def evaluate(
    workload: str, device: str, params: Any, identity: dict[str, Any], plan: dict[str, Any], summary: dict[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Write the evaluation's files; return the metrics and what was measured."""
    import numpy as np

    from stages.predictor import load_network
    from stages.runtime import loop
    from stages.runtime.batches import in_order, load_split
    from stages.runtime.device import open_device
    from stages.runtime.measure import measure
    from stages.tasks import task_module

    out, task = run_dir(workload, device), task_module(params.task)
    where = open_device(identity, params.train.threads, params.train.deterministic)
    split = load_split(store.packed_file(workload, device, "test", plan), where, plan["residency"])
    model, _ = load_network(out, params.evaluate.weights)
    model.to(where)
    outputs_of = lambda: loop.outputs_of(model, split.batches(in_order(split), BATCH_SIZE))  # noqa: E731
    outputs_of()  # warm-up: the first pass also allocates and chooses kernels
    with measure(where) as measured:
        outputs = outputs_of()

    targets = split.tensors["targets"].to(where)
    predictions = task.predict(outputs)
    confusion = task.confusion_matrix(predictions.cpu(), targets.cpu(), len(summary["classes"]))
    metrics = {**task.scores(confusion), "loss": task.loss(outputs, targets, 0.0).item()}
    classes = [str(name) for name in summary["classes"]]
    confidence = outputs.softmax(dim=1).amax(dim=1).tolist()
    ids = np.load(prepared_dir(workload) / "test" / "ids.npy")
    names = [
        (str(sequence), classes[target], classes[found])
        for sequence, target, found in zip(ids, targets.tolist(), predictions.tolist(), strict=True)
    ]

    write_json(out / "metrics.json", metrics)
    store.write_table(
        out / "per_class.csv",
        [{"class": name, **row} for name, row in zip(classes, task.per_class(confusion), strict=True)],
    )
    store.write_table(
        out / "confusion.csv", [{"actual": actual, "predicted": predicted} for _, actual, predicted in names]
    )
    store.write_table(
        out / "predictions.csv",
        [
            {"sequence": sequence, "actual": actual, "predicted": predicted, "confidence": value}
            for (sequence, actual, predicted), value in zip(names, confidence, strict=True)
        ],
    )
    draw_confusion(
        confusion.tolist(),
        classes,
        f"{workload}: accuracy {metrics['accuracy']:.3f} on {len(split):,} test sequences",
        out / "confusion.png",
    )
    result = {
        "evaluate_seconds": measured.seconds,
        "samples_per_second": len(split) / measured.seconds,
        "num_samples": len(split),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "measured_on": platform.node(),
    }
    write_json(out / "evaluate.json", result)
    return metrics, result


def draw_confusion(cells: list[list[int]], classes: list[str], title: str, path: Path) -> None:
    """True classes as rows. Colours show the share of the row, numbers the count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = max(4.5, 0.42 * len(classes) + 2.5)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shares = [[cell / max(sum(row), 1) for cell in row] for row in cells]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="actual", title=title, xticks=range(len(classes)), yticks=range(len(classes)))
    axes.set_xticklabels(classes, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticklabels(classes)
    if len(classes) <= 30:
        for row, counts in enumerate(cells):
            for column, count in enumerate(counts):
                if count:
                    axes.text(
                        column,
                        row,
                        str(count),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="white" if shares[row][column] > 0.5 else "black",
                    )
    figure.colorbar(image, label="share of the actual class", shrink=0.8)
    with store.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)

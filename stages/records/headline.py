"""The headline figures of a run: as metrics that MLflow sorts first, as texts for its table of runs, and as the
description on a run's page.

The functions take metrics, parameters and tags as MLflow stores them. This module imports neither mlflow nor torch.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

# MLflow sorts metrics by name and groups charts by the part before the slash. The names are short because chart titles
# are narrow. docs/metrics.md defines each metric.
SCORE, EPOCH, RATE, VRAM = "0/1_score", "0/2_epoch_seconds", "0/3_samples_per_second", "0/4_vram_peak_mib"
SOURCES = {
    EPOCH: "time/epoch_seconds_median",
    RATE: "throughput/samples_per_second_median",
    VRAM: "vram/peak_allocated_mib_max",
}
# How the values of several seeds are reduced to one, as in compare.json.
REDUCED: dict[str, Callable[[Sequence[float]], float]] = {
    SCORE: statistics.fmean,
    EPOCH: statistics.median,
    RATE: statistics.median,
    VRAM: max,
}
# The tags that hold the figures as texts: column titles with the unit.
TITLES = {SCORE: "score", EPOCH: "s/epoch", RATE: "samples/s", VRAM: "VRAM MiB"}
REPORT = "results/report.html"
# How the run was trained, in its description: word -> parameter.
REALIZED = {"model": "train.model.name", "precision": "precision", "step": "step", "threads": "threads"}


def score_name(metrics: Mapping[str, float]) -> str:
    """Return the name of the task's score: the validation metric besides the loss. Empty if there is none."""
    found = (name.removeprefix("val/") for name in metrics if name.startswith("val/") and name != "val/loss")
    return next(found, "")


def values_of(figure: str, runs: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the figure of every run, given the runs' metrics; empty if one run lacks it, because a mean would omit
    that run.
    """
    sources = [SOURCES.get(figure, f"test/{score_name(metrics)}") for metrics in runs]
    found = [metrics[source] for metrics, source in zip(runs, sources, strict=True) if source in metrics]
    return found if len(found) == len(runs) else []


def figures(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of one run, or of several that differ in their seed. `runs`: their metrics."""
    known = {name: values_of(name, runs) for name in REDUCED}
    return {name: REDUCED[name](values) for name, values in known.items() if values}


def texts(runs: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Return the figures as texts by title, with the range over several runs: 0.9789 (0.9722 to 0.9889)."""
    shown = {}
    for name, value in figures(runs).items():
        shown[TITLES[name]] = text_of(name, value)
        if len(runs) > 1 and name != RATE:  # the range of the seconds, in the column beside it, implies its range
            values = values_of(name, runs)
            shown[TITLES[name]] += f" ({text_of(name, min(values))} to {text_of(name, max(values))})"
    return shown


def text_of(name: str, value: float) -> str:
    if name == SCORE:
        return f"{value:.4f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def note(
    runs: Sequence[Mapping[str, float]], seeds: Sequence[str], params: Mapping[str, str], tags: Mapping[str, str]
) -> str:
    """Return the Markdown description of a run or of a parent run. `params` and `tags` are those of one run."""
    shown, are_several, score = texts(runs), len(runs) > 1, score_name(runs[-1])
    device = f"{tags.get('device.name', 'an unknown device')} ({tags.get('device', '?')})"
    what = f"The {len(runs)} trainings below, which differ in their seed alone," if are_several else "One training"
    result = f"{score} **{shown[TITLES[SCORE]]}** on the test split" if TITLES[SCORE] in shown else "not evaluated yet"
    sentences = [f"{what} of `{tags.get('workload', '?')}` on {device}: {result}."]
    if are_several:
        sentences.append("Mean of the scores, medians of the times, largest memory; in brackets the range over seeds.")
    if how := [f"{name} {params[key]}" for name, key in REALIZED.items() if key in params]:
        sentences.append(f"{', '.join(how).capitalize()}.")
    if "bound" in params:
        sentences.append(f"A step is {params['bound']}-bound; advice: {params['advice']}.")
    no_vram = "none: a CPU" if tags.get("device", "").endswith("cpu") else "not measured"
    table = {
        f"score ({score})" if score else "score": shown.get(TITLES[SCORE], "none yet"),
        "device": tags.get("device", "?"),
        **{TITLES[name]: shown.get(TITLES[name], "none") for name in (EPOCH, RATE)},
        "VRAM peak, MiB": shown.get(TITLES[VRAM], no_vram),
        "seeds" if are_several else "seed": ", ".join(seeds) or "?",
    }
    ways = [f"Report over all runs: `{REPORT}` in the project's folder on {tags.get('host', 'its machine')}"]
    if url := tags.get("prefect.flow_run"):
        ways.append(f"[run in Prefect]({url})")
    # MLflow puts no space between columns, and at first it shows only the first lines: those are the figures.
    rows = ["| " + " | ".join(f"{cell}&emsp;" for cell in cells) + " |" for cells in (table, table.values())]
    rows.insert(1, "|---" * len(table) + "|")
    return "\n".join([*rows, "", " ".join(sentences), "", f"{'; '.join(ways)}."])

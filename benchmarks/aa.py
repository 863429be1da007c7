"""A/A test of the speed-up interval: compare trainings with themselves and with slower ones. Null trials of the scores'
intervals: compare networks on random labels.

    python -m benchmarks.aa                     # 40 trials of a training against itself, 20 of planted differences
    python -m benchmarks.aa --minutes 10        # as many as fit; the same command resumes
    python -m benchmarks.aa --table             # the results so far; with --file docs/aa.jsonl the published trials
    python -m benchmarks.aa --null 10           # null trials instead, of ten tables each; a few minutes

A trial does what the stage `speed` does (stages/speed.py): five pairs of processes that take turns, one ratio per pair,
and Student's t over the logarithms of the ratios. Both sides use the same device. The kinds of trials:

- same: one configuration against itself. An interval that excludes 1 is a false alarm; 95% intervals give one in
  twenty. The line below the table states the number from which on there are too many: the smallest count that 95%
  intervals reach with a probability of at most 5% (binomial, exact).
- a tenth more: the second side hides one step in eleven, so it does 1.10 times the reported work.
- no kernels: the second side trains without tandem/models/kernels (torch's own GRU, LSTM, attention). The geometric
  mean of its trials measures the slowdown.

A planted difference is found if the interval excludes 1 on the correct side. The workloads and kinds take turns; trials
are most useful when spread over hours and loads. The file has every trial with all its turns. Packed data is required:
run `dvc repro preload` first.

In a null trial, the label is random, of a person or of a sequence, so no network can know it, and each
claim ("beats", "is worse", "they differ") is false. Each table is trained with `--model fitted` and with a GRU; each is
compared with its two baselines as `evaluate` does, the GRU with the fitted model too, and both with each other as
`compare` does. The column "over sequences" has the claims of the same predictions if their groups are ignored.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.markdown import header, row
from benchmarks.peers import split_of, train
from stages.speed import Length, TimedSide, measure_pairs
from tandem import cli
from tandem.comparing.differences import difference
from tandem.comparing.speed_up import SpeedUp, paired_speed_up, ratio_of_turns
from tandem.data import prepare_data
from tandem.data.arrays import PreparedSequences
from tandem.files import ROOT, hardware_file, read_json
from tandem.fitted import baseline
from tandem.importing import new_workload
from tandem.models import Shape
from tandem.params.loading import load_params
from tandem.tasks import Fitted, open_task
from tandem.tasks.groups import name_groups
from tandem.terminal.command import count

if TYPE_CHECKING:
    from tandem.training.trainer import Trainer

WORKLOADS = ("sign", "price")
ENOUGH = 40  # trials of a training against itself; of each planted difference, a quarter
NUM_PAIRS = 5  # of a trial
BOUND = 0.05  # the probability that a count this large is chance
# Of a null table. 0: each sequence has a label of its own. With 30, fewer than six are in the test split.
NULL_PEOPLE = (0, 30, 80)


def a_tenth_more(trainer: Trainer) -> None:
    """Hide one step in eleven: the reported steps take 1.1 times as long."""
    steps, numbers = trainer.training_steps, itertools.count()

    def reported_steps() -> Iterator[int]:
        for num_sequences in steps():
            if next(numbers) % 11 != 10:
                yield num_sequences

    trainer.training_steps = reported_steps  # type: ignore[method-assign]


def no_kernels(trainer: Trainer) -> None:
    from tandem.models.kernels import attention, decoder, gru

    for module in (attention, decoder, gru):
        setattr(module, "is_supported", lambda *_: False)  # noqa: B010


ADAPTATIONS: dict[str, Callable[[Trainer], None] | None] = {
    "same": None, "a tenth more": a_tenth_more, "no kernels": no_kernels,
}  # fmt: skip


def main() -> None:
    options = parse()
    if options.null:
        print(null_table(list(null_trials(options.null))))
        return
    trials = read(options.file)
    if not options.table:
        end = time.monotonic() + 60 * options.minutes
        while (cell := next_cell(trials)) and time.monotonic() < end:
            trial = run(*cell, options.threads)
            options.file.parent.mkdir(parents=True, exist_ok=True)
            with options.file.open("a") as file:
                file.write(json.dumps(trial) + "\n")
            trials.append(trial)
            print(trial_line(trial), flush=True)
    print(table(trials))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="auto", help="of the CPU: a number, or auto, as params.yaml has it (auto)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial after so many")
    parser.add_argument("--file", type=Path, default=ROOT / "results" / "aa.jsonl", help="where trials are kept")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--null", type=count, metavar="TABLES", help="null trials: tables of each number of people")
    options = parser.parse_args()
    if options.threads != "auto" and not (options.threads.isdecimal() and int(options.threads)):
        parser.error(f"--threads is {options.threads!r}; accepted: auto, or a number from 1")
    return options


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def next_cell(done: list[dict[str, Any]]) -> tuple[str, str] | None:
    """The (workload, kind) with the smallest share of its trials; None if all are done."""
    shares = {}
    for kind in ADAPTATIONS:
        for workload in WORKLOADS:
            quota = ENOUGH / len(WORKLOADS) / (1 if kind == "same" else 4)
            num_done = sum(trial["workload"] == workload and trial["kind"] == kind for trial in done)
            shares[workload, kind] = num_done / quota
    cell = min(shares, key=lambda name: shares[name])
    return cell if shares[cell] < 1 else None


def run(workload: str, kind: str, threads: str) -> dict[str, Any]:
    device = load_params().devices[0]
    changes = {"threads": "auto" if threads == "auto" else int(threads)}
    multiple = 10 if kind == "a tenth more" else 1  # a turn hides one step for every ten that it reports
    sides = [
        TimedSide("a", device, changes, None, multiple),
        TimedSide("b", device, changes, ADAPTATIONS[kind], multiple),
    ]
    start, load = time.time(), os.getloadavg()[0]
    pairs = list(measure_pairs(workload, sides, range(NUM_PAIRS), Length()))
    return {
        "workload": workload,
        "kind": kind,
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "nice": os.nice(0),
        "load": load,  # during the minute before the trial
        "took_seconds": time.time() - start,
        "device": read_json(hardware_file(device))["name"],
        "about": pairs[0].about,
        "pairs": [{"seed": pair.seed, "load": round(pair.load, 1), "turns": rounded(pair.turns)} for pair in pairs],
    }


def rounded(turns: dict[str, list[float]]) -> dict[str, list[float]]:
    """Round to six digits, finer than the clock's scatter, because the trials are stored in git."""
    return {side: [float(f"{seconds:.6g}") for seconds in times] for side, times in turns.items()}


def found_by(trial: dict[str, Any]) -> SpeedUp:
    """The speed of side a divided by that of side b."""
    return paired_speed_up([ratio_of_turns(pair["turns"]["b"], pair["turns"]["a"]) for pair in trial["pairs"]])


def trial_line(trial: dict[str, Any]) -> str:
    speed_up = found_by(trial)
    interval = f"{speed_up.ratio:.3f} [{speed_up.low:.3f}, {speed_up.high:.3f}]"
    return (
        f"{trial['at']} {trial['workload']}, {trial['kind']}: {interval}; "
        f"load {trial['load']:.1f}, {trial['took_seconds']:.0f} s"
    )


def table(trials: list[dict[str, Any]]) -> str:
    lines = [header("kind", "workload", "trials", "interval excludes 1", "speed-up", "interval (median)", "load")]
    num_false, num_same = 0, 0
    for kind in ADAPTATIONS:
        of_kind = [trial for trial in trials if trial["kind"] == kind]
        workloads = list(dict.fromkeys(trial["workload"] for trial in of_kind))
        for workload in [*workloads, *(["all"] if len(workloads) > 1 else [])]:
            selected = [trial for trial in of_kind if workload in ("all", trial["workload"])]
            speed_ups = [found_by(trial) for trial in selected]
            clear = [speed_up for speed_up in speed_ups if speed_up.is_clear and (kind == "same" or speed_up.ratio > 1)]
            lines.append(row(kind, workload, len(selected), len(clear), *summary(speed_ups), loads(selected)))
            if kind == "same" and workload in ("all", workloads[-1]):
                num_false, num_same = len(clear), len(selected)
    if num_same:
        lines += ["", limit_sentence(num_false, num_same)]
    return "\n".join(lines)


def summary(found: list[SpeedUp]) -> tuple[str, str]:
    """The geometric mean of the ratios, and the median width as the factor from the ratio to an end of the interval."""
    ratio = statistics.geometric_mean(speed_up.ratio for speed_up in found)
    width = statistics.median(speed_up.high / speed_up.ratio for speed_up in found if speed_up.high is not None)
    return f"{ratio:.3f}", f"within a factor of {width:.3f}"


def loads(trials: list[dict[str, Any]]) -> str:
    values = [trial["load"] for trial in trials]
    return f"{min(values):.1f} to {max(values):.1f}"


def null_trials(num_tables: int) -> Iterator[dict[str, Any]]:
    for num_people in NULL_PEOPLE:
        for number in range(num_tables):
            with tempfile.TemporaryDirectory() as folder:
                yield null_trial(random_people(num_people, 300 + number), Path(folder), f"{number}")


def random_people(num_people: int, seed: int) -> pd.DataFrame:
    """Eight sequences of each person around levels of their own; half of the people are sick, at random.

    Without people, 160 sequences that have a label each.
    """
    draw, num_clips = np.random.default_rng(seed), 8 if num_people else 1
    num = num_people or 160
    labels = draw.permutation(np.repeat(["healthy", "sick"], num // 2))
    levels, parts = draw.normal(size=(num, 3)) * 2, []
    for person in range(num):
        for clip in range(num_clips):
            part = pd.DataFrame(levels[person] + 0.3 * draw.normal(size=(20, 3)), columns=list("xyz"))
            names = {"person": f"p{person:02}", "clip": f"p{person}c{clip}", "t": range(20), "label": labels[person]}
            parts.append(part.assign(**names))
    table = pd.concat(parts)
    return table if num_people else table.drop(columns="person")


def null_trial(people: pd.DataFrame, folder: Path, name: str) -> dict[str, Any]:
    """The number of claims over groups and over sequences, each with the number of comparisons."""
    path, claims, over_sequences, sides = folder / "people.csv", 0, 0, list[Any]()
    people.to_csv(path, index=False)
    has_people = "person" in people
    for words in (["--model", "fitted"], ["--model", "gru", "--epochs", "10"]):
        scratch = folder / f"scratch{len(sides)}"
        scratch.mkdir()
        plan = new_workload.make_plan(cli.parse("new", new_workload, ("people", str(path), *words)), scratch)
        prepared = prepare_data(plan.workload.preprocess, folder, "class")
        assert isinstance(prepared, PreparedSequences)
        summary, trained = prepared.summary, train(plan.workload, 0, prepared)
        task, outputs = trained.task, trained.outputs

        def read(split: str, array: str, prepared: PreparedSequences = prepared) -> Any:
            return prepared.arrays(split)[array]

        if sides:  # the network, which is compared with the fitted model
            training, judges, test = (split_of(prepared.arrays(split)) for split in ("train", "val", "test"))
            model = baseline.fit(training, judges, test, Shape.of(dict(summary), task), task, lambda *_: None)
            task.fitted = Fitted(model.outputs, model.description)
        result = task.evaluate(outputs, read)
        if has_people:
            result = name_groups(result, summary, read)
        claims += num_claims(result.sentence)
        ungrouped = {key: value for key, value in summary.items() if key != "num_groups"}
        alone = open_task("classify", ungrouped)
        alone.fitted = task.fitted
        over_sequences += num_claims(alone.evaluate(outputs, read).sentence)
        sides.append({0: result.predictions})
    first, second = sides
    claims += difference("correct", first, second, has_groups=has_people).verdict == "different"
    over_sequences += difference("correct", first, second).verdict == "different"
    num_people = people["person"].nunique() if has_people else 0
    num_test = summary["num_groups"]["test"] if has_people else 0
    print(f"table {name}, {num_people} people, {num_test} in test: {claims} claims", flush=True)
    return {
        "people": num_people,
        "test_people": num_test,
        "claims": claims,
        "over_sequences": over_sequences,
        "comparisons": 2 * len(task.baselines),  # the fitted model is compared with two, the network with three
    }


def num_claims(sentence: str) -> int:
    """How many baselines, with the fitted model, the sentence calls beaten or better."""
    of_fitted = bool(re.search(r"beats the fitted model|the fitted model \([^)]*\) beats", sentence))
    beaten = sentence.partition(": the network beats ")[2].partition(", does not")[0].partition(", is not")[0]
    return of_fitted + sentence.count("it is worse") + (2 if beaten.startswith("both") else bool(beaten))


def null_table(trials: list[dict[str, Any]]) -> str:
    lines = [header("people", "people in test", "tables", "comparisons", "claims", "claims over sequences")]
    for num_people in NULL_PEOPLE:
        selected = [trial for trial in trials if trial["people"] == num_people]
        tested = sorted(trial["test_people"] for trial in selected)
        sums = [sum(trial[key] for trial in selected) for key in ("comparisons", "claims", "over_sequences")]
        lines.append(row(num_people, " to ".join(map(str, dict.fromkeys(tested))), len(selected), *sums))
    return "\n".join(lines)


def limit_sentence(num_false: int, num_trials: int) -> str:
    too_many = limit(num_trials)
    outcome = "too many: the intervals are too narrow" if num_false >= too_many else "not too many"
    warning = f" {num_trials} trials are few; run at least {ENOUGH}." if num_trials < ENOUGH else ""
    return (
        f"False alarms: {num_false} of {num_trials} ({num_false / num_trials:.1%}), which is {outcome}.\n"
        f"With 95% intervals, {too_many} or more would be too many (binomial, one-sided, {BOUND:.0%}).{warning}"
    )


def limit(num_trials: int) -> int:
    """The smallest number of false alarms that 95% intervals give with a probability of at most BOUND."""
    from scipy.stats import binom

    return int(binom.isf(BOUND, num_trials, 0.05)) + 1


if __name__ == "__main__":
    main()

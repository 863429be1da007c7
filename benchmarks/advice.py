"""Compare the gains that the probe predicts with measured gains.

    python -m benchmarks.advice [--workloads sign pen price rally] [--device cpu] [--rounds 5] [--seconds 2]

The probe (tandem/diagnosis/probe.py) runs at the start of every training and suggests what would make it faster: a
larger batch, another precision, more threads. It tries each change for a few steps. This
benchmark makes every change that the probe tried, promising or not, and trains with it: `Trainer.training_steps`,
with augmentation and the ragged last batch, epoch after epoch. The unchanged settings and all changes take turns in
rounds of --seconds each, after one warm-up round.

A gain is the ratio of sequences per second to the unchanged settings in the same round, as the median over the
rounds: at 1.30 an epoch takes 1/1.30 of the time. `--probes` runs the probe several times to measure its scatter. A
user gets only one probe, so the error in a row is that of the worst probe, and the summary counts single probes. The
rest of the output is the bottleneck of each training, and what the probe did not try, with the reason.

Two threads are compared with one on the same cores: run nothing else on the machine.
"""

import argparse
import copy
import statistics
from dataclasses import replace
from typing import Any

import torch

from benchmarks.markdown import header, machine_sentence, row
from tandem.diagnosis import probe, probe_result
from tandem.training.context import open_prepared
from tandem.training.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workloads", nargs="+", default=["sign", "pen", "price", "rally"], help="blocks of params.yaml"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="after one of warm-up (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, for each change (2)")
    parser.add_argument("--probes", type=int, default=3, help="before and after the rounds, half each (3)")
    options = parser.parse_args()
    print(f"{machine_sentence(options.device)}; device {options.device}\n")
    print(header("workload", "change", "predicted (range)", "measured (range)", "error"))
    answers: list[tuple[float, float]] = []
    remarks = []
    for workload in options.workloads:
        predicted, measured, message = compare(workload, options)
        remarks += [f"{workload}: {sentence}" for sentence in message]
        for name, found in measured.items():
            came = statistics.median(found)
            answers += [(promised, came) for promised in predicted[name]]
            error = max((promised / came - 1 for promised in predicted[name]), key=abs)
            print(row(workload, name, shown(predicted[name]), shown(found), f"{error:+.0%}"), flush=True)
    if answers:
        print(f"\n{summary(answers)}\n")
    print("\n".join(f"- {remark}" for remark in remarks))


def summary(answers: list[tuple[float, float]]) -> str:
    """The errors of single probes. `answers`: (predicted gain, measured gain) for every probe and change."""
    errors = [abs(promised / came - 1) for promised, came in answers]
    gains = [(promised, came) for promised, came in answers if promised >= probe_result.MIN_GAIN]
    less = sum(came - 1 < (promised - 1) / 2 for promised, came in gains)
    return (
        f"A single probe was off by {statistics.median(errors):.1%} in the median, by {max(errors):.0%} at most "
        f"({len(errors)} answers). Of {len(gains)} promised gains of {probe_result.MIN_GAIN} or more, {less} came to "
        "less than half."
    )


def compare(
    workload: str, options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[str]]:
    """Change -> predicted gains of several probes, change -> measured gains, and the first probe's other messages."""
    trainer = open_prepared(workload, options.device)
    changes = probe.alternatives(trainer)
    probes = [probed(trainer) for _ in range(options.probes - options.probes // 2)]
    tried = probes[0].gains
    gains = train({"": trainer} | {name: changed(trainer, changes[name]) for name in tried}, options)
    probes += [probed(trainer) for _ in range(options.probes // 2)]
    predicted = {name: [found.gains[name] for found in probes if name in found.gains] for name in tried}
    not_tried = [f"{name}: {reason}" for name, reason in probes[0].missing_reasons.items() if name in changes]
    return predicted, gains, [probes[0].sentence(), *not_tried]


def probed(trainer: Any) -> probe_result.ProbeResult:
    found = probe.probe(trainer)
    if isinstance(found, str):
        raise SystemExit(f"error: {found}")
    return found


def changed(trainer: Any, changes: probe.Changes) -> Any:
    """Another training with changed settings. It shares only the data with the probed one."""
    model = copy.deepcopy(trainer.model)
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):
            part.flatten_parameters()  # the copied weights are not contiguous: cuDNN would gather them in every step
    return Trainer(model, trainer.train_split, trainer.val_split, replace(trainer.params, **changes), trainer.task)


def train(fits: dict[str, Any], options: argparse.Namespace) -> dict[str, list[float]]:
    """Change -> speed-up over the unchanged settings, round by round."""
    parts = {name: probe.ProbePart(trainer, probe.epochs(trainer.training_steps)) for name, trainer in fits.items()}
    for part in parts.values():
        part.warm_up()
        part.turn(options.seconds)
    gains: dict[str, list[float]] = {name: [] for name in fits if name}
    for _ in range(options.rounds):
        seconds = {name: part.turn(options.seconds) for name, part in parts.items()}
        for name, found in gains.items():
            found.append(seconds[""] / seconds[name])
    return gains


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()

"""Training speed of Tandem and the plain loop by number of sequences, length, width and batch.

    python -m benchmarks.scaling                                     # sign's GRU, all four, 2 to 3 minutes
    python -m benchmarks.scaling --workload pen --axes length width --rounds 7 --seconds 2
    python -m benchmarks.scaling --device cuda                       # also with the step as a CUDA graph

Starts from the workload at its guide's size (`python -m benchmarks.throughput --size guides`) and changes one dimension
at a time; the values are those of VALUES below. Data are random numbers.
benchmarks/throughput.py describes the measurement: one process each, with all values of an axis in turns, so that a
slow minute does not look like a trend.

Expected: samples/s do not fall with the number of sequences; the time of a step grows at most in proportion to its
arithmetic, and hardly at all while a small batch or width leaves the device idle. With many sequences, a round sees
only a part of them, in an epoch's order, so its batches come from the whole data.
"""

import argparse
import statistics
from dataclasses import replace

from benchmarks.contenders import Case, Contender, plain, tandem
from benchmarks.markdown import header, machine_sentence, quartiles, row
from benchmarks.throughput import (
    SIZES,
    WORKLOADS,
    Rounds,
    command,
    measure_rounds,
    measuring,
)  # fmt: skip
from tandem.devices.names import is_accelerator

VALUES = {
    "sequences": [1_000, 10_000, 100_000],
    "length": [10, 20, 50, 100, 200],
    "width": [32, 64, 128, 256, 512],
    "batch": [1, 8, 32, 128, 512],
}
NUM_SEQUENCES = 2048  # if another dimension changes
Entry = tuple[int, str]  # value on the axis, contender


def main() -> None:
    options = parse()
    entered = {"plain": Contender(plain), "tandem": Contender(tandem, is_tandem=True)}
    if is_accelerator(options.device):
        entered["tandem graph"] = Contender(tandem, step="graph", is_tandem=True)
    base = next(case for case in reversed(SIZES["guides"]()) if case.workload == options.workload)
    print(f"{machine_sentence(options.device)}\n\n`{command()}`\n\n{base.name}: {base.summary()}", flush=True)
    for axis in options.axes:
        cases = {value: changed(base, axis, value) for value in VALUES[axis]}
        rounds = measure_rounds(
            {(value, name): (case, loop) for value, case in cases.items() for name, loop in entered.items()}, options
        )
        columns = (axis, "contender", "samples/s", "seconds a step", "times the plain loop")
        print(f"\n## {axis}\n\n{header(*columns)}")
        for entry in rounds.rates:
            print(row_of(entry, cases[entry[0]], rounds), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="sign", help="(sign)")
    parser.add_argument("--axes", nargs="+", choices=tuple(VALUES), default=list(VALUES), help="(all)")
    return measuring(parser, rounds=3, seconds=0.4, threads="1")


def changed(base: Case, axis: str, value: int) -> Case:
    """`base` with `value` on that axis."""
    settings, data = base.settings, base.data
    assert data is not None
    if axis == "batch":
        settings = replace(settings, batch_size=value)
    if axis == "width":
        wider = {"hidden_size": value}
        if hasattr(settings.model, "feedforward_size"):
            wider["feedforward_size"] = value * settings.model.feedforward_size // settings.model.hidden_size
        settings = replace(settings, model=replace(settings.model, **wider))
    if axis == "length":
        data = replace(data, shape=replace(data.shape, max_steps=value))
    number = value if axis == "sequences" else max(NUM_SEQUENCES, settings.batch_size)
    return Case(base.workload, settings, replace(data, num_sequences=number))


def row_of(entry: Entry, case: Case, rounds: Rounds) -> str:
    value, name = entry
    rates = rounds.rates[entry]
    if not rates:
        return row(f"{value:,}", name, f"not measured: {rounds.missing_reasons[entry]}", *[""] * 2)
    step = case.settings.batch_size / statistics.median(rates)
    ratios = quartiles(rounds.ratios(entry, (value, "plain")), ".2f") if rounds.rates[value, "plain"] else ""
    return row(f"{value:,}", name, quartiles(rates, ",.0f"), f"{step:.3g}", ratios)


if __name__ == "__main__":
    main()

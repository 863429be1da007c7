"""Run the GPU checks and benchmarks, and print their tables.

A piece is one or more commands, each a process. Their output goes to <out>/<piece>.txt as it is printed, their exit
statuses to <out>/<piece>.json. If a piece fails, its last lines are shown and the others continue. Finished work is
not repeated. A piece that failed, or that its time limit ended, resumes in a later call at the command where it
stopped, and a training at its checkpoint; those that were ended come after all others, with all the time that is left.
After the speed of `sign`, three sentences answer whether the GPU is used, how much faster it is, and what limits it.
Without a GPU, its pieces are skipped, with the reason; the CPU's are measured.

The trainings run in a copy of the project, <out>/project, so that this project's results and history do not change.
`--list` ends with the required packages: no DVC, no Prefect, no MLflow (the run directories stay in the copy's
`.tandem/`). `--quick` uses a few rounds and epochs to check that everything runs; its numbers mean nothing.

    tandem gpu                       # the remaining pieces, most important first, 25 minutes at most
    tandem gpu --list                # the pieces, their purpose and their progress
    tandem gpu --pieces tests guides # only these; --again repeats finished ones
    tandem gpu --minutes 9           # if a command has a time limit: repeat until all is done
    tandem gpu --table               # the results so far as Markdown, for docs/gpu.md

Exit status: 0 no piece has failed, 1 one has.
"""

import importlib.util
import platform
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown import header, row
from benchmarks.sandbox import shorten
from flows.processes import start, stop
from tandem.comparing.speed_up import SpeedUp
from tandem.devices.hardware import detect_hardware, driver_text
from tandem.devices.names import is_accelerator
from tandem.files import ROOT, locked, read_json, relative, write_json
from tandem.params.loading import load_params
from tandem.runs.run import open_folder
from tandem.terminal.command import DONE, FAILED, Result, WrongArgument

# Package -> module. Tests of servers and of verify are skipped if their packages are missing.
NEEDED = {
    **{name: name for name in ("torch", "numpy", "pandas", "scipy", "safetensors", "tqdm", "psutil", "matplotlib")},
    **{name: name for name in ("pyarrow", "pytest", "jinja2", "ruamel.yaml", "pydantic")},
    "nvidia-ml-py": "pynvml",
    "scikit-learn": "sklearn",
}
# Copied into the copy.
PARTS = ("benchmarks", "flows", "stages", "tandem", "workloads", "params.yaml", "pyproject.toml")
SEED = 0  # of the trainings
SEEDS = [0, 1, 2]  # of the pairs that measure the speed-up: three give an interval. --quick takes two
FIRST = ("device", "hardware", "prepare-")  # other pieces need what they make
CORE_TESTS = "tests/gpu/test_gpu.py"
GRACE_SECONDS = 15.0  # for a process to stop: a training saves a checkpoint
SHOWN_LINES = 15
COMPARED = (
    "workload", "device", "score", "s an epoch", "samples/s", "training, s", "MiB of tensors", "MiB of the process",
    "precision", "what bounds it",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    name: str
    about: str
    commands: tuple[tuple[str, ...], ...]  # a module and its arguments
    seconds: float  # time limit for all of them together
    needs_gpu: bool = True
    in_copy: bool = True  # which has the prepared data; tests run in the project itself
    are_independent: bool = False  # a failed command does not stop the others


def main(options: Namespace) -> Result:
    out = (options.out or ROOT / "results" / ("gpu-quick" if options.quick else "gpu")).absolute()
    if not options.table and (missing := missing_packages()):
        raise ValueError(f"needs {', '.join(NEEDED)}; {missing}")
    all_pieces = pieces(options.quick)
    names = [piece.name for piece in all_pieces]
    if unknown := [name for name in options.pieces or () if name not in names]:
        raise WrongArgument(f"piece {unknown[0]!r} is not known; the pieces are {', '.join(names)}")
    if options.list:
        lines = [f"{piece.name:<13} {about_of(out, piece)['state']:<11} {piece.about}" for piece in all_pieces]
        text = "\n".join([*lines, "", f"needs {', '.join(NEEDED)}: all are installed"])
    else:
        if not options.table:
            identity, no_gpu = machine()
            refuse_another_machine(out, identity)
            chosen = [piece for piece in all_pieces if not options.pieces or piece.name in options.pieces]
            with locked(out / "lock", wait=False) as holder:
                if holder is not None:
                    raise ValueError(f"process {holder} measures into {relative(out)} already")
                copy_project(out / "project", options.quick, not no_gpu)
                run_all(chosen, out, no_gpu, 60 * options.minutes, options.again)
        tables = table(all_pieces, out)
        (out / "table.md").write_text(tables, encoding="utf-8")
        text = tables.rstrip()
    states = {piece.name: {"purpose": piece.about, **about_of(out, piece)} for piece in all_pieces}
    has_failed = any(state["state"] == "failed" for state in states.values())
    return Result(text, {"pieces": states}, FAILED if has_failed else DONE)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--pieces", nargs="+", metavar="NAME", help="run only these (default: all)")
    parser.add_argument("--list", action="store_true", help="list the pieces and their state")
    parser.add_argument("--table", action="store_true", help="print the results so far as Markdown")
    parser.add_argument("--again", action="store_true", help="repeat finished pieces")
    parser.add_argument("--quick", action="store_true", help="few rounds and epochs, to check that everything runs")
    parser.add_argument("--minutes", type=float, default=25.0, help="time limit of this call (25)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="(results/gpu, or results/gpu-quick)")


def pieces(quick: bool) -> list[Piece]:
    """All pieces, most important first. The pieces for the CPU are for comparison."""
    workloads = load_params().workloads

    def tests(markers: str, *more: str) -> tuple[str, ...]:
        return ("pytest", "-m", markers, "-p", "no:cacheprovider", "-q", *more)

    def files_with(mark: str) -> list[str]:
        paths = [
            path for path in (ROOT / "tests").rglob("test_*.py") if f"pytest.mark.{mark}\n" in path.read_text("utf-8")
        ]
        return sorted(path.relative_to(ROOT).as_posix() for path in paths)

    # Each test file is a command, so that an interrupted piece resumes at its file.
    gpu_tests = [name for name in files_with("gpu") if name != CORE_TESTS]

    every = ("sign",) if quick else ("sign", "pen", "price", "rally")  # the benchmarks' own

    # Each workload is a command, so that an interrupted piece resumes at its workload.
    def throughput(size: str, contenders: Sequence[str], *workloads: str) -> tuple[tuple[str, ...], ...]:
        length = ("--rounds", "2", "--seconds", "0.1") if quick else ("--rounds", "5", "--seconds", "1")
        return tuple(
            ("benchmarks.throughput", "--device", "cuda", "--size", size, "--workloads", workload,
             "--contenders", *contenders, *length)
            for workload in workloads
        )  # fmt: skip

    def on(device: str, workload: str) -> tuple[tuple[str, ...], ...]:
        stages = {"preload": (), "train": (str(SEED),), "evaluate": ()}
        return tuple(("tandem.stage", name, workload, device, *seed) for name, seed in stages.items())

    def trainings(workload: str) -> list[Piece]:
        return [
            Piece(f"prepare-{workload}", f"convert the table of {workload}, and fit the model to compare with",
                  prepared(workload), 180, needs_gpu=False),
            Piece(f"{workload}-cuda", f"{workload} trained and evaluated on the GPU", on("cuda", workload), 180),
            Piece(f"{workload}-cpu", f"{workload} trained and evaluated on the CPU", on("cpu", workload), 180,
                  needs_gpu=False),
        ]  # fmt: skip

    def prepared(workload: str) -> tuple[tuple[str, ...], ...]:
        return tuple(("tandem.stage", name, workload) for name in ("preprocess", "baseline"))

    return [
        Piece("device", "driver, versions, kernels, latencies, rates",
              (("benchmarks.latencies", "--device", "cuda"),), 120),
        Piece("hardware", "describe the machine and the code", (("tandem.stage", "hardware"),), 120,
              needs_gpu=False),
        *trainings("sign"),
        Piece("speed", "speed-up over this machine's CPU: sign, in alternation",
              (("tandem.stage", "speed", "sign"),), 180),
        Piece("core", "the most important tests: bits, captures, streaming, resumes",
              (tests("gpu and not gpu_time", CORE_TESTS, *(("-k", "same_bits") if quick else ())),), 180,
              in_copy=False),
        *(piece for name in workloads if name != "sign" for piece in trainings(name)),
        Piece("graph", "a captured step compared with an eager one: sign",
              throughput("guides", ("tandem", "tandem graph"), "sign"), 120),
        Piece("precisions", "a captured step in each precision of the GPU: sign and pen",
              throughput("params", [f"tandem graph, {name}" for name in ("fp32", "tf32", "bf16", "fp16")],
                         *every[:2]), 150),
        Piece("replicate", "sign with the other seeds on the GPU",
              (("tandem.stage", "replicate", "sign", "cuda"), ("tandem.stage", "evaluate", "sign", "cuda")),
              120),
        Piece("streaming", "streamed data, with eager steps, compared with data on the GPU, eager and captured: rally",
              throughput("params", ("tandem, streamed", "tandem", "tandem graph"), every[-1]), 150),
        Piece("probe", "steps after a probe compared with steps before it",
              (tests("gpu", "-s", "tests/diagnosis/test_probe.py",
                     "-k", "profile" if quick else "profile or after_a_probe"),), 60, in_copy=False),
        *(Piece(f"speed-{name}", f"speed-up over this machine's CPU: {name}",
                (("tandem.stage", "speed", name),), 180) for name in workloads if name != "sign"),
        Piece("compare", "the comparison of both devices", (("tandem.stage", "compare"),), 60, needs_gpu=False),
        Piece("guides", "throughput at the guides' sizes, main contenders",
              throughput("guides", ("plain tuned", "tandem", "tandem graph", "floor", "graph floor", "lightning tuned"),
                         *every), 180),
        Piece("tests", "every other test that needs a GPU",
              tuple(tests("gpu and not gpu_time", name)
                    for name in (gpu_tests[:1] if quick else gpu_tests)), 180, in_copy=False, are_independent=True),
        Piece("tests-time", "the tests of speed", (tests("gpu_time", *files_with("gpu_time")),), 180,
              in_copy=False),
    ]  # fmt: skip


def missing_packages() -> str:
    """The missing packages and the command that installs them; empty if there are none."""
    missing = [package for package, module in NEEDED.items() if find_module(module) is None]
    return f"missing here: `{sys.executable} -m pip install {' '.join(missing)}`" if missing else ""


def find_module(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:  # the parent package is missing
        return None


def machine() -> tuple[dict[str, Any], str]:
    """The machine for which the results hold, and why there is no GPU (empty if there is one)."""
    identity = detect_hardware("auto")
    system = {"system": platform.system(), "python": platform.python_version()}
    return {**identity, **system}, identity.get("why_not_cuda", "")


def refuse_another_machine(out: Path, identity: dict[str, Any]) -> None:
    """Results of another machine must not be mixed with this one's."""
    path = out / "machine.json"
    if path.exists() and read_json(path) != identity:
        raise ValueError(
            f"{relative(out)} holds what another machine or another torch measured; use another --out, or "
            "remove that folder"
        )
    write_json(path, identity)


def copy_project(folder: Path, quick: bool, with_gpu: bool) -> None:
    """Copy the current project to where the trainings run; their earlier outputs there stay."""
    from ruamel.yaml import YAML

    for name in PARTS:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    yaml = YAML()
    params = yaml.load(ROOT / "params.yaml")
    params["devices"], params["seeds"] = ["cuda", "cpu"] if with_gpu else ["cpu"], SEEDS[:2] if quick else SEEDS
    if quick:
        shorten(params, epochs=2, warmup_epochs=1, probe=False)
        params["sign"]["train"]["probe"] = True
    yaml.dump(params, folder / "params.yaml")


def run_all(chosen: Sequence[Piece], out: Path, no_gpu: str, seconds: float, again: bool) -> None:
    """Run the pieces in their order. Those that the time has ended follow, with all the time that is left: first the
    one that it ended longest ago, because a command may need more than a whole call.
    """
    end, ended = time.monotonic() + seconds, {piece.name: time_of_end(out, piece) for piece in chosen}
    for number, piece in enumerate(sorted(chosen, key=lambda piece: ended[piece.name]), 1):
        title = f"[{number}/{len(chosen)}] {piece.name}"
        if about_of(out, piece)["state"] == "done" and not again:
            print(f"{title}: done before", flush=True)
            continue
        if piece.needs_gpu and no_gpu:
            print(f"{title}: skipped: no GPU: {no_gpu}", flush=True)
            write_json(out / f"{piece.name}.json", {"state": "skipped", "reason": f"no GPU: {no_gpu}", "commands": []})
            continue
        remaining = end - time.monotonic()
        if remaining < min(60.0, piece.seconds):
            print(f"{title}: the time of this call is over; the same command goes on here", flush=True)
            return
        limit = remaining if ended[piece.name] else min(remaining, piece.seconds)
        print(f"{title}: {piece.about} (at most {limit / 60:.0f} min)", flush=True)
        print(f"    {run_piece(piece, out, limit, again)}", flush=True)
        if piece.name == "speed":
            print(*answer(out / "project/results"), sep="\n", flush=True)


def time_of_end(out: Path, piece: Piece) -> float:
    """When the time ended the piece; 0 if it has not. The first pieces keep their place."""
    is_ended = not piece.name.startswith(FIRST) and about_of(out, piece)["state"] == "unfinished"
    return (out / f"{piece.name}.json").stat().st_mtime if is_ended else 0.0


def answer(results: Path) -> list[str]:
    """Whether the GPU is used, how much faster it is, and what limits it, after `sign` on both devices; empty if one of
    the measurements is missing.
    """
    try:
        lines = open_folder(results / "runs/sign/cuda/train/result" / str(SEED)).timing["summary_lines"]
        speed = read_json(results / "speed/sign.json")
    except (OSError, ValueError):
        return []
    fast = speed["sentence"]
    if "speed_up" in speed:
        fast = f"sign: {SpeedUp(**speed['speed_up']).sentence(*speed['sides'])}"
    bound = [f"sign: {lines['bound']}"] if "bound" in lines else []
    return ["", f"sign: {lines['device']}", fast, *bound, ""]


def run_piece(piece: Piece, out: Path, seconds: float, again: bool) -> str:
    """Run the piece's unfinished commands; return how it ended."""
    path, text = out / f"{piece.name}.json", out / f"{piece.name}.txt"
    records = [] if again or not path.exists() else read_json(path)["commands"]
    end, mode = time.monotonic() + seconds, "a" if records else "w"
    failed: list[str] = []
    is_over = False
    finished = {record["command"] for record in records}
    with text.open(mode, encoding="utf-8") as output:
        for command in piece.commands:
            if shown(command) in finished:
                continue
            began = time.monotonic()
            status = run(command, out / "project" if piece.in_copy else ROOT, output, end - began)
            if status is None:
                is_over = True
                break
            if status != 0:
                failed.append(f"`{shown(command)}`: exit status {status}")
                if not piece.are_independent:
                    break
                continue
            records.append({"command": shown(command), "seconds": time.monotonic() - began})
            write_json(path, {"state": "unfinished", "reason": "", "commands": records})
    origin = {"measured_at": time.strftime("%Y-%m-%d %H:%M"), "commit": commit()}
    state, reason = ("failed", "; ".join(failed)) if failed else ("unfinished" if is_over else "done", "")
    write_json(path, {"state": state, "reason": reason, "commands": records, **origin})
    if state == "unfinished":
        return "its time is over: unfinished; a later call goes on here"
    if not failed:
        return f"done in {sum(record['seconds'] for record in records):.0f} s"
    last = text.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n    ".join([f"failed: {reason}; {relative(text)} ends with:", *last])


def run(command: Sequence[str], folder: Path, output: Any, seconds: float) -> int | None:
    """The exit status of `python -m <command>`; None if it took too long and was stopped with all its children."""
    process = start([*command], output, folder=folder)
    try:
        return process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        return None
    finally:  # also for the rest of its group; Ctrl+C first, so that a training saves
        interrupt = ((signal.SIGINT, GRACE_SECONDS),) if process.poll() is None else ()
        stop(process, (*interrupt, (signal.SIGKILL, GRACE_SECONDS)))


def shown(command: Sequence[str]) -> str:
    words = (relative(Path(word)) if word.startswith(str(ROOT)) else word for word in command)
    return " ".join(["python", "-m", *(f'"{word}"' if " " in word else word for word in words)])


def commit() -> str:
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()


def about_of(out: Path, piece: Piece) -> dict[str, Any]:
    path = out / f"{piece.name}.json"
    return read_json(path) if path.exists() else {"state": "not begun", "reason": "", "commands": []}


# Output for docs/gpu.md.


def table(known: Sequence[Piece], out: Path) -> str:
    """The results as Markdown. The folder may come from another machine: it names the machine that measured."""
    if not (out / "machine.json").exists():
        raise ValueError(f"nothing is measured in {relative(out)} yet; run `make gpu` first")
    identity = read_json(out / "machine.json")
    columns = header("piece", "purpose", "state", "seconds", "measured at", "commit")
    lines = [f"# {identity['name']}", "", hardware_sentence(identity), "", columns]
    for piece in known:
        record = about_of(out, piece)
        state = f"{record['state']}: {record['reason']}" if record["reason"] else record["state"]
        seconds, moment = sum(command["seconds"] for command in record["commands"]), record.get("measured_at", "")
        lines.append(row(piece.name, piece.about, state, f"{seconds:.0f}", moment, record.get("commit", "")))
    lines += ["", *comparison(out)]
    for piece in known:
        if shown_lines := [*markdown(out / f"{piece.name}.txt")]:
            commands = "\n".join(f"    {shown(command)}" for command in piece.commands)
            lines += [f"## {piece.name}: {piece.about}", "", commands, "", *shown_lines, ""]
    return "\n".join(lines) + "\n"


def hardware_sentence(identity: dict[str, Any]) -> str:
    cpu = f"{identity['cpu']['name']}, {identity['cpu']['cores']:g} cores"
    versions = f"torch {identity['torch']}, Python {identity['python']}, {identity['system']}"
    if not is_accelerator(identity["kind"]):
        return f"No GPU ({identity['why_not_cuda']}). {cpu}; {versions}."
    return (
        f"{identity['memory_mib']:,} MiB, compute capability {identity['capability']}, "
        f"{driver_text(identity)}, CUDA {identity['torch_cuda']}; {cpu}; {versions}."
    )


def comparison(out: Path) -> Iterator[str]:
    """Every trained and evaluated workload, a row per device."""
    rows = []
    for path in sorted((out / "project" / "results" / "runs").glob("*/*/evaluate/result/*/score.json")):
        run = open_folder(path)
        timing, score = run.timing["timing"], run.score
        assert score
        cells = [run.workload, run.kind, f"{score['score_name']} {score['metrics'][score['score_name']]:.4f}"]
        cells += [number(timing[name], style) for name, style in (
            ("epoch_seconds", ".4f"), ("samples_per_second", ",.0f"), ("train_seconds", ".1f"),
            ("peak_allocated_mib", ",.0f"), ("process_mib", ",.0f"))]  # fmt: skip
        bound = run.timing["summary_lines"].get("bound", "")
        rows.append(row(*cells, run.train["realized"]["precision"], bound))
    if rows:
        yield header(*COMPARED)
        yield from rows
        yield ""


def number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def markdown(path: Path) -> Iterator[str]:
    """The parts of a piece's output for a document: headings, tables and lists, or its last line."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    selected = [line for line in lines if line.startswith(("| ", "|-", "## ", "- "))]
    before = ""
    for line in selected or lines[-1:]:
        if line[0] != before[:1] and before:
            yield ""
        yield f"#{line}" if line.startswith("## ") else line
        before = line

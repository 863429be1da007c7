"""Every command that a person is told to run, in its cheapest form: the programs read its arguments.

The commands are those of README.md, docs/ and the other documents, of the Makefile, and of `make gpu`. A program is
stopped when it has read its arguments; what it then does is tested elsewhere, or in the long tests below.
"""

import json
import re
import shlex
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from benchmarks import costs, gpu
from tandem import cli
from tandem.stage import STAGES, parse
from tests.projects import ROOT, needs, python, run

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "workloads/README.md")),
    *(ROOT / "docs").glob("*.md"),
]
BENCHMARKS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8")
)
TARGETS = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
PROGRAMS = ("tandem", "python", "python3", "make", "dvc", "pytest")
# Stops each program of COMMANDS when it has read its arguments, and prints what is wrong with which command.
READ = """
import argparse, json, runpy, sys, traceback

class Done(Exception):
    pass

def parse_args(parser, *arguments):
    options, more = parser.parse_known_args(*arguments)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    raise Done

argparse.ArgumentParser.parse_args = parse_args
problems = {}
for command in COMMANDS:
    sys.argv[:] = command
    try:
        runpy.run_module(command[0], run_name="__main__")
    except Done:
        pass
    except SystemExit as end:
        if end.code not in (0, None):
            problems[" ".join(command)] = f"exit status {end.code}"
    except ModuleNotFoundError as error:  # of a benchmark that compares with another library
        if (error.name or "").split(".")[0] in ("benchmarks", "flows", "stages", "tandem", "tests"):
            problems[" ".join(command)] = traceback.format_exc()
    except BaseException:
        problems[" ".join(command)] = traceback.format_exc()
print(json.dumps(problems))
"""


def problems_of(commands: list[list[str]]) -> dict[str, str]:
    """Command -> what is wrong with it; commands are `python -m` with these words. They run in one process."""
    done = python(ROOT, f"COMMANDS = {commands!r}\n{READ}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def documented() -> list[tuple[str, str]]:
    """(document, command) of each command in a block of code, or in backquotes in a sentence."""
    commands = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        quoted = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for line in chain(re.findall(r"^    +[!$]? ?(\S.*)", text, re.MULTILINE), quoted):
            for command in re.split(r" ?(?:&&|;|\||#|>| {2,}) ?", line):
                command = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", command.strip())
                if command.split(" ")[0] in PROGRAMS and " " in command and "..." not in command:
                    commands.append((path.name, command.removesuffix(" \\")))
    return list(dict.fromkeys(commands))


def words_of(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that goes on in the next line
        return []


COMMANDS = documented()


def test_documents_have_commands():
    assert len(COMMANDS) > 100
    assert {words_of(command)[0] for _, command in COMMANDS if words_of(command)} >= {"tandem", "python", "make", "dvc"}


def test_every_benchmark_explains_its_arguments_and_reads_those_of_documents_and_of_make_gpu():
    with_arguments = [name for name in BENCHMARKS if "ArgumentParser" in (ROOT / f"benchmarks/{name}.py").read_text()]
    assert {"costs", "peers"} < {*with_arguments} and len(with_arguments) > 7
    calls = [[f"benchmarks.{name}"] for name in with_arguments] + [["benchmarks.costs", name] for name in costs.COSTS]
    documented, of_gpu = documented_commands_of_python(), commands_of_make_gpu()
    assert documented and len(of_gpu) > 4
    assert problems_of([*([*call, "--help"] for call in calls), *documented, *of_gpu]) == {}


def documented_commands_of_python() -> list[list[str]]:
    """Those with arguments; every module is there."""
    commands, missing = [], []
    for document, command in COMMANDS:
        match words_of(command):
            case ["python" | "python3", "-m", "tandem.stage", *words] if words and words[0].islower():
                assert words[0] in STAGES, (document, command)
            case ["python" | "python3", "-m", module, *words] if module.split(".")[0] in ("benchmarks", "tests"):
                if not find_spec(module):
                    missing.append((document, command))
                elif "ArgumentParser" in Path(find_spec(module).origin).read_text(encoding="utf-8"):
                    commands.append([module, *words])
            case ["python" | "python3", "-m", module, *_] if module.split(".")[0] in ("flows", "tandem", "stages"):
                missing += [] if find_spec(module) else [(document, command)]
    assert not missing
    return commands


def commands_of_make_gpu() -> list[list[str]]:
    """Those of benchmarks, of whole and of quick pieces."""
    benchmarks = []
    for module, *words in (
        command for quick in (False, True) for piece in gpu.pieces(quick) for command in piece.commands
    ):
        if module == "tandem.stage":
            parse(words)
        elif module == "pytest":
            assert all((ROOT / word).is_file() for word in words if word.endswith(".py"))
        elif [module, *words] not in benchmarks:
            benchmarks.append([module, *words])
    return benchmarks


@pytest.mark.parametrize("document", sorted({name for name, _ in COMMANDS}))
def test_every_documented_command_of_tandem_make_and_dvc_is_accepted(document: str):
    for command in (command for name, command in COMMANDS if name == document):
        match words_of(command):
            case ["tandem", "--help"] | ["tandem", "COMMAND", *_]:
                pass
            case ["tandem", name, *words]:
                assert name in cli.COMMANDS, command
                if words and "--help" not in words:  # otherwise it is a name in a sentence
                    cli.parse(name, import_module(cli.COMMANDS[name].module), words)
            case ["make", target, *_] if not target.startswith(("PYTHON=", "-")):
                assert target in TARGETS, command
            case ["dvc", *words] if len(words) > 1 and words[-1] != "-S":
                needs("dvc")
                from dvc.cli import parse_args

                parse_args(words)  # it prints what is wrong, and raises DvcParserError
                for stage in re.findall(r"\b([a-z]+)@", command):
                    assert stage in STAGES, command


def test_every_target_of_make_has_its_commands():
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    planned = run(ROOT, "make", "--dry-run", "--always-make", *TARGETS).stdout
    for module in re.findall(r"python -m ([\w.]+)", planned):
        assert find_spec(module), module
    for name in re.findall(r"^tandem (\w+)", planned, re.MULTILINE):
        assert name in cli.COMMANDS


def test_the_cell_of_the_notebook_installs_what_make_gpu_needs():
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    installed = {word for line in re.findall(r"pip install --quiet (.*)", text) for word in line.split()}
    assert installed | {"torch", "numpy"} == set(gpu.NEEDED)  # pandas brings numpy


@pytest.mark.long
def test_make_gpu_trains_and_evaluates_without_a_gpu(tmp_path: Path):
    pieces = ("hardware", "prepare-sign", "sign-cpu")
    words = ["gpu", "--quick", "--out", str(tmp_path / "out"), "--pieces", *pieces]
    done = run(ROOT, sys.executable, "-m", "tandem.cli", *words)
    states = {name: json.loads((tmp_path / f"out/{name}.json").read_text())["state"] for name in pieces}
    assert set(states.values()) == {"done"}, done.stdout
    assert "| sign | cpu |" in (tmp_path / "out/table.md").read_text()


@pytest.mark.long
def test_every_pytest_command_selects_tests():
    for document, command in COMMANDS:
        match words_of(command):
            case ["python", "-m", "pytest", *words] | ["pytest", *words]:
                done = run(ROOT, sys.executable, "-m", "pytest", "--collect-only", "-q", *words, check=False)
                assert done.returncode == 0, (document, command, done.stdout)


@pytest.mark.long
def test_the_benchmark_of_checkpoints_measures():
    done = run(ROOT, sys.executable, "-m", "benchmarks.costs", "checkpoints", "--workloads", "sign")
    assert re.search(r"^\| sign \| \d+ \| [\d.]+ \| \d+ \| ", done.stdout, re.MULTILINE)


def test_pytest_ends_without_reports_of_leaks(tmp_path: Path):
    needs("triton")
    (tmp_path / "test_it.py").write_text("import triton._C.libtriton\n\ndef test_it(): pass\n")
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-q")
    done = run(ROOT, sys.executable, "-m", "pytest", *options, "--rootdir", str(ROOT), str(tmp_path / "test_it.py"))
    assert "1 passed" in done.stdout and "nanobind" not in done.stdout

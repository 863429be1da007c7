"""The command `tandem`: `tandem COMMAND [arguments]`. COMMANDS lists every command with its module.

A command's module (tandem/terminal/command.py) is imported only when it is called. This module parses the arguments and
prints: the command's text or its JSON document to stdout, an error as one sentence to stderr. `make setup` writes
.venv/bin/tandem, which runs the project that contains the current directory.
"""

import json
import os
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, NoReturn

from tandem.terminal.command import FAILED, INTERRUPTED, NO_ANSWER, CommandError, Result, aligned, sentence_of
from tandem.terminal.messages import similar


class Command(NamedTuple):
    module: str
    purpose: str


COMMANDS = {
    "repro": Command("flows.repro", "run what has changed (dvc repro), then print the results"),
    "status": Command("flows.status", "list what `tandem repro` would run"),
    "new": Command("tandem.importing.new_workload", "create a workload from your data"),
    "check": Command("tandem.checking.command", "test a network before training it"),
    "compare": Command("flows.compare", "compare recorded runs: score, speed, what differs"),
    "verify": Command("flows.verify", "repeat a recorded run, or compare yours with the published ones"),
    "predict": Command("tandem.predicting.command", "apply a trained model to a new table"),
    "sync": Command("tandem.tracking.sync", "publish runs that MLflow's server did not receive"),
    "show": Command("flows.show", "list results and experiments"),
    "doctor": Command("flows.doctor", "check this machine and project"),
    "ui": Command("flows.ui", "run Prefect and MLflow on this machine until Ctrl+C"),
    "gpu": Command("benchmarks.gpu", "run the checks and benchmarks for a GPU"),
}


class Parser(ArgumentParser):
    """Raises CommandError instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; `{self.prog} --help` explains the arguments", NO_ANSWER)


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    name, *rest = arguments
    is_json = "--json" in rest
    with stdout_as_stderr() if is_json else nullcontext():
        text, document, status, then = result_of(name, rest)
        if then:
            print(text, flush=True)
            text, next_document, status, _ = result_of(then[0], then[1:])
            document |= {then[0]: next_document}
    if is_json:
        text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
    try:
        print(text, end="\n" if text else "", flush=True)
    except BrokenPipeError:  # such as `tandem show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def overview() -> str:
    lines = aligned([(name, command.purpose) for name, command in COMMANDS.items()])
    explained = "`tandem COMMAND --help` explains a command, `--json` prints its result as JSON."
    return "\n".join(["usage: tandem COMMAND [arguments]\n", *lines, "", explained])


def result_of(name: str, arguments: Sequence[str]) -> Result:
    """Run a command. An error becomes one sentence on stderr and the document {"error": sentence}."""
    try:
        if name not in COMMANDS:
            hint = similar(name, COMMANDS)
            raise CommandError(f"{name!r} is not a command{hint}; `tandem --help` lists them", NO_ANSWER)
        module = import_module(COMMANDS[name].module)
        result: Result = module.main(parse(name, module, arguments))
        return result
    except KeyboardInterrupt:
        sentence, status = "interrupted", INTERRUPTED
    except CommandError as error:
        sentence, status = str(error), error.status
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("tandem", "flows", "stages", "benchmarks"):
            raise
        sentence, status = f"the package {error.name!r} is not installed here; `make setup` installs it", FAILED
    except (OSError, ValueError) as error:
        sentence, status = sentence_of(error), FAILED
    sentence = " ".join(sentence.split())
    print(f"error: {sentence}", file=sys.stderr)
    return Result("", {"error": sentence}, status)


def parse(name: str, module: ModuleType, arguments: Sequence[str]) -> Namespace:
    """The options of a command. `options.more`: the unknown arguments, of a command that has this option. An option
    that is similar to one of the command's own is a misspelled one.
    """
    parser = make_parser(name, module)
    options, more = parser.parse_known_args(arguments)
    options.words = arguments  # as the user wrote them
    flags = re.findall(r"^  (?:-.*, )?(--[\w-]+)", parser.format_help(), re.MULTILINE)
    unknown = more
    if hasattr(options, "more"):
        options.more = more
        unknown = [word for word in more if word.startswith("-") and similar(word, flags, cutoff=0.75)]
    if unknown:
        parser.error(f"unknown argument {unknown[0]!r}{similar(unknown[0], flags)}")
    return options


def make_parser(name: str, module: ModuleType) -> Parser:
    summary, _, details = (module.__doc__ or "").partition("\n\n")
    parser = Parser(
        f"tandem {name}",
        description=summary,
        epilog=f"{details.strip()}\n\nIn all commands: 2 wrong arguments, 130 interrupted.",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout, the rest to stderr")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    return parser


@contextmanager
def stdout_as_stderr() -> Iterator[None]:
    """Send what this process and its children print to stderr, so that stdout has the JSON document alone."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

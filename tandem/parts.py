"""Components: what params.yaml refers to by name, built in or in the workload's own directory.

    model: {name: gru, hidden_size: 96, ...}      `Network` in tandem/models/gru.py
    model: {name: net.py:TCN, channels: 64}       `TCN` in workloads/<workload>/net.py
    source: source.py:read                        `read` in workloads/<workload>/source.py

The signature of a component is its schema: its parameters, with annotations and defaults, are the keys that params.yaml
accepts. It is read from the syntax tree, so validating params.yaml executes no code of a workload. The first parameter
is what Tandem passes (`shape` for a network, `folder` for a source) and is not a key.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr

from tandem.files import ROOT, relative, workload_dir
from tandem.params.parsing import MAX_WHOLE, nearest, one_line

CHECK_SECONDS = 10.0

# Annotations for the signature of a component: types with limits.
Whole = Annotated[int, Field(strict=True, ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_WHOLE)]
Number = Annotated[float, Field(strict=True)]
Real = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=0.999)]


@dataclass(frozen=True)
class Kind:
    """A kind of component. A built-in one is the class `attribute` of a module in tandem/<package>/."""

    package: str = ""  # without one, there is no built-in component
    attribute: str = ""
    num_passed: int | None = 1  # the number of parameters that Tandem passes; None: all, and there are no keys
    is_function: bool = False  # a class is refused


KINDS = {
    "model": Kind("models", "Network"),  # Network(shape, ...)
    "task": Kind("tasks", "Task", num_passed=None),  # Task(summary)
    "source": Kind(is_function=True),  # read(folder, ...)
    "metric": Kind(num_passed=None, is_function=True),  # metric(predictions, targets, mask)
    "loop": Kind(num_passed=None),  # train(run, model, train, val)
}


class Section:
    """A mapping in params.yaml. Error messages of its `check` begin with the key."""

    # Not `strict`, which would refuse a mapping for a dataclass. The types of the values are strict instead.
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class TeacherForcing(Section):
    """The share of the decoder's inputs that are true values, from the first epoch to the last."""

    lists_defaults = True
    start: Share = 1.0
    end: Share = 0.0
    decay: Literal["linear", "exponential"] = "linear"


TYPES: dict[str, Any] = {
    "int": Annotated[int, Field(strict=True, ge=-MAX_WHOLE, le=MAX_WHOLE)],
    "float": Number,
    "bool": StrictBool,
    "str": StrictStr,
    **{
        name: globals()[name] for name in ("Whole", "Positive", "Number", "Real", "Share", "Fraction", "TeacherForcing")
    },
}
LIMITS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"}  # of Annotated[int, Field(ge=1)]
ACCEPTED = "int, float, bool, str, Literal[...], Annotated[int, Field(ge=1)], or a type of tandem/parts.py"


class Part(Section):
    """The parsed keys of a component: `name` and its parameters. `component` is set on each subclass."""

    lists_defaults = True  # `literal` includes keys at their default: a record must not change with a default
    component: ClassVar["Component"]
    name: str

    if TYPE_CHECKING:  # a parameter of the component

        def __getattr__(self, name: str) -> Any: ...

    @property
    def parameters(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}  # type: ignore[arg-type]

    def build(self, *given: Any) -> Any:
        """Import the component and call it with what Tandem passes and the parameters."""
        return self.component.load()(*given, **self.parameters)

    def __reduce__(self) -> tuple[Any, ...]:  # pickle does not find a class that is made at run time
        component = self.component
        identity = component.kind, component.name, component.module, component.attribute, component.path
        return restore, (*identity, self.parameters)


@dataclass(frozen=True, eq=False)
class Component:
    """A class or function that params.yaml names. `constants` are the literal attributes of a class."""

    kind: str  # of KINDS
    name: str
    module: str
    attribute: str
    path: Path
    parameters: tuple[tuple[str, Any, Any], ...]  # name, type, default (or MISSING)
    constants: dict[str, Any]
    check: ast.FunctionDef | None
    arguments: tuple[str, ...] = ()  # the names of all its parameters, with those that Tandem passes

    def load(self) -> Callable[..., Any]:
        """Import the component. Raises ValueError if the module cannot be imported."""
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.attribute)
        except ModuleNotFoundError as error:
            raise not_installed(self.path, error.name or "") from error
        return found

    def check_imports(self) -> None:
        """Raises ValueError if its file, or one that it imports from its directory, needs a package that is missing.

        It looks only at imports at the top of a file, and executes none.
        """
        waiting, seen = [self.path], set()
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            for name, level in top_imports(path):
                if not level:
                    if importlib.util.find_spec(name.partition(".")[0]) is None:
                        raise not_installed(path, name.partition(".")[0])
                elif (beside := path.parent / f"{name.partition('.')[0]}.py").is_file():
                    waiting.append(beside)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of the component's code into a ValueError of one sentence with the file and the line."""
        try:
            yield
        except ModuleNotFoundError as error:
            raise not_installed(self.path, error.name or "") from error
        except Exception as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error):  # not a mistake in the code
                raise
            frames = [each for each in traceback.extract_tb(error.__traceback__) if is_beside(each.filename, self.path)]
            place = f"{relative(Path(frames[-1].filename))}, line {frames[-1].lineno}" if frames else self.place
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(one_line(f"{place}: {kind}{error}")) from error

    @property
    def place(self) -> str:
        """`workloads/<workload>/source.py:read`, for messages."""
        return f"{relative(self.path)}:{self.attribute}"

    @property
    def schema(self) -> type[Part]:
        return schema_of(self)

    def run_check(self, parameters: dict[str, Any]) -> None:
        """Call the component's static method `check`, if it has one, with the parameters that it takes.

        It may use only them and Python's built-in functions, because its module is not imported. Raises the ValueError
        that it raises.
        """
        if self.check is None:
            return
        function = ast.FunctionDef(**{**vars(self.check), "decorator_list": [], "returns": None})
        for argument in (*function.args.args, *function.args.kwonlyargs):
            argument.annotation = None
        wanted = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        given = {name: value for name, value in parameters.items() if name in wanted}
        code = f"{ast.unparse(ast.fix_missing_locations(function))}\n\n\n{function.name}(**{given!r})\n"
        if self.module.startswith("tandem."):
            exec(code, {})  # noqa: S102
            return
        # The code of a workload runs in a process of its own, for a limited time.
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"its `check` in {relative(self.path)} did not end within {CHECK_SECONDS:g} s") from None
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise ValueError(reason.removeprefix("ValueError: "))


def not_installed(path: Path, name: str) -> ValueError:
    return ValueError(
        f"{relative(path)} imports {name!r}, which is not installed; add it to requirements.own.txt "
        f"and run `make setup`, or write `from .{name} import ...` if it is a file beside it"
    )


def is_beside(file: str, path: Path) -> bool:
    return Path(file).parent == path.parent


def top_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (module, number of leading dots) of the imports at the top of a file."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):  # `read_version` or the import reports it
        return
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((name, node.level) for name in names)


def restore(kind: str, name: str, module: str, attribute: str, path: Path, parameters: dict[str, Any]) -> Part:
    """The part that was pickled."""
    schema: Any = read_component(kind, name, module, attribute, path).schema
    part: Part = schema(name=name, **parameters)
    return part


MISSING = object()


@cache
def schema_of(component: Component) -> type[Part]:
    """The dataclass of the component's keys."""
    keys: list[Any] = [("name", Literal[component.name])]  # type: ignore[valid-type]
    for name, kind, default in component.parameters:
        keys.append((name, kind) if default is MISSING else (name, kind, field(default=default)))
    made: type[Part] = make_dataclass(component.attribute, keys, bases=(Part,), frozen=True, kw_only=True)
    made.component = component
    return made


@cache
def built_in(kind: str) -> dict[str, Component]:
    """The built-in components of a kind: every module of its package that has its class."""
    package, attribute = KINDS[kind].package, KINDS[kind].attribute
    found = {}
    for path in sorted((ROOT / "tandem" / package).glob("[a-z]*.py")) if package else ():
        if f"class {attribute}:" in (text := path.read_text(encoding="utf-8")) or f"class {attribute}(" in text:
            found[path.stem] = read_component(kind, path.stem, f"tandem.{package}.{path.stem}", attribute, path)
    return found


def find(kind: str, name: Any, workload: str) -> Component:
    """The component `name` of a workload. Raises ValueError that names what is accepted."""
    known = built_in(kind)
    if not isinstance(name, str) or ":" not in name:
        if name in known:
            return known[name]
        accepted = f"{nearest(name, known)}, or" if known else "; accepted:"
        raise ValueError(f"is {name!r}{accepted} FILE.py:NAME in workloads/{workload}/")
    file, _, attribute = name.partition(":")
    path = workload_dir(workload) / file
    if path.suffix != ".py" or path.parent != workload_dir(workload) or not path.stem.isidentifier():
        raise ValueError(f"is {name!r}; FILE.py:NAME must name a Python file in workloads/{workload}/")
    if not path.is_file():
        raise ValueError(f"is {name!r}, but there is no {relative(path)}")
    return read_component(kind, name, f"workloads.{workload}.{path.stem}", attribute, path)


def read_component(kind: str, name: str, module: str, attribute: str, path: Path) -> Component:
    """Read the signature of `attribute` in the file from its syntax tree. Raises ValueError with the line."""
    return read_version(kind, name, module, attribute, path, path.stat().st_mtime_ns)


@cache
def read_version(kind: str, name: str, module: str, attribute: str, path: Path, modified: int) -> Component:
    """The component in the file as it was at that time: equal parts have one class."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"is {name!r}; {relative(path)}{line}: {one_line(getattr(error, 'msg', error))}") from None
    kinds = (ast.ClassDef, ast.FunctionDef)
    known = {node.name: node for node in tree.body if isinstance(node, kinds)}
    if attribute not in known:
        raise ValueError(
            f"is {name!r}; {relative(path)} has no class or function {attribute!r}{nearest(attribute, known)}"
        )
    node = known[attribute]
    if KINDS[kind].is_function and isinstance(node, ast.ClassDef):
        raise ValueError(f"is {name!r}; {relative(path)}, line {node.lineno}: {attribute} is a class, not a function")
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    called: ast.FunctionDef | None = node if isinstance(node, ast.FunctionDef) else methods.get("__init__")
    where = f"{relative(path)}, line {node.lineno}: {attribute}"
    num_passed = KINDS[kind].num_passed
    if num_passed is not None and called is None:
        raise ValueError(f"is {name!r}; {where} has no __init__ of its own, whose parameters would be the keys")
    parameters: Iterator[tuple[str, Any, Any]] = iter(())
    if num_passed is not None and called is not None:
        num_passed += isinstance(node, ast.ClassDef)  # self
        parameters = parameters_of(called, num_passed, f"{relative(path)}, line {called.lineno}: {attribute}")
    return Component(
        kind,
        name,
        module,
        attribute,
        path,
        tuple(parameters),
        dict(constants_of(node)),
        methods.get("check") if isinstance(node, ast.ClassDef) else None,
        tuple(each.arg for part in ("posonlyargs", "args", "kwonlyargs") for each in getattr(called.args, part))
        if called
        else (),
    )


def parameters_of(called: ast.FunctionDef, num_given: int, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, type, default) of each parameter after those that Tandem passes."""
    arguments = called.args
    if arguments.vararg or arguments.kwarg:
        raise ValueError(
            f"{where} has `*args` or `**kwargs`; write out its parameters, which are the keys of params.yaml"
        )
    positional = [*arguments.posonlyargs, *arguments.args]
    if len(positional) < num_given:
        raise ValueError(f"{where} must take what Tandem passes as its first parameter: `shape`, or `folder`")
    padding = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*padding, *arguments.defaults], strict=True)][num_given:]
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        told = f"{where}: {argument.arg}"
        if argument.annotation is None:
            raise ValueError(f"{told} has no annotation; write one: {ACCEPTED}")
        kind = type_of(argument.annotation, told)
        yield argument.arg, kind, MISSING if default is None else default_of(default, kind, told)


def type_of(node: ast.expr, where: str) -> Any:
    """The type of an annotation."""
    if isinstance(node, ast.Attribute):
        node = ast.Name(node.attr)
    if isinstance(node, ast.Name) and node.id in TYPES:
        return TYPES[node.id]
    if isinstance(node, ast.Subscript):
        outer = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal" and all(isinstance(each, ast.Constant) for each in inner):
            return Literal[tuple(each.value for each in inner)]  # type: ignore[attr-defined]
        if outer == "Annotated" and all(isinstance(each, ast.Call) for each in inner[1:]):
            limits = {word.arg: word.value for call in inner[1:] for word in call.keywords}  # type: ignore[attr-defined]
            if set(limits) <= LIMITS and all(isinstance(value, ast.Constant) for value in limits.values()):
                values = {name: value.value for name, value in limits.items()}
                return Annotated[type_of(inner[0], where), Field(**values)]
    raise ValueError(f"{where} has the annotation {ast.unparse(node)!r}; accepted: {ACCEPTED}")


def default_of(node: ast.expr, kind: Any, where: str) -> Any:
    if isinstance(node, ast.Call) and kind is TeacherForcing:
        return TeacherForcing()
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{where} has the default {ast.unparse(node)!r}; it must be a number, text, true or false"
        ) from None


def constants_of(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that are literals, such as `tasks = ("forecast",)`."""
    for each in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            try:
                yield each.targets[0].id, ast.literal_eval(each.value)
            except ValueError:
                continue

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
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictStr

from tandem.files import REAL_ROOT, ROOT, own_line, relative, workload_dir
from tandem.terminal.messages import nearest, one_line

CHECK_SECONDS = 10.0
# A model in MLflow contains this module and the components in a package of another name
# (tandem/predicting/model_package.py).
PREFIX = __name__.removesuffix("tandem.parts")
MAX_WHOLE = 2**63 - 1  # the largest value that tensors and databases can store

# Annotations for the signature of a component: types with limits.
Whole = Annotated[int, Field(strict=True, ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_WHOLE)]
Number = Annotated[float, Field(strict=True)]
Real = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=0.999)]


@dataclass(frozen=True)
class ComponentKind:
    """A kind of component. A built-in one is the class `attribute` of a module in one of `packages` of tandem/."""

    packages: tuple[str, ...] = ()  # without one, there is no built-in component
    attribute: str = ""
    passed: str = ""  # what Tandem passes as the first parameter; without it all are passed, and there are no keys
    tables: tuple[str, ...] = ()  # built-in names that are no component
    is_function: bool = False  # a class is refused
    arguments: tuple[str, ...] = ()  # the names of the parameters of a function
    optional: tuple[str, ...] = ()  # names of further ones that it gets if it has them


COMPONENT_KINDS = {
    "model": ComponentKind(("models", "fitted"), "Network", passed="shape"),  # Network(shape, ...)
    "task": ComponentKind(("tasks",), "Task"),  # Task(summary)
    "source": ComponentKind(passed="folder", tables=("sequences", "series"), is_function=True),  # read(folder, ...)
    "metric": ComponentKind(arguments=("predictions", "targets", "mask"), optional=("predict", "source")),
    "loop": ComponentKind(arguments=("run", "model", "train", "val")),
}


class Section:
    """A mapping in params.yaml. Error messages of its `check` begin with the key."""

    # Not `strict`, which would refuse a mapping for a dataclass. The types of the values are strict instead.
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class TeacherForcing(Section):
    """The share of the decoder's inputs that are true values, from the first epoch to the last."""

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

    component: ClassVar["Component"]
    name: str

    if TYPE_CHECKING:  # a parameter of the component

        def __getattr__(self, name: str) -> Any: ...

    @property
    def parameters(self) -> dict[str, Any]:
        return {key.name: getattr(self, key.name) for key in fields(self) if key.name != "name"}  # type: ignore[arg-type]

    def build(self, *passed: Any) -> Any:
        """Import the component and call it with what Tandem passes and the parameters."""
        return self.component.load()(*passed, **self.parameters)

    def __reduce__(self) -> tuple[Any, ...]:  # pickle does not find a class that is made at run time
        component = self.component
        identity = component.kind, component.name, component.module, component.attribute, component.path
        return restore, (*identity, self.parameters)


@dataclass(frozen=True, eq=False)
class Component:
    """A class or function that params.yaml names.

    Of a class, `constants` are its literal attributes, `methods` the module that defines each method, and `bases` the
    classes of this project that it is derived from, such as `tandem.tasks.Task`. All of them include what it inherits.
    """

    kind: str  # of COMPONENT_KINDS
    name: str
    module: str
    attribute: str
    path: Path
    parameters: tuple[tuple[str, Any, Any], ...]  # name, type, default (or MISSING)
    constants: dict[str, Any]
    methods: dict[str, str]
    bases: tuple[str, ...]
    check: ast.FunctionDef | None
    arguments: tuple[str, ...] = ()  # the names of all its parameters, with those that Tandem passes

    def load(self) -> Callable[..., Any]:
        """Import the component. Raises ValueError if it imports something that is not there."""
        try:
            attribute: Callable[..., Any] = getattr(importlib.import_module(PREFIX + self.module), self.attribute)
        except ModuleNotFoundError as error:
            raise missing_import(self.path, error.name or "") from error
        return attribute

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of the component's code into a ValueError of one sentence with the file and the line."""
        try:
            yield
        except ModuleNotFoundError as error:
            raise missing_import(self.path, error.name or "") from error
        except Exception as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error):  # not a mistake in the code
                raise
            place = own_line(error, self.path.parent) or self.place
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(one_line(f"{place}: {kind}{error}")) from error

    @property
    def place(self) -> str:
        """`workloads/<workload>/source.py:read`, for messages."""
        return f"{relative(self.path)}:{self.attribute}"

    @cached_property
    def schema(self) -> type[Part]:
        """The dataclass of its keys."""
        keys: list[Any] = [("name", Literal[self.name])]  # type: ignore[name-defined]
        keys += [(name, kind, field(default=default)) for name, kind, default in self.parameters]
        schema: type[Part] = make_dataclass(self.attribute, keys, bases=(Part,), frozen=True, kw_only=True)
        schema.component = self
        return schema

    def run_check(self, parameters: dict[str, Any]) -> None:
        """Call the component's static method `check`, if it has one, with the parameters that it takes.

        It may use only them and Python's built-in functions, because its module is not imported. Raises the ValueError
        that it raises.
        """
        if self.check is None:
            return
        function = ast.FunctionDef(**{**vars(self.check), "decorator_list": [], "returns": None})
        for argument in arguments_of(function):
            argument.annotation = None
        names = [argument.arg for argument in arguments_of(function)]
        values = {name: value for name, value in parameters.items() if name in names}
        code = f"{ast.unparse(ast.fix_missing_locations(function))}\n\n\n{function.name}(**{values!r})\n"
        if self.module.startswith("tandem."):
            exec(code, {})  # noqa: S102
            return
        # The code of a workload runs in a process of its own, for a limited time.
        try:
            process = subprocess.run(
                [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"its `check` in {relative(self.path)} did not end within {CHECK_SECONDS:g} s") from None
        if process.returncode:
            reason = process.stderr.strip().rpartition("\n")[2]
            raise ValueError(reason.removeprefix("ValueError: "))


def restore(kind: str, name: str, module: str, attribute: str, path: Path, parameters: dict[str, Any]) -> Part:
    """The part that was pickled."""
    schema: Any = read_component(kind, name, module, attribute, path).schema
    part: Part = schema(name=name, **parameters)
    return part


def absent_text(path: Path) -> str:
    """Say that a file or folder of a workload is not there. An experiment may run in a copy of what git tracks."""
    name = relative(path)
    if REAL_ROOT != ROOT and (REAL_ROOT / name).exists():
        return f"git does not track {name}, so the experiment lacks it; run `git add {name}` and try again"
    siblings = [file.name for file in path.parent.glob("*.py")]
    return f"there is no {name}{nearest(path.name, siblings) if siblings else ''}"


def missing_import(path: Path, module: str) -> ValueError:
    """The error about a file of a workload that imports `module`, which cannot be found."""
    name = module.removeprefix(PREFIX)
    if name.split(".")[0] == "workloads":
        file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        return ValueError(f"{relative(path)} imports {name}, but {absent_text(file)}")
    step = "add it to requirements.own.txt and run `make setup`"
    if (path.parent / f"{module}.py").is_file():
        step = f"write `from .{module} import ...`, because it is a file in the same folder"
    return ValueError(f"{relative(path)} imports {module!r}, which is not installed; {step}")


@cache
def built_in(kind: str) -> dict[str, Component]:
    """The built-in components of a kind, by name: every module of its packages that has its class."""
    attribute, packages, components = COMPONENT_KINDS[kind].attribute, COMPONENT_KINDS[kind].packages, {}
    paths = [path for package in packages for path in (ROOT / "tandem" / package).glob("[a-z]*.py")]
    for path in sorted(paths, key=lambda path: path.stem):
        if f"class {attribute}:" in (text := path.read_text(encoding="utf-8")) or f"class {attribute}(" in text:
            module = f"tandem.{path.parent.name}.{path.stem}"
            components[path.stem] = read_component(kind, path.stem, module, attribute, path)
    return components


def find(kind: str, name: Any, workload: str) -> Component:
    """The component `name` of a workload. Raises ValueError that names what is accepted."""
    components = built_in(kind)
    if not isinstance(name, str) or ":" not in name:
        if isinstance(name, str) and name in components:
            return components[name]
        names = (*components, *COMPONENT_KINDS[kind].tables)
        accepted = f"{nearest(name, names)}, or" if names else "; accepted:"
        raise ValueError(f"is {name!r}{accepted} FILE.py:NAME in workloads/{workload}/")
    file, _, attribute = name.partition(":")
    path = workload_dir(workload) / file
    if path.suffix != ".py" or path.parent != workload_dir(workload) or not path.stem.isidentifier():
        raise ValueError(f"is {name!r}; FILE.py:NAME must name a Python file in workloads/{workload}/")
    if not path.is_file():
        raise ValueError(f"is {name!r}, but {absent_text(path)}")
    return read_component(kind, name, f"workloads.{workload}.{path.stem}", attribute, path)


def read_component(kind: str, name: str, module: str, attribute: str, path: Path) -> Component:
    """Read the signature of `attribute` in the file from its syntax tree. Raises ValueError with the line."""
    # A class may be derived from one in another file of the folder.
    modified = max(file.stat().st_mtime_ns for file in path.parent.glob("*.py"))
    return read_version(kind, name, module, attribute, path, modified)


@cache
def read_version(kind: str, name: str, module: str, attribute: str, path: Path, modified: int) -> Component:
    """The component in the file as it was at that time: equal parts have one class."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
        classes = lineage(module, path, attribute)[::-1]  # bases first
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        file = Path(getattr(error, "filename", None) or path)
        raise ValueError(f"is {name!r}; {relative(file)}{line}: {one_line(getattr(error, 'msg', error))}") from None
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if attribute not in definitions:
        raise ValueError(
            f"is {name!r}; {relative(path)} has no class or function {attribute!r}{nearest(attribute, definitions)}"
        )
    node = definitions[attribute]
    if COMPONENT_KINDS[kind].is_function and isinstance(node, ast.ClassDef):
        raise ValueError(f"is {name!r}; {relative(path)}, line {node.lineno}: {attribute} is a class, not a function")
    methods = functions_in(node.body) if isinstance(node, ast.ClassDef) else {}
    called: ast.FunctionDef | None = node if isinstance(node, ast.FunctionDef) else methods.get("__init__")
    place = f"{relative(path)}, line {node.lineno}: {attribute}"
    if COMPONENT_KINDS[kind].arguments:
        check_arguments(node, COMPONENT_KINDS[kind], f"is {name!r}; {place}")
    passed, parameters = COMPONENT_KINDS[kind].passed, []
    if passed:
        if called is None:
            raise ValueError(f"is {name!r}; {place} needs an __init__; its parameters are the keys")
        passed_names = ("self", passed) if isinstance(node, ast.ClassDef) else (passed,)
        called_place = f"is {name!r}; {relative(path)}, line {called.lineno}: {attribute}"
        parameters = list(parameters_of(called, passed_names, called_place))
    constants = {key: value for _, class_node in classes for key, value in constants_of(class_node)}
    return Component(
        kind,
        name,
        module,
        attribute,
        path,
        tuple(parameters),
        {key: value for key, value in constants.items() if value is not MISSING},
        {method: origin for origin, class_node in classes for method in functions_in(class_node.body)},
        tuple(f"{origin}.{class_node.name}" for origin, class_node in classes[:-1]),
        methods.get("check"),
        tuple(argument.arg for argument in arguments_of(called)) if called else (),
    )


def check_arguments(node: ast.ClassDef | ast.FunctionDef, kind: ComponentKind, place: str) -> None:
    """Raises ValueError, whose message begins with `place`, unless the node is a function with these parameters."""
    signature = f"def {node.name}({', '.join(kind.arguments)})"
    if isinstance(node, ast.ClassDef):
        raise ValueError(f"{place} is a class; accepted: a function, {signature}")
    arguments, names, count = node.args, [argument.arg for argument in arguments_of(node)], len(kind.arguments)
    is_called = (*(argument.arg for argument in (*arguments.posonlyargs, *arguments.args)[:count]),) == kind.arguments
    if not is_called or {*names[count:]} - {*kind.optional} or arguments.vararg or arguments.kwarg:
        more = f", then {' and '.join(kind.optional)} if it needs them" if kind.optional else ""
        raise ValueError(f"{place} has the parameters ({ast.unparse(arguments)}); accepted: {signature}{more}")


def parameters_of(called: ast.FunctionDef, passed: Sequence[str], place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, type, default) of each parameter after those that Tandem passes (`passed`)."""
    arguments = called.args
    if arguments.vararg or arguments.kwarg:
        raise ValueError(
            f"{place} has `*args` or `**kwargs`; write out its parameters, which are the keys of params.yaml"
        )
    positional = [*arguments.posonlyargs, *arguments.args]
    first = positional[len(passed) - 1] if len(positional) >= len(passed) else None
    if first is None or getattr(first.annotation, "id", "") in TYPES:  # the first one is a key of params.yaml
        received = ast.unparse(arguments)
        raise ValueError(f"{place} has the parameters ({received}); write `{passed[-1]}`, which Tandem passes, first")
    padding = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*padding, *arguments.defaults], strict=True)][len(passed) :]
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        parameter = f"{place}: {argument.arg}"
        if argument.annotation is None:
            raise ValueError(f"{parameter} has no annotation; write one: {ACCEPTED}")
        kind = type_of(argument.annotation, parameter)
        yield argument.arg, kind, MISSING if default is None else default_of(default, kind, parameter)


def type_of(node: ast.expr, place: str) -> Any:
    """The type of an annotation."""
    if isinstance(node, ast.Attribute):
        node = ast.Name(node.attr)
    if isinstance(node, ast.Name) and node.id in TYPES:
        return TYPES[node.id]
    if isinstance(node, ast.Subscript):
        outer = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal" and all(isinstance(item, ast.Constant) for item in inner):
            return Literal[tuple(item.value for item in inner)]  # type: ignore[attr-defined]
        if outer == "Annotated" and all(isinstance(item, ast.Call) for item in inner[1:]):
            limits = {word.arg: word.value for call in inner[1:] for word in call.keywords}  # type: ignore[attr-defined]
            if set(limits) <= LIMITS and all(isinstance(value, ast.Constant) for value in limits.values()):
                values = {name: value.value for name, value in limits.items()}
                return Annotated[type_of(inner[0], place), Field(**values)]
    raise ValueError(f"{place} has the annotation {ast.unparse(node)!r}; accepted: {ACCEPTED}")


def default_of(node: ast.expr, kind: Any, place: str) -> Any:
    if isinstance(node, ast.Call) and kind is TeacherForcing:
        return TeacherForcing()
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{place} has the default {ast.unparse(node)!r}; it must be a number, text, true or false"
        ) from None


def constants_of(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class, such as `tasks = ("forecast",)`. The value is MISSING if it is no literal."""
    for statement in node.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Name):
            try:
                yield target.id, ast.literal_eval(statement.value)
            except ValueError:
                yield target.id, MISSING


def functions_in(body: Sequence[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def arguments_of(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def lineage(module: str, path: Path, attribute: str) -> list[tuple[str, ast.ClassDef]]:
    """Return (module, class) of a class and of its bases, in the order in which Python looks up an attribute.

    It leaves out bases from other projects. Empty if `attribute` is not a class.
    """
    package = module.rpartition(".")[0]
    names: dict[str, str] = {}  # name in this file -> its dotted name
    for node in ast.parse(path.read_bytes(), str(path)).body:
        if isinstance(node, ast.ImportFrom):
            origin = (node.module or "").removeprefix(PREFIX)
            if node.level == 1:
                origin = f"{package}.{origin}".rstrip(".")
            names |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname: alias.name.removeprefix(PREFIX) for alias in node.names if alias.asname}
        elif isinstance(node, ast.ClassDef):
            if node.name == attribute:
                break
            names[node.name] = f"{module}.{node.name}"
    else:
        return []
    classes = {f"{module}.{attribute}": (module, node)}
    for base in node.bases:
        first, dot, rest = ast.unparse(base).partition(".")
        origin, _, name = f"{names.get(first, first)}{dot}{rest}".rpartition(".")
        place = ROOT.joinpath(*origin.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if origin.split(".")[0] in ("tandem", "workloads") and file.is_file():
                for ancestor in lineage(origin, file, name):
                    key = f"{ancestor[0]}.{ancestor[1].name}"
                    classes.pop(key, None)  # a base that two classes share comes after both
                    classes[key] = ancestor
    return list(classes.values())

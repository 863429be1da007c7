"""The block of a new workload as text, and its insertion into params.yaml, which otherwise does not change."""

import io
import re
from contextlib import suppress
from dataclasses import fields
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from tandem.importing.recipe import CLOSED_FORM
from tandem.params import loading, schema
from tandem.params.schema import usual_values

DEFAULTS = {field.name: field.default for field in fields(schema.Train)}  # MISSING: a key that a block must have
VARIED = ("precision", "step", "threads")
MAX_IN_BRACES = 66  # characters of a mapping, as Python writes it
# The comment after a key of the block.
COMMENTS = {
    "preprocess": "docs/params.md describes the keys and their values",
    "groups": "or a column: all sequences with one value (a person, a device, a day) stay in the same split",
    "window": "in rows; a window lies within rows of one label (tandem/data/windows.py)",
    "model": "chosen by the task and the size of the data (docs/recipes.md)",
    "augment": "0 disables one (tandem/training/random_draws.py)",
    "warmup_epochs": "excluded from the timing statistics",
    "step": "auto: one CUDA graph if possible; eager, graph, compile (torch.compile)",
    "probe": "measure the bottleneck before the first epoch (a second or two, or ten steps), and suggest changes",
    "threads": "auto: the fastest number at every moment, which changes no bit of the result; or a whole number",
    "evaluate": "last, or best by validation loss",
}
OF_CLOSED_FORM = {
    "epochs": "fitted in closed form",
    "learning_rate": "not used in closed form",
    "probe": "",
    "evaluate": "last: fitted to train and val; best: fitted to train",
}


def make_block(name: str, headline: str, task: str, preprocess: dict[str, Any], settings: dict[str, Any]) -> str:
    """The workload's block of params.yaml, without what is a default, except for what people vary."""
    takes_no_steps = settings["model"]["name"] in CLOSED_FORM
    varied = ("threads",) if takes_no_steps else VARIED
    weights = "last" if takes_no_steps else schema.built_in_attributes(task).usual_weights
    train = {**{key: DEFAULTS[key] for key in varied}, **usual_values(schema.Train), **settings}
    block = {
        "task": task,
        "preprocess": preprocess,
        "preload": usual_values(schema.Preload),
        "train": {
            key: train[key] for key in DEFAULTS if key in train and (key in varied or train[key] != DEFAULTS[key])
        },
        "evaluate": {**usual_values(schema.Evaluate), "weights": weights},
    }
    text = to_yaml({name: block})
    for key, comment in {**COMMENTS, **(OF_CLOSED_FORM if takes_no_steps else {})}.items():
        text = re.sub(rf"^( {{2,4}}{key}:.*)", rf"\1 # {comment}" if comment else r"\1", text, flags=re.MULTILINE)
    return f"# {headline}\n{text}"


def to_yaml(value: dict[str, Any]) -> str:
    """`value` as YAML 1.2, laid out as DVC's writer does: `dvc exp run -S` then changes no other line."""
    text = io.StringIO()
    YAML().dump(styled(value), text)
    return text.getvalue()


def styled(value: Any) -> Any:
    """`value` in block style. A mapping without mappings is in braces if it has a list or fits in a line.

    DVC's writer puts lists into block style unless they are in braces. Its parser rejects `:` and `?` in braces.
    """
    if isinstance(value, list):
        return [styled(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    styled_value = CommentedMap({key: styled(entry) for key, entry in value.items()})
    has_list = any(isinstance(entry, list) for entry in value.values())
    is_nested = any(isinstance(entry, dict) for entry in value.values())
    is_odd = any({*":?"} & {*str(entry)} for entry in value.values())
    if not is_nested and not is_odd and (has_list or len(str(value)) <= MAX_IN_BRACES):
        styled_value.fa.set_flow_style()
    return styled_value


def from_yaml(text: str) -> Any:
    return YAML(typ="safe").load(text)


def with_workload(text: str, name: str, block: str) -> str:
    """params.yaml with `name` in `workloads` and `block` after the other blocks; all other characters stay.

    Raises ValueError if the result does not hold the old params and the new block.
    """
    before = from_yaml(text)
    after = {**before, "workloads": [*before["workloads"], name], **from_yaml(block)}
    newline = "\r\n" if "\r\n" in text else "\n"
    block = block.replace("\n", newline)
    nodes = {key.value: (key.start_mark.index, value) for key, value in YAML().compose(text).value}
    if list(nodes)[-1] == "presets":  # it stays last, with the comment above it
        place = len(re.sub(r"(^#.*\n)*\Z", "", text[: nodes["presets"][0]], flags=re.MULTILINE))
        block += newline
    else:
        place = len(text)
        block = newline * (1 if text.endswith(newline) else 2) + block
    workloads = nodes["workloads"][1]
    end, entry = workloads.value[-1].end_mark.index, f", {name}"
    if not workloads.flow_style:  # a new line, after the last one's comment
        end += len(re.split(r"[\r\n]", text[end:], maxsplit=1)[0])
        entry = f"{newline}{' ' * workloads.start_mark.column}- {name}"
    for index, inserted in sorted([(place, block), (end, entry)], key=lambda insertion: insertion[0], reverse=True):
        text = text[:index] + inserted + text[index:]
    with suppress(YAMLError):
        if from_yaml(text) == after:
            loading.parse_params(after)
            return text
    raise ValueError(
        "params.yaml is laid out in a way that cannot be added to; write `workloads` as a list in brackets on one line "
        "and run again"
    )

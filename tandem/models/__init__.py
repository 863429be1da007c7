"""The networks that are trained in steps; tandem/fitted has the others. Each module of this package with a class
`Network` is one that params.yaml can name (tandem/parts.py).

`Network(shape, **parameters)`: its signature defines the keys of params.yaml. Its forward pass
`forward(values (B, T, F) float, mask (B, T) bool, True: a real step)` returns `(B, num_outputs)`, or
`(B, T, num_outputs)` if `shape.per_step` requires one output per step.

Attributes that are read from the source: `tasks` (default: all tasks), `is_fitted_in_closed_form`, and the static
method `check(...)`, which raises ValueError for parameters that do not go together. Importing this package does not
import torch.

A training asks whether a built network has these attributes; an own network may have them too:

    checkpoint_activations         whether it recomputes activations; set to True if memory runs out (executor.py)
    fit_initial(splits, ...)       initializes weights from train and val before the first step (opening.py); baselines
                                   then know val too
    selection(), describe_selection(score_name)    which candidate it chose, for train.json and the terminal

Legend of shapes, here and in the models: B sequences, T steps, F features, D or H model width, C outputs.
"""

from dataclasses import dataclass
from typing import Any

from tandem.parts import Part, Positive


@dataclass(frozen=True)
class Shape:
    """The sizes of a network that follow from the data and the task."""

    num_features: Positive
    num_outputs: Positive
    max_steps: Positive
    per_step: bool

    @classmethod
    def of(cls, summary: dict[str, Any], task: Any) -> "Shape":
        """`summary` is the summary.json of preprocess, `task` a Task of tandem/tasks."""
        return cls(len(summary["features"]), task.num_outputs, summary["max_steps"], task.per_step)

    def outputs(self, num_sequences: int, num_steps: int) -> tuple[int, ...]:
        """The shape of a network's outputs for so many sequences and steps."""
        return (num_sequences, *((num_steps,) if self.per_step else ()), self.num_outputs)


def build(config: Part, shape: Shape) -> Any:
    """Build an untrained network on the CPU from `config`, the parsed `train.model` of params.yaml."""
    return config.build(shape)

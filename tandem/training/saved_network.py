"""A trained network, read from its files. Whatever this module imports is in every model in MLflow
(tandem/predicting/model_package.py), so it imports little.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from tandem import models
from tandem.files import damaged, read_json, relative
from tandem.models import Shape
from tandem.params import parsing
from tandem.parts import find

PREDICTION_BATCH = 1024  # may exceed the training batch: without gradients no activations are stored


def load_network(folder: Path, weights: str) -> tuple[nn.Module, dict[str, Any]]:
    """Load `<weights>.safetensors` from `folder`. Returns the network in eval mode on the CPU, and model.json.

    Raises ValueError if one of the two files is visibly damaged. It does not detect flipped bits in the weights.
    """
    path = folder / f"{weights}.safetensors"
    description = read_json(folder / "model.json")
    with parsing.prefixed(relative(folder / "model.json")):
        with parsing.prefixed("model.name"):
            component = find("model", description["model"]["name"], description.get("workload", ""))
        config = parsing.parse(component.schema, description["model"], "model")
        network = models.build(config, parsing.parse(Shape, description["shape"], "shape"))
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:  # no such file, or tensors of other shapes
        raise damaged(relative(path), str(error)) from None
    return network.eval(), description

"""The trained model, loaded again without pickle: weights (safetensors) and what is needed to rebuild the network (model.json).

network, about = load_network(Path("results/runs/sign/auto"), "last")
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from stages import models, params


def load_network(folder: Path, weights: str) -> tuple[nn.Module, dict[str, Any]]:
    """The network with the `best` or `last` weights found in `folder`, ready to evaluate on the CPU, and model.json."""
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    config = params.parse(params.Model, about["model"], "model")
    network = models.build(config, about["num_features"], about["num_outputs"], about["max_steps"])
    network.load_state_dict(load_file(folder / f"{weights}.safetensors"))
    return network.eval(), about

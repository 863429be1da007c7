"""The default view of an experiment's runs in MLflow's UI: its columns, their order and their widths.

MLflow 3.15 and later store views that users save as tags of the experiment. `mlflow.sharedViewState.<key>` contains
JSON with a name, two times and the state of the page. An address with `viewStateShareKey=<key>` opens the view
(`store.runs_page`). Imports neither mlflow nor torch.
"""

import base64
import json
import zlib

from tandem.runs.headline import FIGURES

NAME = "Tandem: device, score, speed, memory, verdicts"
MADE_AT = 1_763_769_600_000  # ms; a view that a user has saved again has a later `updatedAt` and is not replaced
# Column, as MLflow writes it -> its width in pixels. The run's name always comes first.
COLUMNS = {
    "tags.`device`": 60,
    **{f"tags.`{each.title}`": width for each, width in zip(FIGURES.values(), (170, 140, 80, 80), strict=True)},
    "tags.`verified`": 110,
    "tags.`compared`": 260,
    "params.`seed`": 60,
    "tags.`host`": 110,
    "tags.`device.name`": 200,
    "attributes.`Duration`": 90,
}


def view() -> str:
    """Return the value of VIEW_TAG."""
    state = {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
        "columnOrder": list(COLUMNS),
        "columnWidths": COLUMNS,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": NAME, "createdAt": MADE_AT, "updatedAt": MADE_AT, "state": f"deflate;{packed}"})

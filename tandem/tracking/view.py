"""The saved view of MLflow's table of runs (MLflow 3.15 and later): its columns, and the address that opens it."""

import base64
import json
import zlib

from tandem.tracking.store import FOR_TRAINING, experiment_page

VIEW = "tandem"  # the key of the view that the publisher saves with an experiment
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # the tag of an experiment in which MLflow looks for it
VIEW_NAME = "Tandem: score, speed, memory"
MADE_AT = 1_763_769_600_000  # ms
# Column, as MLflow writes it -> its width in pixels. The run's name always comes first. Those until `verified` fit in a
# window of 1440 pixels.
COLUMNS = {
    "tags.`score`": 165,
    "tags.`device`": 60,
    "tags.`s/epoch`": 135,
    "tags.`peak memory`": 180,
    "tags.`samples/s`": 125,
    "tags.`verified`": 110,
    "params.`seed`": 60,
    "tags.`host`": 110,
    "tags.`device.name`": 200,
    "attributes.`Duration`": 90,
}
TABLE = {"selectedColumns": list(COLUMNS), "columnOrder": list(COLUMNS), "columnWidths": COLUMNS}


def saved_view() -> str:
    """Return the view of all runs as the value of an experiment's tag VIEW_TAG.

    It is JSON with a name, two times and the state of the page. An address with `viewStateShareKey=<key>` opens it.
    """
    state = {"searchFilter": "", "orderByKey": "attributes.start_time", "orderByAsc": False, **TABLE}
    packed = f"deflate;{base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()}"
    return json.dumps({"name": VIEW_NAME, "createdAt": MADE_AT, "updatedAt": MADE_AT, "state": packed})


def runs_page(server: str, experiment_id: str) -> str:
    """Return the address of an experiment's runs in MLflow's UI, with the columns of the saved view."""
    return f"{experiment_page(server, experiment_id)}?{FOR_TRAINING}&viewStateShareKey={VIEW}"

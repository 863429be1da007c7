"""A training's progress, and the checkpoint that a stopped training leaves, read from the lines that it prints."""

import re
from pathlib import Path

from stages import files

EPOCH = re.compile(r"epoch (?P<number>\d+)/(?P<all>\d+): (?P<about>.+)")
CHECKPOINT = re.compile(r"(?:saved in|(?<!not )going on from) (?P<path>\S+\.pt)\b")


class TrainingProgress:
    """One run of a stage `train@<workload>-<device>-<seed>`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.percent, self.about = 0.0, "no epoch is finished yet"
        self.checkpoint = ""

    def read(self, line: str) -> None:
        if found := EPOCH.match(line):
            self.percent = round(100 * int(found["number"]) / int(found["all"]), 1)
            # The last part is the remaining time, which a card must show first.
            about = ", ".join(reversed(found["about"].split(", ")))
            self.about = f"epoch {found['number']} of {found['all']}: {about}"
        elif found := CHECKPOINT.search(line):
            self.checkpoint = files.relative(Path(found["path"]))  # the stage of an experiment prints an absolute path

    def left(self) -> str:
        """Where the checkpoint is, and how to resume."""
        if self.checkpoint:
            return (
                f"the checkpoint of {self.name} is {self.checkpoint}: "
                "the same run again (Retry in Prefect) goes on from it"
            )
        return f"the same run again (Retry in Prefect) goes on from the last checkpoint of {self.name}, if it has one"

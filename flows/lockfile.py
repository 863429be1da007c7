"""dvc.lock cut off in the middle. DVC writes it in place, so a kill at that moment leaves a part that it refuses to
read, and no `dvc repro` runs any more.

The file is a record only: DVC's run-cache restores what was stored from the same inputs, without running it.
"""

import os
from pathlib import Path

from stages.files import ROOT


def mend(root: Path = ROOT) -> list[str]:
    """Move lock files that are cut off aside; returns a sentence on each. One with marks of a merge conflict stays."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import loads_yaml
    from ruamel.yaml import YAMLError
    from voluptuous import Invalid

    found = []
    for name in ("dvc.lock", "hw/dvc.lock"):
        path, aside = root / name, root / f"{name}.cut"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
        if text is None or "<<<<<<<" in text:
            continue
        try:
            COMPILED_LOCKFILE_SCHEMA(loads_yaml(text))
        except (YAMLError, Invalid):
            os.replace(path, aside)
            found.append(
                f"{name} is cut off (a process was killed while DVC wrote it) and was moved to {name}.cut; "
                "DVC restores from its cache what it has stored"
            )
    return found

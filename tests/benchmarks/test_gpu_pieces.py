"""`make gpu`: which stages it runs, and what happens when the time of a piece ends. tests/test_commands.py runs some of
its pieces.
"""

from itertools import pairwise
from pathlib import Path

from benchmarks.gpu import Piece, about_of, pieces, run_all
from tandem.params.reading import read_yaml
from tests.projects import ROOT


def test_its_pieces_run_every_stage_after_those_it_depends_on(tmp_path: Path):
    """A new stage that is missing here would be found on a card, after minutes."""
    commands = [command for piece in pieces(tmp_path, quick=False) for command in piece.commands]
    first = {name: number for number, (*_, name) in reversed([*enumerate(command[:3] for command in commands)])}
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    assert stages.keys() <= first.keys()
    for before, after in pairwise(("hardware", "preprocess", "baseline", "train", "evaluate", "compare")):
        assert first[before] < first[after], (before, after)


def test_a_piece_that_the_time_ends_is_continued_after_the_others(tmp_path: Path, capsys):
    """Its finished commands are not repeated, it is no failure, and it gets all the time that is left."""
    (tmp_path / "project").mkdir()
    note = "import sys; open('../ran', 'a').write(sys.argv[1])"
    once = "import time; time.sleep(60 * (open('../ran').read().count('b') == 1))"
    slow = Piece("slow", "", (("-c", note, "a"), ("-c", f"{note}\n{once}", "b")), 3, needs_gpu=False)
    quick = Piece("quick", "", (("-c", note, "c"),), 60, needs_gpu=False)
    for state in ("unfinished", "done"):
        run_all([slow, quick], tmp_path, "no GPU", 300, again=False)
        assert about_of(tmp_path, slow)["state"] == state and about_of(tmp_path, quick)["state"] == "done"
    assert (tmp_path / "ran").read_text() == "abcb"
    output = capsys.readouterr().out
    assert output.index("[1/2] quick: done before") < output.rindex("[2/2] slow") and "failed" not in output

"""`make gpu`: which stages it runs, and what happens when the time of a piece ends. tests/test_commands.py runs some of
its pieces.
"""

from itertools import pairwise
from pathlib import Path

from benchmarks.gpu import Piece, about_of, pieces, run_all
from tandem.params.reading import read_yaml
from tests.projects import ROOT

NOTE = "import sys; open('../ran', 'a').write(sys.argv[1])"


def write_modules(out: Path, **modules: str) -> None:
    (out / "project").mkdir()
    for name, code in modules.items():
        (out / "project" / f"{name}.py").write_text(code)


def test_its_pieces_run_every_stage_after_those_it_depends_on():
    """A new stage that is missing here would be found on a card, after minutes."""
    commands = [command for piece in pieces(quick=False) for command in piece.commands]
    first = {name: number for number, (*_, name) in reversed([*enumerate(command[:2] for command in commands)])}
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    assert stages.keys() <= first.keys()
    for before, after in pairwise(("hardware", "preprocess", "baseline", "train", "evaluate", "compare")):
        assert first[before] < first[after], (before, after)


def test_a_piece_that_the_time_ends_is_continued_after_the_others(tmp_path: Path, capsys):
    """Its finished commands are not repeated, it is no failure, and it gets all the time that is left."""
    once = "import time; time.sleep(60 * (open('../ran').read().count('b') == 1))"
    write_modules(tmp_path, note=NOTE, once=f"{NOTE}\n{once}")
    slow = Piece("slow", "", (("note", "a"), ("once", "b")), 3, needs_gpu=False)
    quick = Piece("quick", "", (("note", "c"),), 60, needs_gpu=False)
    for state in ("unfinished", "done"):
        run_all([slow, quick], tmp_path, "no GPU", 300, again=False)
        assert about_of(tmp_path, slow)["state"] == state and about_of(tmp_path, quick)["state"] == "done"
    assert (tmp_path / "ran").read_text() == "abcb"
    output = capsys.readouterr().out
    assert output.index("[1/2] quick: done before") < output.rindex("[2/2] slow") and "failed" not in output


def test_a_piece_that_needs_more_than_a_call_does_not_starve_the_others(tmp_path: Path):
    """Each gets the rest of a call in turn."""
    write_modules(tmp_path, endless=f"{NOTE}; import time; time.sleep(60)")
    endless = [Piece(name, "", (("endless", name),), 0.5, needs_gpu=False) for name in "ab"]
    for seconds in (60.0, 2.0, 2.0, 2.0):
        run_all(endless, tmp_path, "no GPU", seconds, again=False)
    assert (tmp_path / "ran").read_text() == "ababa"


def test_a_piece_takes_three_minutes_at_most_and_measures_one_workload_after_another():
    all_pieces = pieces(quick=False)
    assert max(piece.seconds for piece in all_pieces) <= 180
    [guides] = [piece.commands for piece in all_pieces if piece.name == "guides"]
    selected = [command[command.index("--workloads") + 1 :][:2] for command in guides]
    assert [name for name, following in selected] == ["sign", "pen", "price", "rally"]
    assert all(following.startswith("--") for name, following in selected)

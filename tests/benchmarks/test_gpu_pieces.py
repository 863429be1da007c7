"""`make gpu`: what happens when the time of a piece ends. Its pieces run in tests/test_commands.py."""

from pathlib import Path

from benchmarks.gpu import Piece, about_of, run_all


def test_a_piece_that_the_time_ends_is_continued_after_the_others(tmp_path: Path, capsys):
    """Its finished commands are not repeated, and it is no failure."""
    (tmp_path / "project").mkdir()
    note = "import sys; open('../ran', 'a').write(sys.argv[1])"
    slow = Piece(
        "slow", "", (("-c", note, "a"), ("-c", f"{note}; import time; time.sleep(60)", "b")), 3, needs_gpu=False
    )
    quick = Piece("quick", "", (("-c", note, "c"),), 60, needs_gpu=False)
    for state in ("done", "unfinished"):
        run_all([slow, quick], tmp_path, "no GPU", 300, again=False)
        assert about_of(tmp_path, slow)["state"] == "unfinished" and about_of(tmp_path, quick)["state"] == "done", state
    assert (tmp_path / "ran").read_text() == "abcb"
    output = capsys.readouterr().out
    assert output.index("[1/2] quick: done before") < output.rindex("[2/2] slow") and "failed" not in output

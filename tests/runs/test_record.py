"""What the rows of an epoch say in a sentence."""

import pytest

from tandem.runs.record import overfitting_sentence


def rows(*epochs: tuple[float, float, float]) -> list[dict[str, float]]:
    names = ("train_loss", "val_loss", "val_skill")
    return [{"epoch": number, **dict(zip(names, values, strict=True))} for number, values in enumerate(epochs, start=1)]


RISING = rows((0.9, 0.7, 0.10), (0.8, 0.6, 0.15), (0.6, 0.7, 0.12), (0.5, 0.8, 0.08))


def test_a_validation_that_gets_worse_while_the_network_learns_is_said():
    sentence = overfitting_sentence(RISING)
    assert "lowest after epoch 2 of 4 (0.6) and then rises to 0.8" in sentence
    assert "are scored" not in sentence, "a later evaluation may score other weights"


@pytest.mark.parametrize(
    "history",
    [
        rows((0.9, 0.7, 0.1), (0.8, 0.6, 0.15), (0.6, 0.61, 0.12)),  # by less than a tenth
        rows((0.9, 0.7, 0.1), (0.8, 0.6, 0.15), (0.6, 0.8, 0.2)),  # the score still gets better
        rows((0.9, 0.7, 0.1), (0.5, 0.6, 0.15), (0.6, 0.8, 0.1)),  # the training gets worse too
        rows((0.9, 0.7, 0.1), (0.8, 0.6, 0.15), (0.7, 0.5, 0.3), (0.6, 0.4, 0.35), (0.5, 0.6, 0.1)),  # at the end
        rows((0.9, 0.7, 0.1)),
    ],
)
def test_nothing_is_said_about_a_validation_that_does_not(history: list[dict[str, float]]):
    assert not overfitting_sentence(history)

"""The simulated rallies: a flight on literal numbers, labels where the ball turns, seeds, and the published digests,
which pin everything else of the simulation.
"""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from tandem.comparing import published
from tandem.data import own_source, write_arrays
from tandem.data.arrays import PreparedSequences
from tandem.files import ROOT, raw_dir, read_json
from tandem.params.loading import parse_workload
from tandem.params.parsing import literal
from tandem.params.reading import read_yaml
from tandem.params.schema import OwnSource
from tandem.tasks.detect import Task
from tandem.training.own_metrics import OwnData
from workloads.rally import metrics, simulation
from workloads.rally.simulation import BOUNCE, GRAVITY, HIT, NET, SERVE, fly, rallies

USUAL = {"noise": 2.0, "missed": 0.05, "occlusion": 0.3}
NUM_SEQUENCES, NUM_STEPS = 300, 96


def simulate(
    num_sequences: int, num_steps: int, seed: int, noise: float, missed: float, occlusion: float
) -> tuple[np.ndarray, np.ndarray]:
    values, labels = simulation.simulate(num_sequences, num_steps, seed, [noise], missed, occlusion)
    return values[0], labels


@pytest.fixture(scope="module")
def flights() -> tuple[np.ndarray, np.ndarray]:
    return rallies(NUM_SEQUENCES, NUM_STEPS, np.random.default_rng(0))


def alone(labels: np.ndarray, event: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences and frames of an event with no other one, and no end of the window, within 3 frames."""
    sequences, frames = np.nonzero(labels == event)
    around = frames[:, None] + np.arange(-3, 4)
    inside = ((around >= 0) & (around < labels.shape[1])).all(axis=1)
    sequences, frames, around = sequences[inside], frames[inside], around[inside]
    single = (labels[sequences[:, None], around] > 0).sum(axis=1) == 1
    return sequences[single], frames[single]


def steps(path: np.ndarray, sequences: np.ndarray, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ball's way (K, 3) in the last whole frame before an event, and in the first one after it."""
    before = path[sequences, frames - 1] - path[sequences, frames - 2]
    after = path[sequences, frames + 2] - path[sequences, frames + 1]
    return before, after


def test_equal_seeds_give_equal_arrays_and_fewer_sequences_the_first_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "BLOCK", 16)
    values, labels = simulate(40, 32, 7, **USUAL)
    for count in (1, 21):
        again_values, again_labels = simulate(count, 32, 7, **USUAL)
        assert np.array_equal(again_values, values[:count]) and np.array_equal(again_labels, labels[:count])
    assert not np.array_equal(values[:16], values[16:32])
    assert not np.array_equal(simulate(1, 32, 8, **USUAL)[0], values[:1])


@pytest.mark.parametrize("drag", [0.0, simulation.DRAG])
def test_a_flight_is_the_parabola_and_drag_slows_as_its_closed_form_says(drag: float) -> None:
    """Half a second: upwards and sideways without drag, straight on without gravity."""
    position, velocity = np.zeros((3, 1)), np.array([[40.0], [0.0], [0.0]])
    gravity = np.array([0.0 if drag else GRAVITY])
    for _ in range(60):
        position, velocity = fly(position, velocity, gravity, 1 / 120, drag=drag)
    growth = 1 + drag * 40.0 * 0.5
    fallen, speed = (0.0, 0.0) if drag else (-GRAVITY / 8, -GRAVITY / 2)
    assert velocity[:, 0] == pytest.approx([40.0 / growth, 0.0, speed], abs=1e-9)
    assert position[:, 0] == pytest.approx([math.log(growth) / drag if drag else 20.0, 0.0, fallen], abs=1e-3)


def test_events_are_where_the_ball_turns(flights: tuple[np.ndarray, np.ndarray]) -> None:
    """Upwards with less energy at a bounce, to the other side at a stroke, and hardly on at the net."""
    path, labels = flights
    places, fewest = {event: alone(labels, event) for event in (BOUNCE, SERVE, HIT, NET)}, {NET: 20}
    turns = {event: steps(path, *place) for event, place in places.items()}
    assert all(len(before) > fewest.get(event, 150) for event, (before, _) in turns.items())
    before, after = turns[BOUNCE]
    assert (before[:, 2] < 0).all() and (after[:, 2] > 0).all() and (after[:, 2] < -before[:, 2]).all()
    assert (path[places[BOUNCE]][:, 2] < 0.5).all()  # at most half a frame from the ground
    for event in (SERVE, HIT):
        assert (turns[event][1][:, 0] * path[places[event]][:, 0] < 0).all()
    before, after = turns[HIT]
    assert (before[:, 0] * after[:, 0] < 0).all()
    before, after = turns[NET]
    assert (np.abs(after[:, 0]) < 0.2 * np.abs(before[:, 0])).all()
    assert (np.abs(path[places[NET]][:, [0, 2]]) < [1.0, 1.4]).all()  # at most half a frame from the net


PARAMETERS = {"num_steps": 32, "noise": 2.0, "missed": 0.05, "occlusion": 0.3, "seed": 3}
SIZES = {"num_train": 40, "num_val": 10, "num_test": 10}


def params(**changes: float) -> OwnSource:
    """The workload's `preprocess` with these values."""
    block = read_yaml(ROOT / "params.yaml")["rally"]
    block["preprocess"] |= {**PARAMETERS, **SIZES, **changes}
    return parse_workload("rally", block).preprocess


def prepared(**changes: float) -> PreparedSequences:
    return own_source.prepare(params(**changes), raw_dir("rally"), "class per step")


def test_the_source_splits_in_order_and_what_is_not_seen_is_interpolated() -> None:
    data = prepared()
    assert {name: (rows[0], len(rows)) for name, rows in data.parts.items()} == {
        "train": (0, 40),
        "val": (40, 10),
        "test": (50, 10),
    }
    values, labels = simulate(60, 32, 3, noise=2.0, missed=0.05, occlusion=0.3)
    assert np.array_equal(data.sequences.labels, labels)
    is_seen = values[:, :, 2] == 1
    restored = data.sequences.values * data.std + data.mean
    np.testing.assert_allclose(restored[is_seen], values[is_seen], atol=1e-3)
    assert (restored[~is_seen][:, 0] > 1).all()  # no longer the corner of the image
    assert data.summary["num_filled"] == 2 * (~is_seen).sum() and data.table is None


def test_the_noise_study_takes_new_rallies_which_are_the_same_for_each_noise() -> None:
    inputs: list[np.ndarray] = []

    def predict(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs.append(values)
        assert mask.all()
        return np.zeros(mask.shape, dtype=np.int64)

    source = OwnData("rally", params())
    empty = np.empty(0)
    scores = metrics.by_noise(empty, empty, empty, predict, source)
    assert scores == {f"event_f1_at_noise_{noise}px": 0.0 for noise in (0, 1, 4, 8, 16)}  # nothing was found
    calm, *_, noisy, _ = inputs
    assert calm.shape == (metrics.NUM_SEQUENCES, 32, 3)
    error = (noisy - calm)[:, :, :2]
    assert np.nanstd(error, axis=(0, 1)) == pytest.approx([8.0, 8.0], rel=0.1)  # 4 times 2 px
    trained_on = prepared().sequences.labels[:20]
    assert not np.array_equal(source(seed=4).labels[:20], trained_on)


def test_its_event_f1_is_the_score_of_detect() -> None:
    draw = np.random.default_rng(0)
    predictions, targets = (np.where(draw.random((50, 32)) < 0.1, draw.integers(1, 5, (50, 32)), 0) for _ in range(2))
    task = Task(prepared().summary)
    score = task.score(*(torch.from_numpy(array) for array in (predictions, targets)), torch.ones(50, 32).bool())
    assert metrics.event_f1(predictions, targets, 5) == score


def test_the_prepared_data_is_the_published() -> None:
    """docs/published.json has the digests of the arrays, which other versions of numpy may round otherwise."""
    published = read_json(ROOT / "docs/published.json")["workloads"]["rally"]
    block = parse_workload("rally", read_yaml(ROOT / "params.yaml")["rally"])
    data = own_source.prepare(block.preprocess, raw_dir("rally"), "class per step")
    with TemporaryDirectory() as folder:
        digests = write_arrays(Path(folder), data)
    assert digests in [entry["digests"]["data"]["prepared"] for entry in published]


def test_a_record_of_the_time_when_it_was_built_in_is_still_comparable() -> None:
    """Its block has other keys of `preprocess`, and the same data."""
    [entry, *_] = read_json(ROOT / "docs/published.json")["workloads"]["rally"]
    block = literal(parse_workload("rally", read_yaml(ROOT / "params.yaml")["rally"]))
    assert entry["block"]["preprocess"]["source"] == "rally"
    data = {**entry["digests"]["data"], "prepared": {"train/ids.npy": "0"}}
    other = {**entry, "block": block, "digests": {**entry["digests"], "data": data}}
    recorded, same, other = (published.open_entry(record).run for record in (entry, {**entry, "block": block}, other))
    assert not [name for name in published.parameters(recorded, same) if "preprocess" in name]
    assert "preprocess.source" in published.parameters(recorded, other)

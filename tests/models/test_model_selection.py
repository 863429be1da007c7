"""model_selection: which candidate it selects, what it says about it, and that its forest is scikit-learn's."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from tandem import files
from tandem.devices.names import kind_of
from tandem.fitted import candidates, closed_form
from tandem.fitted.candidates import is_clear
from tandem.fitted.quant import Forest, intervals
from tandem.models import Shape
from tandem.params.schema import Augment
from tandem.tasks import open_task
from tandem.tasks.groups import Groups
from tandem.training.batches import Split
from tandem.training.opening import make_trainer
from tandem.training.trainer import Trainer, snapshot
from tests.networks import ModelSelection
from tests.projects import python
from tests.trainers import SETTINGS

SMALL = ModelSelection(name="model_selection", num_kernels=168, num_groups=4, num_trees=50)
ONCE = replace(SETTINGS, model=SMALL, augment=Augment(1, 0.0, 0.0, 0.0), epochs=1, warmup_epochs=0, label_smoothing=0.0)
SUMMARY = {"classes": ["no", "yes"], "target": {"name": "size", "mean": 0.0, "std": 1.0}, "max_steps": 40}
CPU = kind_of("cpu")()


def noise(num: int, num_steps: int, num_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (num, T, F) and classes (num,) that have nothing to do with them."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(num, num_steps, num_features, generator=draw), torch.arange(num) % 2


def few_informative_features() -> tuple[torch.Tensor, torch.Tensor]:
    """Two of 60 features vary more in one class."""
    values, classes = noise(100, 12, 60)
    values[classes == 1, :, :2] *= 3
    return values, classes


def number() -> tuple[torch.Tensor, torch.Tensor]:
    """How much one of 30 features varies."""
    values, _ = noise(120, 12, 30)
    targets = values[:, :, 0].abs().mean(dim=1)
    return values, (targets - targets.mean()) / targets.std()


def fixed_place() -> tuple[torch.Tensor, torch.Tensor]:
    """Every step of a class is shifted by its own amount."""
    values, classes = noise(100, 40, 1)
    shifts = torch.randn(40, 1, generator=torch.Generator().manual_seed(1))
    return values + torch.where(classes[:, None, None] == 1, 1, -1) * 0.4 * shifts, classes


def any_place() -> tuple[torch.Tensor, torch.Tensor]:
    """A short shape, which differs by class, begins at a random step."""
    values, classes = noise(160, 40, 1)
    shapes = 3 * torch.tensor([[1.0, -1, 1, 1, -1, -1, 1, -1, 1], [1.0, 1, -1, -1, 1, -1, -1, 1, 1]])
    for row, start in enumerate(torch.randint(31, (160,), generator=torch.Generator().manual_seed(2)).tolist()):
        values[row, start : start + 9, 0] += shapes[classes[row]]
    return values, classes


def windows_of_people(num: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ten windows of each person, their class, and who it is. The class raises the levels, which differ by person."""
    values, person = noise(10 * num, 12, 4)[0], torch.arange(num).repeat_interleave(10)
    classes = (torch.rand(num, generator=torch.Generator().manual_seed(3)) < 0.5).long()[person]
    levels = 3 * torch.randn(num, 4, generator=torch.Generator().manual_seed(4))[person]
    return values / 4 + levels[:, None] + 2 * classes[:, None, None], classes, person


def trainer_of(values: torch.Tensor, targets: torch.Tensor, groups: torch.Tensor | None = None) -> Trainer:
    """A fifth of the sequences is val."""
    num, num_steps, num_features = values.shape
    tensors = {"values": values, "mask": torch.ones(num, num_steps, dtype=torch.bool), "targets": targets}
    splits = [
        Split(
            {name: tensor[rows] for name, tensor in tensors.items()},
            CPU,
            groups=None if groups is None else groups[rows],
        )
        for rows in (slice(num // 5, None), slice(num // 5))
    ]
    task = open_task("regress" if targets.is_floating_point() else "classify", SUMMARY)
    return make_trainer(*splits, ONCE, Shape(num_features, task.num_outputs, num_steps, False), task, 0)


def outputs_of(network: Any, values: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        outputs: torch.Tensor = network.eval()(values, torch.ones(values.shape[:2], dtype=torch.bool))
    return outputs


@pytest.mark.parametrize(
    ("data", "selected"),
    [
        (few_informative_features, "forest"),
        (number, "forest"),
        (fixed_place, "raw"),
        (any_place, "rocket"),
    ],
)
def test_the_candidate_that_suits_the_data_is_selected(data: Any, selected: str):
    trainer = trainer_of(*data())
    epoch, network = trainer.train_epoch(), trainer.model
    selection = network.selection()  # type: ignore[operator]
    assert selection["selected"] == selected
    assert max(selection["held_out"], key=selection["held_out"].get) == selected
    assert epoch.val_score > (0.3 if data is number else 0.8)
    sentence = network.describe_selection("accuracy")  # type: ignore[operator]
    assert "held-out accuracy" in sentence and "a constant prediction" in sentence and "may say nothing" not in sentence


def test_held_out_scores_are_those_of_new_groups():
    values, classes, person = windows_of_people(400)
    is_known, too_high = person < 60, {}
    for groups in (None, person[is_known]):
        trainer = trainer_of(values[is_known], classes[is_known], groups)
        trainer.train_epoch()
        held_out = trainer.model.selection()["held_out"]  # type: ignore[operator]
        for name, candidate in trainer.model.candidates.items():  # type: ignore[union-attr, operator]
            is_right = outputs_of(candidate, values[~is_known]).argmax(dim=1) == classes[~is_known]
            too_high[name, groups is None] = held_out[name] - is_right.float().mean().item()
    assert min(too_high["rocket", True], too_high["forest", True]) > 0.1
    assert max(abs(too_high[name, False]) for name in ("rocket", "raw", "forest")) < 0.06


def test_labels_of_a_single_group_are_judged_by_val_alone():
    values = windows_of_people(20)[0]
    num_others = 160
    for groups, num_judged in (([0] * num_others, 0), ([0] * 80 + [1] * 80, num_others)):
        all_groups = torch.tensor([9] * 40 + groups)
        trainer = trainer_of(values, torch.arange(len(values)) % 2, all_groups)
        fits = trainer.fit.fits.values()  # type: ignore[union-attr]
        trainer.train_epoch()
        assert {len(fit.held_out[1]) for fit in fits} == {40 + num_judged}
    assert closed_form.can_be_judged(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 7, 7, 7])).tolist() == [
        True, True, False, False
    ]  # fmt: skip


def test_a_gain_in_few_of_the_groups_is_not_clear():
    gains = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]).repeat_interleave(10)  # of one person of eight
    people = Groups(np.repeat(np.arange(8), 10))
    assert is_clear(gains, 2.0) and not is_clear(gains, 2.0, people)
    assert is_clear(1 + gains, 2.0, people) and not is_clear(1 + gains, 2.0, Groups(people.names % 5))
    values, classes, person = windows_of_people(20)
    trainer = trainer_of(values, classes, person)
    fits = trainer.fit.fits.values()  # type: ignore[union-attr]
    trainer.train_epoch()
    groups = closed_form.groups_held_out(trainer.train_split, trainer.val_split)
    assert groups and {len(fit.held_out[1]) for fit in fits} == {len(groups.names)}


def test_noise_is_called_noise():
    values, classes = noise(100, 20, 5)
    for targets in (classes, torch.randn(100, generator=torch.Generator().manual_seed(5))):
        trainer = trainer_of(values, targets)
        trainer.train_epoch()
        sentence = trainer.model.describe_selection("accuracy")  # type: ignore[operator]
        assert sentence.endswith("the features may say nothing about the label")


def test_fits_are_equal_to_the_bit_also_if_trees_grow_in_threads_and_in_parts(monkeypatch: pytest.MonkeyPatch):
    expected = trainer_of(*few_informative_features()).train_epoch().digests
    assert trainer_of(*few_informative_features()).train_epoch().digests == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # of scikit-learn alone
    monkeypatch.setattr(candidates, "SECONDS_OF_A_PART", 0.0)  # as few trees at a time as there are threads
    assert trainer_of(*few_informative_features()).train_epoch().digests == expected


def test_a_restored_or_loaded_network_predicts_the_same_bits_without_scikit_learn(tmp_path: Path):
    values, classes = few_informative_features()
    trainer = trainer_of(values, classes)
    trainer.train_epoch()
    expected = outputs_of(trainer.model, values)
    fresh = trainer_of(values, classes)
    fresh.restore(trainer.state())
    assert torch.equal(outputs_of(fresh.model, values), expected)

    (tmp_path / "last.safetensors").write_bytes(save(snapshot(trainer.model)))
    shape = Shape(values.shape[2], 2, values.shape[1], False)
    record = {"model": asdict(SMALL), "shape": asdict(shape), "task": "classify", "preprocessing": {}}
    files.write_json(tmp_path / "model.json", record)
    np.save(tmp_path / "values.npy", values.numpy())
    code = f"""
import sys
from pathlib import Path
import numpy as np, torch
sys.modules["sklearn"] = None  # an import of it fails
from tandem.training.saved_network import load_network
values = torch.from_numpy(np.load("{tmp_path}/values.npy"))
outputs = load_network(Path("{tmp_path}"), "last")[0](values, torch.ones(values.shape[:2], dtype=torch.bool))
np.save("{tmp_path}/outputs.npy", outputs.numpy())
"""
    python(files.ROOT, code)
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), expected.numpy())


def test_many_sequences_are_sampled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tandem.fitted.trainer.MAX_SEQUENCES", 70)
    trainer = trainer_of(*few_informative_features(), torch.arange(100) // 2)
    assert trainer.sentences == {"sequences": "fitted to 56 of 80 sequences, drawn at random"}
    epoch, fit = trainer.train_epoch(), trainer.fit  # type: ignore[union-attr]
    assert (len(fit.train), len(fit.val), len(trainer.val_split)) == (56, 14, 20)
    assert torch.equal(fit.train.groups, fit.train.groups.sort().values)  # rows and groups are in the split's order
    assert epoch.val_score > 0.8 and trainer.model.selection()["selected"] == "forest"  # type: ignore[operator]


def test_the_forest_is_that_of_scikit_learn_and_sequences_do_not_affect_each_other():
    from sklearn.ensemble import ExtraTreesClassifier

    torch.manual_seed(0)
    forest = Forest(Shape(2, 3, 40, False), 50)
    forest.has_padding.fill_(True)
    values, classes = noise(60, 40, 2)
    mask = torch.arange(40) < 20 + torch.arange(60)[:, None] % 21
    features = forest.features(values, mask)
    rows = zip(values.split(1), mask.split(1), strict=True)
    alone = torch.cat([forest.features(row[:, :length], row_mask[:, :length]) for row, row_mask in rows
                       for length in [int(row_mask.sum())]])  # fmt: skip
    assert torch.equal(alone, features)
    trees = ExtraTreesClassifier(50, max_features=0.1, random_state=0).fit(features.numpy(), classes.numpy())
    leaves = [tree.tree_.value[:, 0].argmax(axis=1) for tree in trees.estimators_]
    forest.set_trees([tree.tree_ for tree in trees.estimators_], leaves)
    sequences = torch.randn(80, 40, 2, generator=torch.Generator().manual_seed(7))
    full = torch.ones(80, 40, dtype=torch.bool)
    shares = (forest(sequences, full)[:, :2].numpy() + 1) / 2
    np.testing.assert_allclose(shares, trees.predict_proba(forest.features(sequences, full).numpy()), atol=1e-6)


def test_the_intervals_are_those_of_the_authors():
    assert intervals(1) == [(0, 1)]
    assert intervals(8) == [(0, 8), (0, 4), (4, 8), (2, 6), (0, 2), (2, 4), (4, 6), (6, 8), (1, 3), (3, 5), (5, 7),
                            *((step, step + 1) for step in range(8))]  # fmt: skip

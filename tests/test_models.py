"""Models, the task's scores and augmentation, as properties."""

import pytest
import torch

from stages import augment, models
from stages.params import GRU, Augment, Transformer
from stages.tasks import classify

CONFIGS = [
    GRU("gru", hidden_size=16, num_layers=1, bidirectional=False, dropout=0.0),
    GRU("gru", hidden_size=16, num_layers=2, bidirectional=True, dropout=0.0),
    Transformer("transformer", hidden_size=16, num_layers=2, num_heads=2, feedforward_size=32, dropout=0.0),
]
by_name = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}{config.num_layers}")


def batch(num_sequences: int = 10, num_steps: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.randn(num_sequences, num_steps, 3, generator=torch.Generator().manual_seed(1))
    lengths = torch.arange(num_sequences) % (num_steps - 2) + 3
    mask = torch.arange(num_steps)[None, :] < lengths[:, None]
    return values.masked_fill(~mask.unsqueeze(-1), 0.0), mask


@by_name
def test_a_model_overfits_ten_samples(config):
    torch.manual_seed(0)
    values, mask = batch()
    targets = torch.arange(10) % 4
    model = models.build(config, num_features=3, num_outputs=4, max_steps=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        classify.loss(model(values, mask), targets, 0.0).backward()
        optimizer.step()
    model.eval()
    assert torch.equal(classify.predict(model(values, mask)), targets)


@by_name
def test_what_stands_in_the_padding_changes_nothing(config):
    torch.manual_seed(0)
    values, mask = batch()
    model = models.build(config, num_features=3, num_outputs=4, max_steps=9).eval()
    with torch.no_grad():
        expected = model(values, mask)
        garbage = torch.where(mask.unsqueeze(-1), values, torch.full_like(values, 123.0))
        torch.testing.assert_close(model(garbage, mask), expected)
        longer, longer_mask = torch.nn.functional.pad(values, (0, 0, 0, 2)), torch.nn.functional.pad(mask, (0, 2))
        torch.testing.assert_close(model(longer, longer_mask), expected)


@by_name
def test_every_parameter_gets_a_gradient(config):
    values, mask = batch()
    model = models.build(config, num_features=3, num_outputs=4, max_steps=7)
    model(values, mask).square().sum().backward()
    assert [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ] == []


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 5, (200,), generator=generator)
    predictions = torch.where(
        torch.rand(200, generator=generator) < 0.6, targets, torch.randint(0, 4, (200,), generator=generator)
    )
    confusion = classify.confusion_matrix(predictions, targets, 6)  # class 5 occurs nowhere
    assert confusion[:5, :5].tolist() == confusion_matrix(targets, predictions).tolist()
    scores = classify.scores(confusion)
    assert scores["accuracy"] == pytest.approx(accuracy_score(targets, predictions))
    assert scores["macro_f1"] == pytest.approx(f1_score(targets, predictions, average="macro"))
    precision, recall, f1, count = precision_recall_fscore_support(
        targets, predictions, labels=range(5), zero_division=0
    )
    for index, row in enumerate(classify.per_class(confusion)[:5]):
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(
            (precision[index], recall[index], f1[index])
        )
        assert row["num_true"] == count[index]


def test_augmentation_is_off_at_zero_and_leaves_padding_alone():
    values, mask = batch()
    values = torch.cat([values, values], dim=2)[..., :4]
    off = Augment(group=2, mix=0.0, shift=0.0, warp=0.0)
    strong = Augment(group=2, mix=0.3, shift=0.3, warp=0.3)
    draws = augment.draw(torch.Generator().manual_seed(0), len(values), strong)
    assert torch.equal(augment.apply(values, mask, draws, off), values)
    changed = augment.apply(values, mask, draws, strong)
    assert not changed[~mask].any()
    assert (changed != values)[mask].float().mean() > 0.9
    assert changed.isfinite().all()


def test_augmentation_mixes_positions_and_velocities_alike():
    """A linear map of the positions maps their differences with the same matrix."""
    values = torch.randn(5, 8, 2)
    both = torch.cat([values[:, 1:], values[:, 1:] - values[:, :-1]], dim=2)
    mask = torch.ones(5, 7, dtype=torch.bool)
    config = Augment(group=2, mix=0.5, shift=0.0, warp=0.0)
    mixed = augment.apply(both, mask, augment.draw(torch.Generator().manual_seed(0), 5, config), config)
    torch.testing.assert_close(mixed[:, 1:, :2] - mixed[:, :-1, :2], mixed[:, 1:, 2:])


def test_a_group_that_does_not_divide_the_features_is_refused():
    values, mask = batch()
    config = Augment(group=2, mix=0.1, shift=0.0, warp=0.0)
    with pytest.raises(ValueError, match="group must divide the number of features, got 2 and 3"):
        augment.apply(values, mask, augment.draw(torch.Generator(), len(values), config), config)

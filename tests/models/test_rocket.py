"""rocket: its features by their definition, its ridge by leaving sequences out, a training to regress end to end."""

from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save

from tandem import data
from tandem.data.packed import as_arrays
from tandem.devices.names import kind_of
from tandem.fitted import minirocket
from tandem.fitted.hydra import Hydra
from tandem.fitted.minirocket import MiniRocket
from tandem.models import Shape
from tandem.params import schema
from tandem.params.parsing import parse
from tandem.params.schema import Augment
from tandem.predicting.predictor import Predictor
from tandem.tasks import open_task, ridge
from tandem.training.batches import Split
from tandem.training.opening import make_trainer
from tandem.training.trainer import Trainer, snapshot
from tests.networks import Rocket
from tests.trainers import SETTINGS

SMALL = Rocket(name="rocket", num_kernels=168, num_groups=4)
ONCE = replace(SETTINGS, model=SMALL, augment=Augment(1, 0.0, 0.0, 0.0), epochs=1, warmup_epochs=0, label_smoothing=0.0)
CPU = kind_of("cpu")()


def sequences(num: int, num_channels: int, num_steps: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """(num, F, T), zero in the padding, and lengths."""
    draw = torch.Generator().manual_seed(3)
    raw, lengths = torch.randn(num, num_channels, num_steps, generator=draw), torch.arange(num) % 4 * 7 + num_steps - 21
    return raw * (torch.arange(num_steps) < lengths[:, None, None]), lengths


def convolved(series: np.ndarray, weights: np.ndarray, dilation: int) -> np.ndarray:
    """One series under one kernel, step by step, with zeros beyond both ends."""
    response = np.zeros(len(series))
    for step in range(len(series)):
        for tap, weight in enumerate(weights):
            place = step + (tap - 4) * dilation
            response[step] += weight * series[place] if 0 <= place < len(series) else 0.0
    return response


@pytest.mark.parametrize("num_channels", [1, 3])
def test_minirocket_is_the_share_of_steps_above_a_bias(num_channels: int):
    torch.manual_seed(1)
    raw, lengths = sequences(4, num_channels)
    module = MiniRocket(num_channels, 30, 84 * 4)
    module.fit_biases(raw, lengths)
    features = module(raw, lengths)
    assert (module.dilations, sum(module.counts)) == ([1, 2, 3], 4)
    place = 0
    for number, (dilation, count) in enumerate(zip(module.dilations, module.counts, strict=True)):
        for kernel, twos in enumerate(combinations(range(9), 3)):
            biases = module.biases[place : place + count].numpy()
            weights = np.where(np.isin(np.arange(9), twos), 2.0, -1.0)
            chosen = [0] if num_channels == 1 else module.channels[number, kernel].tolist()  # type: ignore[index]
            for row in range(0, 4, 1 if kernel % 12 == 0 else 4):
                series = sum(raw[row, channel, : lengths[row]].numpy() for channel in chosen if channel < num_channels)
                response = convolved(series, weights, dilation)
                if (number + kernel) % 2 and len(series) > 8 * dilation:
                    response = response[4 * dilation : -4 * dilation]
                longest = 30 - len(series) + len(response)
                totals = np.where((kernel // 2 + np.arange(count)) % 2, longest, len(response))
                expected = [(response > bias).sum() for bias in biases] / totals
                # A response that equals a bias but for rounding may fall on either side.
                ties = np.isclose(response[:, None], biases, atol=1e-5).sum(axis=0)
                errors = np.abs(features[row, place : place + count].numpy() - expected)
                assert (errors <= (ties + 0.001) / totals).all()
            place += count
    assert 0.3 < features.mean() < 0.7  # the biases are quantiles of the responses


def test_dilations_and_quantiles_equal_the_published_ones():
    """Dempster et al. 2021, section 3.1: 119 biases to each of 84 kernels are 9,996 features."""
    dilations, counts = minirocket.dilations_for(500, 10_000 // 84)
    assert dilations[:4] == [1, 2, 3, 4] and dilations[-1] == 62 and sum(counts) == 119
    assert minirocket.dilations_for(8, 119) == ([1], [119])  # shorter than a kernel
    np.testing.assert_allclose(minirocket.quantile_shares(0, 3), [0.618034, 0.236068, 0.854102], atol=1e-6)
    torch.testing.assert_close(
        minirocket.quantiles(torch.tensor([[3.0, 1.0, 2.0, 9.0]]), torch.tensor([3]), torch.tensor([[0.0, 0.25, 1.0]])),
        torch.tensor([[1.0, 1.5, 3.0]]),
    )


@pytest.mark.parametrize("num_channels", [1, 3])
def test_hydra_counts_which_kernel_of_a_group_fits_best(num_channels: int):
    torch.manual_seed(1)
    raw, lengths = sequences(2, num_channels)
    module = Hydra(num_channels, 30, 4)
    features = module(raw, lengths).view(2, 2, 2, 2, 2, 8)  # sequence, dilation, differences?, best or worst, group
    for row, number, which, group in np.ndindex(2, 2, 2, 2):
        sequence = raw[row, :, : lengths[row]].numpy()
        sequence = np.diff(sequence, axis=1) if which else sequence
        chosen = [0] if num_channels == 1 else module.channels[number, which, group].tolist()  # type: ignore[index]
        series = sum(sequence[channel] for channel in chosen)
        weights = module.weights[number, which, group].numpy()
        responses = np.stack([convolved(series, kernel, 2**number) for kernel in weights])
        best, worst = np.zeros(8), np.zeros(8)
        for step in range(len(series)):
            best[responses[:, step].argmax()] += responses[:, step].max()
            worst[responses[:, step].argmin()] += 1
        np.testing.assert_allclose(features[row, number, which, 0, group], np.sqrt(best.clip(0)), atol=1e-3)
        np.testing.assert_allclose(features[row, number, which, 1, group], np.sqrt(worst), atol=1e-5)
    flat = module(torch.zeros(1, num_channels, 30) + 2.0, torch.tensor([30])).view(2, 2, 2, 2, 8)
    assert not flat[:, 1].any()  # nothing changes, so no kernel wins


@pytest.mark.parametrize("groups", [torch.arange(12), torch.tensor([0, 0, 0, 0, 0, 1, 2, 1, 2, 2, 3, 3])])
def test_leave_one_out_equals_fitting_without_it(groups: torch.Tensor):
    draw, is_alone = torch.Generator().manual_seed(0), len(groups.unique()) == 12
    features, targets = (torch.randn(12, size, generator=draw, dtype=torch.float64) for size in (30, 2))
    fit = ridge.leave_one_out(ridge.centred(features @ features.T), targets, 30, None if is_alone else groups)

    def fitted(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and intercepts, from the products of features."""
        centered, target = features[rows] - features[rows].mean(dim=0), targets[rows].mean(dim=0)
        products = centered.T @ centered + fit.strength * torch.eye(30, dtype=torch.float64)
        weights = torch.linalg.solve(products, centered.T @ (targets[rows] - target))
        return weights, target - features[rows].mean(dim=0) @ weights

    weights, intercepts = fitted(torch.arange(12))
    centered = features - features.mean(dim=0)
    torch.testing.assert_close(centered.T @ fit.coefficients, weights)  # dual and primal
    torch.testing.assert_close(centered @ weights + targets.mean(dim=0), features @ weights + intercepts)
    for row in range(12):
        weights, intercepts = fitted(groups != groups[row])
        torch.testing.assert_close(features[row] @ weights + intercepts, fit.held_out[row])


def waves(num: int = 60) -> pd.DataFrame:
    """Noisy sine waves of unequal length, whose number is their frequency."""
    draw, parts = np.random.default_rng(0), []
    for number in range(num):
        num_steps, hertz = draw.integers(20, 40), draw.uniform(1, 4)
        wave = np.sin(hertz * np.arange(num_steps) / 3 + draw.uniform(0, 6)) + 0.05 * draw.normal(size=num_steps)
        parts.append(pd.DataFrame({"clip": f"c{number:03}", "step": range(num_steps), "x": wave, "hertz": 1e6 + hertz}))
    return pd.concat(parts)


def prepared(folder: Path) -> Any:
    waves().to_csv(folder / "waves.csv", index=False)
    columns = {"sequence": "clip", "step": "step", "features": ["x"], "label": "hertz"}
    split = {"train": 0.6, "val": 0.2, "test": 0.2}
    source: dict[str, Any] = {"source": "sequences", "table": "waves.csv", "columns": columns, "split": split}
    source |= {"seed": 0, "velocity": False, "missing": "refuse", "groups": "none"}
    params = parse(schema.SequenceTable, source, "preprocess")
    return params, data.prepare_data(params, folder, "number")


def trainer_of(found: Any, settings: schema.Train, seed: int = 0) -> Trainer:
    task = open_task("regress", found.summary)
    splits = {}
    for name in ("train", "val"):
        arrays = found.arrays(name)
        tensors = as_arrays(arrays["values"], arrays["lengths"], arrays["targets"])
        splits[name] = Split({key: torch.from_numpy(array) for key, array in tensors.items()}, CPU)
    return make_trainer(splits["train"], splits["val"], settings, Shape.of(found.summary, task), task, seed)


@pytest.fixture(scope="module")
def regressed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Trainer, Any]:
    params, dataset = prepared(tmp_path_factory.mktemp("waves"))
    trainer = trainer_of(dataset, ONCE)
    return params, dataset, trainer, trainer.train_epoch()


def test_the_predictor_repeats_the_predictions_of_the_evaluation(regressed: Any, tmp_path: Path):
    params, dataset, trainer, epoch = regressed
    task, test = open_task("regress", dataset.summary), dataset.arrays("test")
    assert abs(test["targets"]).max() < 4  # standardized in 64 bits: a 32-bit float next to 1e6 has steps of 0.06
    tensors = as_arrays(test["values"], test["lengths"], test["targets"])
    with torch.no_grad():
        outputs = trainer.model(*(torch.from_numpy(tensors[name]) for name in ("values", "mask")))
    result = task.evaluate(outputs, lambda split, name: dataset.arrays(split)[name])
    assert result.metrics["r2"] > 0.9 and epoch.val_score > 0.9
    assert result.metrics["mae"] < result.metrics["median_mae"]

    (tmp_path / "last.safetensors").write_bytes(save(snapshot(trainer.model)))
    learned = {name: dataset.summary[name] for name in ("features", "mean", "std", "target")}
    record = {"model": asdict(SMALL), "shape": asdict(Shape.of(dataset.summary, task)), "task": "regress"}
    record |= {"workload": "waves", "preprocessing": {**asdict(params), **learned}}
    (tmp_path / "model.json").write_text(pd.Series(record).to_json())
    predicted = Predictor(tmp_path, "last").predict(waves().drop(columns="hertz")).set_index("sequence").predicted
    expected = {row["sequence"]: row["predicted"] for row in result.predictions}
    np.testing.assert_allclose(predicted[list(expected)], list(expected.values()), rtol=1e-9)


def test_training_and_restoring_are_bitwise_equal(regressed: Any):
    _, dataset, trainer, epoch = regressed
    assert trainer_of(dataset, ONCE).train_epoch().digests == epoch.digests
    assert trainer_of(dataset, ONCE, seed=1).train_epoch().digests != epoch.digests
    fresh = trainer_of(dataset, ONCE)
    fresh.restore(trainer.state())
    assert fresh.weights_sha256() == trainer.weights_sha256() and fresh.epochs_done == 1
    assert torch.equal(fresh.best_weights["head.weight"], trainer.best_weights["head.weight"])


def test_a_label_that_is_no_number_or_never_changes_is_refused(tmp_path: Path):
    table = waves(12)
    for label, message in (("often", "column 'hertz' must hold"), (3.0, "column 'hertz' is 3 in every training")):
        folder = tmp_path / str(label)
        folder.mkdir()
        table.assign(hertz=label).to_csv(folder / "waves.csv", index=False)
        params, _ = prepared(tmp_path)
        with pytest.raises(ValueError, match=message):
            data.prepare_data(params, folder, "number")

"""Arrays of numpy and .ts files: their axes, their padding, their split."""

from pathlib import Path

import numpy as np
import pytest

from tests.own_tables import planned, reasons
from tests.shapes import LABELS, PEOPLE, expect, padded, prepared, question, recordings, written


@pytest.mark.parametrize("axes", ["NTC", "NCT"])
def test_arrays_are_read_in_both_orders_of_axes(tmp_path: Path, axes: str):
    array = padded() if axes == "NTC" else padded().swapaxes(1, 2)
    np.savez_compressed(tmp_path / "a.npz", X=array.astype(np.float32), y=np.array(LABELS))
    expect(tmp_path / "a.npz")
    np.save(tmp_path / "X.npy", array)
    np.save(tmp_path / "y.npy", np.array(LABELS))
    expect(tmp_path / "X.npy")
    np.save(tmp_path / "data_of_mine.npy", np.asfortranarray(array))
    expect(tmp_path / "data_of_mine.npy", "--labels", str(tmp_path / "y.npy"), "--axes", axes)
    (tmp_path / "data_of_mine.npy").rename(tmp_path / "array.bin")  # known by its first bytes
    expect(tmp_path / "array.bin", "--labels", str(tmp_path / "y.npy"), "--axes", axes)


def test_padding_at_the_start_of_an_array_is_no_step(tmp_path: Path):
    """As Keras' pad_sequences has it by default. A gap in the middle is missing."""
    at_end = padded()
    at_end[0, 1] = np.nan
    at_start = np.full_like(at_end, np.nan)
    for number, sequence in enumerate(at_end):
        length = len(recordings()[number])
        at_start[number, -length:] = sequence[:length]
    results = []
    for name, array in (("end", at_end), ("start", at_start)):
        np.savez(tmp_path / f"{name}.npz", X=array, y=np.array(LABELS))
        results.append(prepared(tmp_path / f"{name}.npz", "--axes", "NTC", "--missing", "interpolate")[1].sequences)
    assert (results[0].lengths == results[1].lengths).all() and (results[0].values == results[1].values).all()


@pytest.mark.parametrize("axes", ["NTC", "NCT"])
def test_zeros_after_the_end_of_a_sequence_are_no_measurements(tmp_path: Path, axes: str):
    """Arrays of equal length with `lengths` or a mask, as padding for Keras or torch leaves them."""
    array = padded()
    is_real = ~np.isnan(array).all(axis=2)
    zeros = np.nan_to_num(array if axes == "NTC" else array.swapaxes(1, 2))
    for name, ends in (("lengths", is_real.sum(axis=1)), ("mask", is_real), ("mask", is_real.astype(np.float32))):
        np.savez(tmp_path / "a.npz", **{name: ends}, X=zeros, y=np.array(LABELS))
        expect(tmp_path / "a.npz")
        (tmp_path / name).mkdir(exist_ok=True)
        for file, values in (("X", zeros), ("y", np.array(LABELS)), (name, ends)):
            np.save(tmp_path / name / f"{file}.npy", values)
        expect(tmp_path / name / "X.npy")
    for name, ends in (
        ("mask", ~is_real),
        ("mask", is_real[:, :-1]),
        ("lengths", is_real.sum(axis=1) - 5),
        ("length", [0.5] * 18),
    ):
        np.savez(tmp_path / "b.npz", X=zeros, y=np.array(LABELS), **{name: np.array(ends)})
        with pytest.raises(ValueError, match=f"b.npz: {name} .* does not go with b.npz: X .*; accepted: "):
            planned(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=zeros, y=np.array(LABELS), times=is_real * 0.5)
    assert f"c.npz: times {is_real.shape}" in str(planned(tmp_path / "c.npz"))


def test_an_array_whose_axes_may_both_be_time_is_a_question(tmp_path: Path):
    values, labels = np.random.default_rng(0).normal(size=(24, 12, 30)).round(3), np.array(["a", "b", "c"] * 8)
    np.savez(tmp_path / "a.npz", X=values, y=labels)
    assert "give --axes NTC for 12 steps or --axes NCT for 30 steps" in question(tmp_path / "a.npz")
    for axes, shape in (("NTC", (24, 12, 30)), ("NCT", (24, 30, 12))):
        plan, data = prepared(tmp_path / "a.npz", "--axes", axes)
        assert data.sequences.values.shape == shape and f"npz --axes {axes}`" in plan.provenance
    np.savez(tmp_path / "b.npz", X_train=values, y_train=labels, X_test=values[:, :9], y_test=labels)
    assert prepared(tmp_path / "b.npz")[1].sequences.values.shape == (48, 12, 30)  # time is the axis that varies
    np.savez(tmp_path / "c.npz", X=values[:, :9, :].repeat(2, axis=2), y=labels)  # as in UCI's data set HAR
    assert prepared(tmp_path / "c.npz")[1].sequences.values.shape == (24, 60, 9)


def frames(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An npy for each of 11 frames of 18 videos, as label/video/frame.npy. Returns all numbers (18, 11, *shape)."""
    values = np.random.default_rng(0).normal(size=(18, 11, *shape)).round(3)
    for number, video in enumerate(values):
        (folder / LABELS[number] / f"{number // 3}").mkdir(parents=True)
        for frame, numbers in enumerate(video):
            np.save(folder / LABELS[number] / f"{number // 3}" / f"{frame}.npy", numbers)
    return values


@pytest.mark.parametrize(("shape", "axes"), [((63,), "T"), ((21, 3), "TC")])
def test_a_folder_of_numbered_arrays_may_have_a_file_for_each_step(tmp_path: Path, shape: tuple[int, ...], axes: str):
    values, size = frames(tmp_path / "d", shape), int(np.prod(shape))
    message = question(tmp_path / "d")
    assert f"--axes C if each is one step of {size} channels or --axes {axes} if each is a sequence" in message
    plan, data = prepared(tmp_path / "d", "--axes", "C")
    assert "by the number in the name" in reasons(plan)["step"]
    assert sorted(data.sequences.ids) == sorted(f"{LABELS[number]}/{number // 3}" for number in range(18))
    raw = data.sequences.values[:, :, :size] * data.std[:size] + data.mean[:size]
    for row, name in enumerate(data.sequences.ids):
        label, number = name.split("/")
        assert data.sequences.classes[data.sequences.labels[row]] == label
        expected = values[3 * int(number) + LABELS.index(label)].reshape(11, size)  # frame 10 comes after frame 2
        np.testing.assert_allclose(raw[row], expected, atol=1e-5)
    assert planned(tmp_path / "d", "--axes", axes).summary["num_sequences"] == 18 * 11


def test_a_folder_of_arrays_of_equal_shape_has_a_row_per_step_only_if_time_is_longer(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(18, 20, 8))
    for name, arrays in (("long", values), ("wide", values.swapaxes(1, 2)), ("varied", values.swapaxes(1, 2))):
        for number, array in enumerate(arrays):
            (tmp_path / name / LABELS[number]).mkdir(parents=True, exist_ok=True)
            array = array[:, : 20 - number % 3] if name == "varied" else array
            np.save(tmp_path / name / LABELS[number] / f"r{number}.npy", array)
    assert prepared(tmp_path / "long")[1].sequences.values.shape == (18, 20, 16), "with velocities"
    assert "give --axes TC for 8 steps or --axes CT for 20 steps" in question(tmp_path / "wide")
    for name, options in (("wide", ("--axes", "CT")), ("varied", ())):
        assert prepared(tmp_path / name, *options)[1].sequences.values.shape == (18, 20, 16)


def test_arrays_of_train_and_test_are_the_split(tmp_path: Path):
    array, labels = padded(), np.array(LABELS)
    parts = {"X_train": array[:12], "y_train": labels[:12], "X_test": array[12:], "y_test": labels[12:]}
    np.savez(tmp_path / "a.npz", **parts)
    (tmp_path / "npy").mkdir()
    for name, part in parts.items():
        np.save(tmp_path / "npy" / f"{name}.npy", part)
    for path in (tmp_path / "a.npz", tmp_path / "npy/X_train.npy"):
        assert expect(path).summary["num_per_split"]["test"] == 6
    names = np.array(["push", "swipe", "twist"])  # of the labels
    np.savez(tmp_path / "b.npz", X=array, y=labels, groups=np.repeat(PEOPLE, 3), classes=names)
    assert expect(tmp_path / "b.npz").workload.preprocess.groups == "groups"


def write_ts(path: Path, numbers: range) -> Path:
    header = ["# anything", "@problemName Hand", "@univariate false", "@classLabel true push swipe twist", "@data"]
    lines = []
    for number in numbers:
        channels = [",".join(map(str, channel)) for channel in recordings()[number].T]
        lines.append(":".join([*channels, LABELS[number]]))
    path.write_text("\n".join([*header, *lines]))
    return path


def test_ts_files_are_read(tmp_path: Path):
    write_ts(tmp_path / "Hand_TEST.ts", range(12, 18))
    plan = expect(write_ts(tmp_path / "Hand_TRAIN.ts", range(12)))
    assert plan.summary["num_per_split"]["test"] == 6 and plan.table.name == "mine.parquet"
    expect(tmp_path)  # the folder of the two


def test_ts_says_whether_its_targets_are_numbers(tmp_path: Path):
    values = recordings()
    lines = [f"{','.join(map(str, values[number][:, 0]))}:{number % 3}" for number in range(18)]
    written(tmp_path / "a.ts", "\n".join(["@univariate true", "@targetLabel true", "@data", *lines]))
    assert planned(tmp_path / "a.ts").workload.task == "regress"

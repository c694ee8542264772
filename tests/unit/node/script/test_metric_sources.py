"""Values that two sources report count once."""

from __future__ import annotations

import math
import time

import pytest

from runner.node.script import metric_sources
from runner.node.script.metric_sources import RepeatedValues, precision_of, words_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss", "train/loss"), ("train_loss", "Loss/train"), ("val_acc", "validation/accuracy"),
        ("epoch_loss", "loss"), ("valLoss", "valid loss"),
    ],
)  # fmt: skip
def test_spellings_of_one_metric_have_the_same_words(one: str, other: str) -> None:
    assert words_of(one) == words_of(other)


@pytest.mark.parametrize(
    ("value", "precision"),
    [(0.31, 0.005), (12.0, 0.5), (1e-8, 5e-9), (0.9832, 0.00005), (1e300, 5e299)],
)
def test_precision_is_half_of_the_last_digit(value: float, precision: float) -> None:
    assert precision_of(value) == pytest.approx(precision)


def test_rounded_value_of_another_source_is_repeated_once() -> None:
    known = RepeatedValues()
    assert not known.is_repeated("stdout", "loss", 0.31, precision_of(0.31))
    assert known.is_repeated("tensorboard", "train/loss", 0.31234, 0.0)
    assert not known.is_repeated("tensorboard", "train/loss", 0.31234, 0.0)
    assert known.is_repeated("stdout", "loss", 0.31, precision_of(0.31))


@pytest.mark.parametrize("value", [0.25, math.nan, -math.inf])
@pytest.mark.parametrize("first", range(4))
def test_value_of_four_sources_counts_once(value: float, first: int) -> None:
    """A script prints a loss, and gives it to TensorBoard, W&B and a CSV file."""
    names = (
        ("stdout", "loss"), ("tensorboard", "train/loss"), ("wandb", "loss"), ("csv", "train_loss"),
    )  # fmt: skip
    known = RepeatedValues()
    for n in range(100):  # a plateau
        order = [names[(first + n + turn) % 4] for turn in range(4)]
        found = [known.is_repeated(source, name, value, 0.0) for source, name in order]
        assert found == [False, True, True, True], n


def test_source_that_is_read_last_repeats_the_values_of_several_others() -> None:
    known = RepeatedValues()
    values = [0.1, 0.2, 0.3, 0.2, 0.1]
    for n, value in enumerate(values):
        first, second = ("stdout", "csv") if n % 2 else ("csv", "stdout")
        assert not known.is_repeated(first, "loss", value, 0.0)
        assert known.is_repeated(second, "loss", value, 0.0)
    assert all(known.is_repeated("wandb", "loss", value, 0.0) for value in values)
    assert not known.is_repeated("wandb", "loss", values[0], 0.0)


def test_nearest_value_is_repeated_whatever_else_was_rounded() -> None:
    """A printed 0.2 may be a rounded 0.25, but it is not if 0.25 was printed as well."""
    known = RepeatedValues()
    values = [1.0, 0.5, 0.25, 0.2, *(n / 1000 for n in range(199, 0, -1))]
    for value in values:
        assert not known.is_repeated("stdout", "loss", value, precision_of(value))
    for value in values:
        assert known.is_repeated("csv", "loss", value, 0.0), value
    assert not known.is_repeated("csv", "loss", 0.2, 0.0)


def test_other_values_and_other_metrics_are_not_repeated() -> None:
    known = RepeatedValues()
    assert not known.is_repeated("stdout", "loss", 0.31, precision_of(0.31))
    assert not known.is_repeated("tensorboard", "train/loss", 0.3201, 0.0)
    assert not known.is_repeated("tensorboard", "accuracy", 0.31, 0.0)
    assert not known.is_repeated("stdout", "loss", 0.31, precision_of(0.31)), "the same source"


def test_name_with_more_words_needs_more_digits() -> None:
    known = RepeatedValues()
    assert not known.is_repeated("stdout", "test", 0.6, precision_of(0.6))
    assert not known.is_repeated("csv", "test/Logloss", 0.61, 0.0)
    assert not known.is_repeated("stdout", "test", 0.6718021, precision_of(0.6718021))
    assert known.is_repeated("csv", "test/Logloss", 0.6718021, 0.0)


def test_nan_is_repeated_once() -> None:
    known = RepeatedValues()
    assert not known.is_repeated("stdout", "loss", math.nan, 0.0)
    assert known.is_repeated("csv", "loss", math.nan, 0.0)
    assert not known.is_repeated("csv", "loss", math.nan, 0.0)


def test_all_names_share_the_values_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_sources, "MAX_ALL_KEPT", 80)
    known = RepeatedValues()
    for n in range(100):
        for layer in range(4):
            assert not known.is_repeated("tensorboard", f"layer{layer}/norm", n * 1.0, 0.0)
    found = [known.is_repeated("csv", "layer1/norm", n * 1.0, 0.0) for n in range(100)]
    assert found == [n >= 80 for n in range(100)], "the newest 20 of each name"


def test_many_values_are_compared_in_linear_time() -> None:
    known = RepeatedValues()
    began = time.thread_time()
    for n in range(100_000):
        known.is_repeated("stdout", "loss", n * 1.0, 0.5)
    for n in range(100_000):
        known.is_repeated("csv", "loss", -1.0 - n, 0.0)
    assert time.thread_time() - began < 10.0


def test_time_per_value_does_not_grow_with_the_number_of_names() -> None:
    def time_s(count: int) -> float:
        repeated, began = RepeatedValues(), time.thread_time()
        for number in range(count):
            for source, name in (("tensorboard", "layer_{}/norm"), ("csv", "layer_{}_norm")):
                found = repeated.is_repeated(source, name.format(number), float(number), 0.0)
                assert found is (source == "csv")
        return time.thread_time() - began

    time_s(100)
    assert time_s(4000) < 40 * max(time_s(400), 0.01)  # 10 if linear, 100 if quadratic


def test_names_with_many_words_are_compared_with_shorter_ones() -> None:
    repeated = RepeatedValues()
    long = "a_b_c_d_e_f_g_h_i_j_loss"
    assert not repeated.is_repeated("csv", "loss", 0.123456, 0.0)
    assert repeated.is_repeated("tensorboard", long, 0.123456, 0.0)
    assert not repeated.is_repeated("tensorboard", long, 0.654321, 0.0)
    assert repeated.is_repeated("stdout", "loss", 0.654321, 0.0)

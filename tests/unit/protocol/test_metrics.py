"""Last and best of what a script measured."""

from __future__ import annotations

import math

import pytest

from runner.protocol.metrics import (
    default_goal,
    describe_non_finite,
    format_metric,
    parse_metric_line,
    summarize_metrics,
)


def lines(name: str, *values: object) -> list[str]:
    return [
        f'{{"time": "t", "attempt": 1, "step": {step}, "name": "{name}", "value": {value}}}'
        for step, value in enumerate(values)
    ]


def summary_of(*texts: str, goals: dict[str, object] | None = None):
    points = [point for text in texts if (point := parse_metric_line(text))]
    return {s.name: s for s in summarize_metrics(points, goals or {})}  # type: ignore[arg-type]


def test_last_and_best_are_kept_apart() -> None:
    accuracy = summary_of(*lines("accuracy", 0.5, 0.9, 0.8))["accuracy"]
    assert (accuracy.last, accuracy.best, accuracy.best_step, accuracy.count) == (0.8, 0.9, 1, 3)


def test_losses_are_minimised_unless_a_goal_is_given() -> None:
    assert summary_of(*lines("val_loss", 0.5, 0.1, 0.3))["val_loss"].best == 0.1
    assert summary_of(*lines("score", 3, 1, 2), goals={"score": "min"})["score"].best == 1


@pytest.mark.parametrize(("count", "said"), [(5, "m0, m1, m2, m3, m4: "), (7, "m4 and 2 more: ")])
def test_metrics_that_are_not_finite_are_named_up_to_five(count: int, said: str) -> None:
    values = {f"m{number}": math.nan for number in range(count)}
    assert said in describe_non_finite({"good": 1.0, **values}, "r-1")
    assert describe_non_finite({"good": 1.0}, "r-1") == ""


def test_nan_is_never_the_best_value() -> None:
    assert summary_of(*lines("accuracy", 0.5, '"NaN"'))["accuracy"].best == 0.5
    only = summary_of(*lines("accuracy", '"NaN"', '"Infinity"'))["accuracy"]
    assert only.best is None
    assert math.isinf(only.last)


@pytest.mark.parametrize("text", ["", "{", '{"name": "x"}', '{"name": "x", "value": "high"}', "3"])
def test_lines_without_a_metric_are_skipped(text: str) -> None:
    assert parse_metric_line(text) is None


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        *(
            (name, "min")
            for name in ("loss", "val_loss", "main/loss", "train/loss_step", "valLoss")
        ),
        *((name, "min") for name in ("mlogloss", "eval-RMSE", "test_wer", "perplexity", "ppl")),
        *((name, "max") for name in ("glossiness", "auc", "main/accuracy", "elbo", "reward")),
    ],
)
def test_goal_by_name_matches_whole_words(name: str, goal: str) -> None:
    assert default_goal(name) == goal


@pytest.mark.parametrize(
    ("value", "text"), [(0.99123, "0.9912"), (1e-7, "1e-07"), (123456.0, "1.235e+05"), (0.0, "0")]
)
def test_values_are_written_with_four_digits(value: float, text: str) -> None:
    assert format_metric(value) == text

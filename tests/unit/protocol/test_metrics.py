"""Last and best of what a script measured."""

from __future__ import annotations

import json
import math

import pytest

from runner.core.points import find_history
from runner.protocol.metrics import (
    METRIC_WORDS,
    MetricPoint,
    ResumeMark,
    choose_metric,
    choose_shown,
    default_goal,
    describe_non_finite,
    format_metric,
    is_metric_name,
    select_shown,
    summarize_metrics,
)


def lines(name: str, *values: object) -> list[str]:
    return [
        f'{{"time": "t", "attempt": 1, "step": {step}, "name": "{name}", "value": {value}}}'
        for step, value in enumerate(values)
    ]


def summary_of(*texts: str, goals: dict[str, object] | None = None):
    points = [point for text in texts if (point := MetricPoint.load(text))]
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
    assert MetricPoint.load(text) is None


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


_METRICS = """\
loss Loss val_loss valLoss main/loss train_loss_epoch train/loss_step validation/main/accuracy
acc@1 top5 accuracy_top_5 f1_macro precision_at_10 metrics/mAP50-95(B) mAP@0.5 rouge1 eval_rougeL
mlogloss episode_reward_mean rollout/ep_rew_mean reward_per_episode success_rate batch_loss
epoch_accuracy roc_auc eval-RMSE
"""
_COUNTS = """\
batch_size batch-size BatchSize batchSize epoch Epochs max_epochs step global_step steps iteration
iterations lr LearningRate lr-Adam samples num_samples train_samples_per_second time elapsed_time
time_to_accuracy throughput images/sec train_runtime total_flos num_errors loss_scale loss_weight
error_count dropout_rate sample_rate momentum seed grad_norm gpu_memory validation best total 1 _
glossy sharpe mapping returned
"""


@pytest.mark.parametrize("name", [*_METRICS.split(), "Validation loss", "Error rate", "Test R2"])
def test_name_of_a_metric_is_recognised_in_any_spelling(name: str) -> None:
    assert is_metric_name(name)


@pytest.mark.parametrize(
    "name",
    [*_COUNTS.split(), "", "Batch size", "learning rate", "Elapsed time", "accuracy threshold"],
)
def test_name_of_a_count_or_parameter_is_no_metric(name: str) -> None:
    assert not is_metric_name(name)
    assert choose_metric([name, "val_acc"]) == "val_acc"
    assert choose_metric([name]) is None


def test_parameter_of_the_run_is_no_metric() -> None:
    names = ["Target score", "targetScore", "target-score", "loss"]
    assert choose_metric(names) == "Target score"
    assert choose_metric(names, ["target_score"]) == "loss"
    assert choose_metric(names[:3], ["target_score"]) is None


def test_run_without_a_clear_metric_shows_a_value_that_is_no_count() -> None:
    names = ["Batch size", "elapsed_time", "alpha", "sharpe", "epoch"]
    assert choose_shown(names, ["alpha"]) == "sharpe"
    assert choose_shown([*names, "val_loss"], ["alpha"]) == "val_loss"
    assert choose_shown(["epoch", "alpha"], ["alpha"]) is None


def test_words_in_printed_lines_are_those_of_metrics() -> None:
    assert all(map(is_metric_name, METRIC_WORDS))
    assert is_metric_name("return")
    assert not is_metric_name("return", METRIC_WORDS), "`return: 1` is printed for other reasons"


def at(second: int) -> str:
    return f"2026-11-29T10:00:{second:02}+00:00"


def reported(
    attempt: int, *steps: int | None, start: int = 0, value: float = 0.5
) -> list[MetricPoint]:
    return [MetricPoint(at(start + n), attempt, step, "acc", value) for n, step in enumerate(steps)]


def lost_steps(points: list[MetricPoint], *marks: ResumeMark) -> list[tuple[int, int | None]]:
    history = find_history(points, marks)
    return [(each.attempt, each.step) for each in points if history.is_lost(each)]


def test_one_attempt_loses_nothing() -> None:
    assert lost_steps(reported(1, 3, 1, None, 2)) == []


def test_steps_that_a_later_attempt_did_again_are_lost() -> None:
    points = reported(1, 4, 5, 6, 7) + reported(2, 6, 7, 8, start=20)
    assert lost_steps(points) == [(1, 6), (1, 7)]


def test_values_after_the_checkpoint_are_lost_before_they_are_done_again() -> None:
    points = reported(1, 4, 5, 6, 7)
    assert lost_steps(points, ResumeMark(at(20), 2, 1, at(1))) == [(1, 6), (1, 7)]


def test_value_just_after_the_checkpoint_is_kept_once_the_next_step_follows() -> None:
    mark = ResumeMark(at(20), 2, 1, at(1))
    assert lost_steps(reported(1, 4, 5, 6, 7) + reported(2, 7, start=21), mark) == [(1, 7)]


def test_all_values_are_lost_if_the_next_attempt_starts_from_the_beginning() -> None:
    points = reported(1, 1, 2, None)
    assert lost_steps(points, ResumeMark(at(20), 2, 0, "")) == [(1, 1), (1, 2), (1, None)]


def test_attempt_between_a_checkpoint_and_its_next_use_is_lost() -> None:
    points = reported(1, 1, 2) + reported(2, 3, 4, start=10) + reported(3, start=20)
    marks = ResumeMark(at(9), 2, 1, at(1)), ResumeMark(at(20), 3, 1, at(1))
    assert lost_steps(points, *marks) == [(2, 3), (2, 4)]


def test_values_without_a_step_are_kept_until_the_checkpoint() -> None:
    points = reported(1, None, None, None) + reported(2, None, start=20)
    assert lost_steps(points, ResumeMark(at(19), 2, 1, at(1))) == [(1, None)]


def test_best_value_of_lost_work_is_not_the_best_value() -> None:
    points = [
        *reported(1, 5, value=0.6), *reported(1, 7, start=1, value=0.99),
        *reported(2, 7, start=20, value=0.7),
    ]  # fmt: skip
    [summary] = summarize_metrics(points, {"acc": "max"}, find_history(points))
    assert (summary.best, summary.best_step, summary.lost, summary.count) == (0.7, 7, 1, 2)


def test_mark_is_no_value_for_readers_of_values() -> None:
    assert MetricPoint.load(json.dumps(ResumeMark(at(1), 2, 1, at(0)).to_json())) is None


def test_screen_has_ten_metrics_and_the_important_ones_first() -> None:
    names = [f"layer_{n}" for n in range(30)] + [f"val_{n}_loss" for n in range(5)] + ["goal"]
    shown = select_shown(names, ("goal", None, "missing"))
    assert shown[:6] == ["goal", *(f"val_{n}_loss" for n in range(5))]
    assert len(shown) == 10
    assert select_shown(["b", "a"], ("a",)) == ["a", "b"]

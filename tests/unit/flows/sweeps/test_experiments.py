"""The summaries of `runner experiments`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.states import RunState, RunStatus, WaitCause
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.runs.history import RunFilter, RunHistory, SweepLine
from runner.flows.runs.rows import RunRow, ended_row
from runner.flows.sweeps import experiments
from runner.flows.sweeps.experiments import (
    Experiment,
    Leaderboard,
    find_experiment,
    load_leaderboard,
)
from runner.flows.sweeps.ranking import compared_metric
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.results import STOPPED_EARLY, RunResult
from runner.protocol.run_spec import RunSpec

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def row(number: int, state: str, took_s: float = 0, why: str = "", **metrics: float) -> RunRow:
    run_id = f"cats-20261123-1200{number:02d}-abcd"
    spec = RunSpec(run_id=run_id, experiment="cats", created=NOW, params={"lr": number})
    status = RunStatus(RunState(state), why)
    result: Any = None
    if state in ("succeeded", "failed"):
        result = RunResult(
            status=state, attempt=1, exit_code=0, step=None, code=None, message=None,
            started=NOW, ended=NOW + timedelta(seconds=took_s), stages_s={}, metrics=metrics,
            outputs=(),
        )  # fmt: skip
    return RunRow(run_id, spec, status, result, attempts=1)


ROWS = (
    row(7, "running"),
    row(6, "failed", 9, "out of memory\nmore", acc=0.99),
    row(5, "succeeded", 30, acc=0.5),
    row(4, "succeeded", 10, acc=0.9, loss=3.0),
    row(3, "lost", why="the node was lost"),
    row(2, "failed", 11, "out of memory"),
    row(1, "succeeded", 20, acc=float("nan"), loss=2.0),
)


def test_summary_counts_states_and_groups_causes() -> None:
    cats = Experiment("cats", ROWS)
    assert cats.states == {"running": 1, "succeeded": 3, "failed": 2, "lost": 1}
    assert {cause: len(rows) for cause, rows in cats.failures.items()} == {
        "out of memory": 2,
        "the node was lost": 1,
    }
    assert next(iter(cats.failures)) == "out of memory", "the most frequent is first"
    assert cats.durations_s == {"total": 80, "median": 11, "longest": 30}


def test_best_run_has_succeeded_with_a_finite_metric() -> None:
    cats = Experiment("cats", ROWS)
    assert cats.main_metric == "acc"
    best, smallest = cats.best("acc"), cats.best("loss")
    assert best is not None
    assert (best.metrics["acc"], best.params) == (0.9, {"lr": 4})
    assert smallest is not None
    assert smallest.metrics["loss"] == 2.0
    assert Experiment("cats", ROWS[-1:]).best("acc") is None
    with pytest.raises(RunnerError, match="no run has a metric 'accc'"):
        cats.best("accc")


def test_experiment_without_ended_runs_has_no_durations_and_no_best() -> None:
    cats = Experiment("cats", ROWS[:1])
    assert (cats.durations_s, cats.main_metric, cats.failures) == ({}, None, {})


def board(*rows: RunRow, **changes: Any) -> Leaderboard:
    names = [str(number) for number in range(len(rows))]
    runs = dict(zip(names, (each.run_id for each in rows), strict=True))
    params = {name: {"lr": name} for name in names}
    sweep = RunGroup("cats-sweep", "cats", NOW, "job", "local", runs, {}, trials=params)
    return Leaderboard("cats-sweep", rows, sweep, changes.pop("metric", "acc"), **changes)


def test_leaderboard_says_why_trials_ended_and_how_to_continue() -> None:
    first_failed = "the first 5 trials failed; trial 1: out of memory"
    found = board(*ROWS, row(8, "cancelled", why=first_failed), row(9, "queued")).problems
    assert found == [
        f"2 failed: out of memory   details: runner why {ROWS[1].run_id}",
        "1 lost: the node was lost",
        f"1 cancelled: {first_failed}",
        "to start them again with the same code: runner sweep resume cats-sweep",
    ]
    assert board(row(1, "succeeded", acc=0.5), row(2, "running")).problems == []


def test_duration_of_a_resumed_trial_is_that_of_all_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, newest, queued = row(1, "failed", 20), row(2, "succeeded", 30), row(3, "queued")
    evicted = replace(newest, attempts=2, first_started=NOW - timedelta(seconds=60))
    rows = {each.run_id: each for each in (first, evicted, queued)}
    listed = RunHistory((*rows.values(),), 0)
    monkeypatch.setattr(experiments, "list_runs", lambda *_, **__: listed)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(experiments, "with_metrics", lambda _, each: each)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(experiments, "_find_pause", lambda *_: None)
    connection = Connection(local_outputs(LocalState(20001, 20002, 1, 1)), {})
    sweep = board(evicted).sweep

    def took(*runs: RunRow) -> float | None:
        *earlier, last = (each.run_id for each in runs)
        chain = replace(sweep, runs={"0": last}, earlier={"0": tuple(earlier)})
        return load_leaderboard(connection, chain).rows[0].took_s

    assert took(first, evicted) == 20 + 60 + 30
    assert took(first) == 20
    assert took(first, queued) is None, "it has not ended"


def test_leaderboard_of_a_paused_sweep_names_only_the_command_that_ends_the_pause() -> None:
    pause = WaitCause("JobDisabled", "its job is paused", "runner sweep unpause cats-sweep")
    ended = row(1, "failed")
    assert board(ended).problems[-1].endswith("runner sweep resume cats-sweep")
    assert board(ended).cause is None
    assert "resume" not in "".join(board(ended, pause=pause).problems)
    assert board(ended, pause=pause).cause == pause
    by_pause = replace(ended, status=RunStatus(RunState.FAILED, cause=pause))
    assert (board(by_pause).problems, board(by_pause).cause) == ([], pause)
    assert board(by_pause).shown_states == {"paused": 1}


def test_leaderboard_of_an_interrupted_submission_names_the_command_that_completes_it() -> None:
    found = board(row(1, "lost", why="its task does not exist"), is_submitting=True).problems
    assert "the submission is in progress, or it was interrupted" in found[1]
    assert found[2].endswith("runner sweep resume cats-sweep")


@pytest.mark.parametrize(
    ("metrics", "wanted", "problem"),
    [
        ({}, "acc", "no trial reported acc: print it like `acc: 0.1`"),
        ({}, None, "no trial reported a metric: print it like `loss: 0.1`"),
        ({"loss": 1.0}, "acc", "no trial reported acc; --metric takes one of loss"),
        (
            {"Batch size": 512.0, "Epochs": 3.0},
            None,
            "no reported value is clearly a metric; --metric takes one of Batch size, Epochs",
        ),
        (
            {"acc": float("nan")},
            "acc",
            "no trial that succeeded has a finite value of acc: correct the script",
        ),
        (
            {"acc": float("nan"), "loss": 0.1},
            "acc",
            "no trial that succeeded has a finite value of acc; --metric takes one of loss",
        ),
        ({"acc": 0.5}, "acc", ""),
    ],
)
def test_leaderboard_names_a_metric_that_never_came(
    metrics: dict[str, float], wanted: str | None, problem: str
) -> None:
    rows = (row(1, "succeeded", 0, "", **metrics), row(2, "failed", acc=0.9))
    found = board(*rows, metric=wanted, wanted=wanted).metric_problem
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("metrics", "trial", "compared"),
    [
        ({"Batch size": 512.0, "val_acc": 0.5}, {}, "val_acc"),
        ({"lr": 0.1, "score": 0.5, "loss": 0.1}, {"params": {"score": 1}}, "loss"),
        ({"Batch size": 512.0, "sharpe": 2.0}, {}, None),
        ({"Batch size": 512.0, "loss": 2.0}, {"metric": "Batch size"}, "Batch size"),
        ({"Batch size": 512.0, "loss": 2.0}, {"metric": "accuracy"}, None),
    ],
)
def test_trials_are_ranked_by_the_named_or_a_clear_metric(
    metrics: dict[str, float], trial: dict[str, Any], compared: str | None
) -> None:
    first = row(1, "succeeded", 0, "", **metrics)
    assert first.spec is not None
    first = replace(first, spec=replace(first.spec, trial=trial))
    assert compared_metric([row(2, "running"), first]) == compared
    if "metric" not in trial:
        assert Experiment("cats", (first,)).main_metric == compared


def test_trials_without_a_clear_metric_are_not_ranked() -> None:
    first = row(1, "succeeded", 0, "", **{"Batch size": 512.0})
    with pytest.raises(RunnerError) as caught:
        board(first, metric=None).check_metric()
    assert caught.value.code == "R-METRIC-UNCLEAR"
    assert caught.value.why.endswith("--metric takes one of Batch size")
    assert Experiment("cats", (first,)).metric_problem == caught.value.why
    board(first, metric="Batch size").check_metric()
    board(row(1, "failed", loss=1), metric=None).check_metric()
    assert Experiment("cats", (row(1, "succeeded", loss=1),)).metric_problem == ""


def test_words_after_the_swept_ones_are_the_parameters_of_a_trial() -> None:
    first = row(1, "succeeded", loss=1)
    assert first.spec is not None
    command = ("t.py", "--lr", "0.1", "--lr", "0.7", "--seed", "3")
    spec = replace(first.spec, params={}, command=command, trial={"params": {"lr": 0.1}})
    found = board(replace(first, spec=spec))
    assert found.params(found.rows[0]) == {"lr": 0.7}


def test_unknown_experiment_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(_: Connection, *, limit: int | None, only: RunFilter) -> RunHistory:
        assert limit is None
        return RunHistory(tuple(each for each in ROWS if only.accepts(each)), 0)

    monkeypatch.setattr(experiments, "list_runs", listed)
    connection = Connection(local_outputs(LocalState(20001, 20002, 1, 1)), {})
    assert len(find_experiment(connection, "Cats").rows) == len(ROWS)
    with pytest.raises(RunnerError) as caught:
        find_experiment(connection, "cat")
    assert caught.value.fix == "runner experiments show cats"


def test_trials_that_their_sweep_stopped_are_counted_apart_from_those_that_succeeded() -> None:
    early = row(1, "succeeded", loss=1)
    assert early.result is not None
    result = replace(early.result, code=STOPPED_EARLY, message="stopped early: it is worse")
    stopped = ended_row(early.spec or RunSpec(run_id=early.run_id), result)
    rows = (stopped, row(2, "succeeded", loss=1), row(3, "failed"))
    shown = {"succeeded": 1, "failed": 1, "stopped early": 1}
    assert Experiment("cats", rows).shown_states == board(*rows).shown_states == shown
    assert SweepLine("cats-sweep", [], [*rows]).states == shown
    assert Experiment("cats", rows).states == {"succeeded": 2, "failed": 1}, "as programs read it"
    assert stopped.status is not None
    assert stopped.status.text == "stopped early: it is worse"


def test_failures_that_differ_in_numbers_are_one_cause() -> None:
    def failed(number: int, error: str) -> RunRow:
        each = row(number, "failed", why="python t.py exited with code 1")
        assert each.status is not None
        return replace(each, status=replace(each.status, error=error))

    rows = (
        failed(1, "KeyError: 'x'"),
        failed(2, "ValueError: lr 0.91 diverges"),
        failed(3, "ValueError: lr 9.2e-05 diverges"),
        failed(4, "ValueError: lr 3 is negative"),
    )
    causes = {cause: len(found) for cause, found in Experiment("cats", rows).failures.items()}
    assert causes == {
        "ValueError: lr 0.91 diverges": 2,
        "KeyError: 'x'": 1,
        "ValueError: lr 3 is negative": 1,
    }
    assert board(*rows).problems[0].startswith("2 failed: ValueError: lr 0.91 diverges   details:")
    assert rows[0].status is not None
    assert rows[0].status.text == "failed: python t.py exited with code 1: KeyError: 'x'"


def test_goal_of_a_sweep_is_that_of_its_trials_everywhere() -> None:
    trial = {"metric": "regret", "goal": "min"}
    spec = RunSpec(run_id="a", trial=trial, primary_metric="acc", goal="max")
    assert spec.named_metrics == ("regret", "acc")
    assert spec.goals == {"regret": "min", "acc": "max"}
    same = replace(spec, trial={"metric": "acc", "goal": "min"})
    assert (same.named_metrics, same.goals) == (("acc",), {"acc": "min"})
    assert RunSpec(run_id="a", trial={"metric": None}).goals == {}

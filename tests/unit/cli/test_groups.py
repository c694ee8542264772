"""The display of the tasks of an active group."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runner.cli.ui.groups import FEW_TASKS, GroupDisplay, count_states
from runner.cli.ui.output import Output
from runner.core.states import RunState, RunStatus, WaitCause
from runner.flows.runs.rows import RunRow
from runner.flows.sweeps.groups import GroupView
from runner.protocol.groups import RunGroup

Capture = pytest.CaptureFixture[str]


def group(count: int) -> RunGroup:
    names = [f"t{n}" for n in range(count)]
    runs = {name: f"cats-{name}-20261121-143005-k3f9" for name in names}
    moment = datetime(2026, 11, 21, 14, 30, 5, tzinfo=UTC)
    return RunGroup("cats-20261121-143005-k3f9", "cats", moment, "j", "local", runs,
                 dict.fromkeys(names, ()))  # fmt: skip


def view(of: RunGroup, states: dict[str, RunStatus], others: RunState) -> GroupView:
    rows = {
        name: RunRow(run_id, None, states.get(name, RunStatus(others)), None)
        for name, run_id in of.runs.items()
    }
    return GroupView(of, rows)


def shown(of: RunGroup, capsys: Capture, *views: GroupView) -> list[str]:
    with Output().stages() as stages:
        display = GroupDisplay(Output(), stages, of, clock=lambda: 0.0)
        for each in views:
            display.show(each)
    return capsys.readouterr().err.splitlines()


def test_small_group_prints_each_change_in_file_order(capsys: Capture) -> None:
    few = group(2)
    blocked = RunStatus(RunState.CANCELLED, f"blocked by {few.runs['t0']}, which failed")
    failed = {"t0": RunStatus(RunState.FAILED, "exit code 1"), "t1": blocked}
    queued = view(few, {}, RunState.QUEUED)
    assert shown(few, capsys, queued, queued, view(few, failed, RunState.LOST)) == [
        "t0  queued",
        "t1  queued",
        "t0  failed: exit code 1",
        "t1  cancelled: blocked by t0, which failed",
    ]


def test_groups_of_any_size_name_once_what_their_tasks_are_stuck_on(capsys: Capture) -> None:
    cause = WaitCause("PoolMissing", "pool gone does not exist", "runner sweep move cats --to POOL")
    stuck = RunStatus(RunState.QUEUED, cause.message, fix=cause.fix, cause=cause)
    for count in (1, FEW_TASKS + 1):
        of = group(count)
        waiting = view(of, dict.fromkeys(of.runs, stuck), RunState.QUEUED)
        lines = [line for line in shown(of, capsys, waiting, waiting) if cause.message in line]
        assert len(lines) == 1
        assert lines[0].endswith(f"fix: {cause.fix}")


def test_large_group_prints_counts_and_failures(capsys: Capture) -> None:
    many = group(FEW_TASKS + 88)
    failed = {"t7": RunStatus(RunState.FAILED, "exit code 1")}
    views = (
        view(many, {}, RunState.QUEUED),
        view(many, {}, RunState.RUNNING),
        view(many, failed, RunState.RUNNING),
        view(many, failed, RunState.SUCCEEDED),
    )
    assert shown(many, capsys, *views) == [
        "0 of 100 tasks ended: 100 queued",
        "t7  failed: exit code 1",
        "100 of 100 tasks ended: 99 succeeded, 1 failed",
    ]
    assert count_states(views[2], ("failed", "lost", "running")) == "1 failed, 99 running"


def test_large_sweep_counts_trials_and_with_a_merge_task_runs(capsys: Capture) -> None:
    tasks = group(FEW_TASKS + 88)
    trials = {name: {"lr": 0.1} for name in tasks.runs}
    for swept, noun in ((trials, "trials"), ({"t0": {"lr": 0.1}}, "runs")):
        sweep = replace(tasks, trials=swept)
        lines = shown(sweep, capsys, view(sweep, {}, RunState.QUEUED))
        assert lines == [f"0 of 100 {noun} ended: 100 queued"]

"""The steps of a move: continued by whoever runs the command next, wherever it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.contract import PoolOutput
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    describe_pool,
    explain_misfit,
    next_pause_step,
    next_step,
    with_note,
)
from runner.protocol.run_spec import Resources, RunSpec

MOVE = JobNote("move", "swept-1", "big")
PAUSE = JobNote("pause", "swept-1")
DRAIN = JobNote("drain", "small")
JOB = JobSnapshot("swept-1", "active", "small")
SMALL = PoolOutput("small", "Standard_D2s_v3", 0, 2, True, 4, containers=False)
BIG = replace(SMALL, id="big")


class Service:
    """A job of Batch, and whether the documents of its runs name the new pool."""

    def __init__(self, job: JobSnapshot) -> None:
        self.job = job
        self.is_recorded = False
        self.ran_in: list[str] = []

    def take(self, step: JobStep, note: JobNote) -> None:
        if step is JobStep.MOVE:
            assert self.job.state == "disabled"
            self.job = replace(self.job, pool=note.to)
        elif step is JobStep.RECORD:
            assert self.job.state == "disabled"
            self.is_recorded = True
        elif step is JobStep.WAIT:
            after = {"disabling": "disabled", "enabling": "active"}
            self.job = replace(self.job, state=after[self.job.state])
        elif step is JobStep.NOTE:
            self.job = replace(self.job, note=note)
        elif step is JobStep.CLEAR:
            self.job = replace(self.job, note=None)
        else:
            state = {JobStep.DISABLE: "disabling", JobStep.ENABLE: "enabling"}[step]
            self.job = replace(self.job, state=state)

    def steps(self, note: JobNote) -> Iterator[JobStep]:
        """Move the job, and yield each step after it was taken."""
        is_requested = False
        while True:
            step = next_step(
                self.job, note, is_recorded=self.is_recorded, is_requested=is_requested
            )
            if step is JobStep.DONE:
                return
            self.take(step, note)
            is_requested |= step is JobStep.DISABLE
            yield step


def test_move_disables_records_and_enables_in_this_order() -> None:
    assert list(Service(JOB).steps(MOVE)) == [
        *(JobStep.NOTE, JobStep.DISABLE, JobStep.WAIT, JobStep.MOVE, JobStep.RECORD),
        *(JobStep.ENABLE, JobStep.WAIT, JobStep.CLEAR),
    ]


@pytest.mark.feature(41)
@given(st.lists(st.integers(0, 8), max_size=4))
def test_move_killed_after_any_steps_is_completed_by_the_next_one(kills: list[int]) -> None:
    service = Service(JOB)
    for count in kills:
        for _, _ in zip(range(count), service.steps(MOVE), strict=False):
            pass
    taken = list(service.steps(MOVE))
    assert len(taken) <= 9
    assert (service.job.state, service.job.pool, service.job.note) == ("active", "big", None)
    assert service.is_recorded
    assert list(service.steps(MOVE)) == []


@given(st.integers(0, 8))
def test_interrupted_move_can_go_elsewhere_or_back(count: int) -> None:
    for to in ("other", "small"):
        service = Service(JOB)
        for _, _ in zip(range(count), service.steps(MOVE), strict=False):
            pass
        service.is_recorded = to == "small" and not service.is_recorded
        list(service.steps(replace(MOVE, to=to)))
        assert (service.job.state, service.job.pool, service.job.note) == ("active", to, None)


@pytest.mark.parametrize("note", [PAUSE, None])  # None: disabled by another client
def test_paused_job_moves_and_stays_paused(note: JobNote | None) -> None:
    service = Service(replace(JOB, state="disabled", note=note))
    assert list(service.steps(MOVE)) == [JobStep.MOVE, JobStep.RECORD]
    assert (service.job.state, service.job.note) == ("disabled", note)


def test_job_waiting_for_its_tasks_is_polled() -> None:
    job = replace(JOB, state="disabling", note=MOVE)
    assert next_step(job, MOVE, is_recorded=False) is JobStep.DISABLE
    assert next_step(job, MOVE, is_recorded=False, is_requested=True) is JobStep.WAIT


def pause_steps(service: Service, wanted: JobNote) -> list[JobStep]:
    steps: list[JobStep] = []
    is_requested = False
    while (
        step := next_pause_step(service.job, wanted, wait_for_tasks=True, is_requested=is_requested)
    ) is not JobStep.DONE:
        service.take(step, wanted)
        steps.append(step)
        is_requested |= step is JobStep.DISABLE
    return steps


def test_pause_notes_before_it_disables() -> None:
    for note in (PAUSE, DRAIN):
        assert pause_steps(Service(JOB), note) == [JobStep.NOTE, JobStep.DISABLE, JobStep.WAIT]
    waiting = replace(JOB, state="disabling", note=PAUSE)
    assert next_pause_step(waiting, PAUSE, wait_for_tasks=False, is_requested=True) is JobStep.DONE


@pytest.mark.parametrize("note", [PAUSE, DRAIN])
@pytest.mark.parametrize("waits", [True, False])
def test_pause_disables_a_job_again_that_another_client_enabled(note: JobNote, waits: bool) -> None:
    enabled = replace(JOB, note=note)
    step = next_pause_step(enabled, note, wait_for_tasks=waits, is_requested=True)
    assert step is JobStep.DISABLE


@pytest.mark.parametrize("state", ["disabled", "disabling"])
@pytest.mark.parametrize("note", [PAUSE, None])  # None: disabled by another client
def test_drain_writes_no_note_into_a_disabled_job(note: JobNote | None, state: str) -> None:
    service = Service(replace(JOB, state=state, note=note))
    waits = [JobStep.DISABLE, JobStep.WAIT] if state == "disabling" else []
    assert pause_steps(service, DRAIN) == waits
    assert (service.job.state, service.job.note) == ("disabled", note)


def test_pause_of_a_disabled_job_is_noted() -> None:
    for note in (DRAIN, None):
        assert pause_steps(Service(replace(JOB, state="disabled", note=note)), PAUSE) == [
            JobStep.NOTE
        ]


@pytest.mark.parametrize(
    ("note", "command"),
    [
        (MOVE, "runner sweep move swept-1 --to big"),
        (PAUSE, "runner sweep unpause swept-1"),
        (JobNote("drain", "small", "big"), "runner pool drain small --to big"),
        (JobNote("drain", "small"), "runner pool enable small"),
    ],
)
def test_note_is_read_as_written_and_names_the_next_command(note: JobNote, command: str) -> None:
    assert JobNote.parse(note.to_text()) == note
    assert note.command == command
    items = dict(with_note(replace(JOB, other_metadata=(("team", "vision"),)), note))
    assert items == {"team": "vision", "runner": note.to_text()}


@pytest.mark.parametrize("text", ["", "move", "sing a song", "move a b c"])
def test_metadata_of_other_programs_is_no_note(text: str) -> None:
    assert JobNote.parse(text) is None


@pytest.mark.parametrize(
    ("spec", "pool", "why"),
    [
        (RunSpec(run_id="r"), BIG, ""),
        (RunSpec(run_id="r", resources=Resources(gpus=2)), BIG, ""),  # they are in neither pool
        (RunSpec(run_id="r", image="python:3.12"), BIG, "runs no containers"),
        (RunSpec(run_id="r"), replace(BIG, containers=True), "runs containers only"),
        (
            RunSpec(run_id="r", resources=Resources(nodes=2)),
            replace(BIG, task_nodes=1),
            "(2 nodes needed)",
        ),
        (RunSpec(run_id="r", rehearsal={}), replace(BIG, spot=False), "dedicated nodes"),
    ],
)
def test_run_fits_a_pool_without_new_gaps(spec: RunSpec, pool: PoolOutput, why: str) -> None:
    found = explain_misfit(spec, 1, pool, 1, SMALL)
    assert (why in found) if why else not found


def test_missing_gpus_and_slots_are_named() -> None:
    with_gpu = replace(SMALL, gpus=1)
    run = RunSpec(run_id="r", resources=Resources(gpus=1))
    assert explain_misfit(run, 1, BIG, 1, with_gpu) == "has no GPUs (1 needed)"
    assert (
        explain_misfit(RunSpec(run_id="r"), 4, BIG, 2, SMALL) == "has 2 slots per node (4 needed)"
    )
    in_container = RunSpec(run_id="r", image="python:3.12")
    anywhere, gpus = replace(BIG, containers=None), replace(with_gpu, containers=None)
    assert "no GPU" in explain_misfit(in_container, 1, anywhere, 1, gpus)


def test_undeclared_pool_has_the_gpus_of_its_size() -> None:
    found = describe_pool(
        "mine", "standard_nc4as_t4_v3", spot=True, max_nodes=3, slots=1, inter_node=True,
        containers=True,
    )  # fmt: skip
    assert explain_misfit(RunSpec(run_id="r"), 1, found, 1, SMALL) == "runs containers only"
    assert (found.gpus, found.vcpus, found.task_nodes) == (1, 4, 3)

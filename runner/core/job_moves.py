"""Moving a Batch job to another pool, or pausing it: the note in the job, and the next step.

Batch changes the pool of a job only while the job is disabled, so a move is a series of requests,
and the client can be killed after any of them. The progress is stored in the job: a note in its
metadata names the action, and its state and pool show how far it is. `next_step` decides from them
alone, so the same command continues where another client stopped.

A fall-back is a move that no person asked for, so several clients may begin it at the same time.
Only one of them can: the note of a fall-back is a claim, which is written if the job has not
changed since the decision. Whoever sees the claim takes the next step, and nobody replaces it by
another fall-back.

Batch ends a disabled job all of whose tasks have ended, and the note of an ended job cannot be
removed. A pause therefore consists of the note and of a blob, `paused/<job>`, which is written
before the note and deleted to end the pause. Only both together are a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

from runner.contract import PoolOutput
from runner.core.planning.pool_choice import missing_resources
from runner.core.pricing.machines import find_machine
from runner.protocol.run_spec import PoolStay, RunSpec

NOTE = "runner"  # name of the metadata item of a job
Action = Literal["pause", "move", "drain", "fallback"]
Running = Literal["requeue", "wait", "terminate"]  # how running tasks are treated
_DISABLED_STATES = frozenset({"disabling", "disabled"})
_CLOSED_STATES = frozenset({"terminating", "completed", "deleting"})


@dataclass(frozen=True, slots=True)
class JobNote:
    """The action that a command performs on a job.

    Attributes:
        action: `drain` pauses all jobs of a pool, or moves them if `to` is set. `fallback` moves
            the job of a run to the next pool of its list.
        name: The sweep, group or experiment; the pool if the action is `drain`, the run if it is
            `fallback`.
        to: The pool that the job moves to; empty if it does not move.
        why: Why a fall-back was due: `waited` or `evicted`.
    """

    action: Action
    name: str
    to: str = ""
    why: str = ""

    def to_text(self) -> str:
        """Return the value of the metadata item."""
        return " ".join(part for part in (self.action, self.name, self.to, self.why) if part)

    @classmethod
    def parse(cls, text: str) -> JobNote | None:
        """Read the value. Return None if it is not one of ours."""
        words = text.split(" ")
        for action in get_args(Action):
            if words[0] == action and len(words) in ((4,) if action == "fallback" else (2, 3)):
                return cls(action, *words[1:])
        return None

    @property
    def pauses(self) -> bool:
        """True if the tasks wait until a command ends the pause, False if the job moves."""
        return not self.to

    def is_drain_of(self, pool: str) -> bool:
        """Return True if a drain of this pool paused the job."""
        return self.action == "drain" and self.pauses and self.name.lower() == pool.lower()

    @property
    def command(self) -> str:
        """The command that continues the action or ends the pause."""
        if self.action == "pause":
            return f"runner sweep unpause {self.name}"
        if self.action == "fallback":
            return f"runner attach {self.name}"
        if self.action == "move":
            return f"runner sweep move {self.name} --to {self.to}"
        if self.to:
            return f"runner pool drain {self.name} --to {self.to}"
        return f"runner pool enable {self.name}"

    def describe(self, job_id: str) -> str:
        """Return why a run of the job waits, as text for users."""
        if self.to:
            return f"its job {job_id} is being moved to pool {self.to}"
        return f"its job {job_id} is paused" + (
            f" because pool {self.name} is drained" if self.action == "drain" else ""
        )


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The current state of a job.

    Attributes:
        other_metadata: Metadata items of other programs.
        outlasted: The job has ended, and its pause has not.
    """

    id: str
    state: str
    pool: str
    etag: str = ""
    note: JobNote | None = None
    other_metadata: tuple[tuple[str, str], ...] = ()
    priority: int = 0
    outlasted: bool = False

    @property
    def disabled(self) -> bool:
        """True if none of its tasks starts."""
        return self.state in _DISABLED_STATES

    @property
    def paused(self) -> bool:
        """True if it is disabled, or was until it ended and its pause has not ended."""
        return self.disabled or self.outlasted

    @property
    def closed(self) -> bool:
        """True if it has ended or is terminating."""
        return self.state in _CLOSED_STATES

    @property
    def may_outlast(self) -> bool:
        """True if it ended with the note of a pause, so its pause lasts if it is recorded."""
        return self.closed and self.note is not None and self.note.pauses

    def is_in(self, pool: str) -> bool:
        """Return True if its tasks run in this pool."""
        return self.pool.lower() == pool.lower()


class JobStep(StrEnum):
    """The next request of a move or a pause."""

    NOTE = "note"
    DISABLE = "disable"
    WAIT = "wait"
    MOVE = "move"
    RECORD = "record"
    ENABLE = "enable"
    CLEAR = "clear"
    DONE = "done"


def next_step(
    job: JobSnapshot, wanted: JobNote, *, is_recorded: bool, is_requested: bool = False
) -> JobStep:
    """Return the next step of a move; a job that its user paused stays paused.

    Args:
        job: the job, which has not ended.
        wanted: the move, with its pool.
        is_recorded: the documents of its runs name the pool.
        is_requested: this client has disabled the job, so Batch treats running tasks as requested.
    """
    is_here = job.is_in(wanted.to)
    is_complete = is_here and is_recorded
    is_begun = job.note is not None and bool(job.note.to)
    if job.state == "enabling":
        return JobStep.WAIT
    if is_complete and (job.state == "active" or not is_begun):
        return JobStep.CLEAR if is_begun else JobStep.DONE
    if job.note != wanted and (is_begun or not job.disabled):
        return JobStep.NOTE
    if job.state != "disabled":
        return JobStep.WAIT if is_requested and job.disabled else JobStep.DISABLE
    if is_complete:
        return JobStep.ENABLE
    return JobStep.RECORD if is_here else JobStep.MOVE


def may_claim(job: JobSnapshot) -> bool:
    """Return True if a fall-back may begin: no command pauses or moves the job."""
    return job.state == "active" and job.note is None


def is_falling_back(job: JobSnapshot) -> bool:
    """Return True if a client has begun a fall-back of the job."""
    return job.note is not None and job.note.action == "fallback"


def next_fallback_step(
    job: JobSnapshot, claim: JobNote, *, is_recorded: bool, is_requested: bool = False
) -> JobStep:
    """Return the next step of a claimed fall-back, for the client that claimed it or any other.

    Args:
        job: the job, which has not ended.
        claim: the note that the client has written or found. If the job has another one by now, the
            fall-back was completed, or a person moved or paused the job.
        is_recorded: run.json names the pool.
        is_requested: this client has disabled the job.
    """
    if job.note != claim:
        return JobStep.DONE
    return next_step(job, claim, is_recorded=is_recorded, is_requested=is_requested)


def moved_spec(spec: RunSpec, to: PoolOutput, stay: PoolStay) -> RunSpec:
    """Return the run in another pool; `stay` is its time in the present one."""
    return replace(
        spec,
        pool=to.id,
        vm_size=to.vm_size,
        spot=to.spot,
        moved_from=(*spec.moved_from, stay),
    )


def next_pause_step(
    job: JobSnapshot, wanted: JobNote, *, wait_for_tasks: bool, is_requested: bool
) -> JobStep:
    """Return the next step of a pause.

    A drain writes no note into a job that is already disabled, because the end of the drain enables
    all jobs with its note.

    Args:
        job: the job, which has not ended and is not being moved.
        wanted: the pause.
        wait_for_tasks: the pause is complete only when no task runs any more.
        is_requested: this client has disabled the job.
    """
    if job.state == "enabling":
        return JobStep.WAIT
    if job.note != wanted and not (wanted.action == "drain" and job.disabled):
        return JobStep.NOTE
    is_disabling = is_requested and job.disabled  # unless another client has enabled it since
    if job.state == "disabled" or (is_disabling and not wait_for_tasks):
        return JobStep.DONE
    return JobStep.WAIT if is_disabling else JobStep.DISABLE


def explain_misfit(
    spec: RunSpec, slots: int, pool: PoolOutput, node_slots: int, current: PoolOutput | None
) -> str:
    """Return why a run cannot move to a pool, or an empty string.

    Args:
        spec: the run.
        slots: task slots that its task needs on a node.
        pool: the new pool.
        node_slots: task slots of a node of the new pool.
        current: the current pool of the run, or None if it does not exist any more. If it lacks
            resources of the run too, the resources of the new pool are not checked.
    """
    if slots > node_slots:
        return f"has {node_slots} slots per node ({slots} needed)"
    if pool.containers is not None and pool.containers != (spec.image is not None):
        return "runs containers only" if spec.image is None else "runs no containers"
    if spec.image is not None and current is not None and bool(current.gpus) != bool(pool.gpus):
        has = "GPUs" if pool.gpus else "no GPU"
        return f"has {has}, and the container was submitted for a pool with the opposite"
    if spec.rehearsal is not None and not pool.spot:
        return "has dedicated nodes, and the run rehearses evictions"
    missing = missing_resources(pool, spec.resources)
    if missing and not (current is not None and missing_resources(current, spec.resources)):
        return f"has {missing}"
    return ""


def describe_pool(
    pool_id: str,
    vm_size: str,
    *,
    spot: bool,
    max_nodes: int,
    slots: int,
    inter_node: bool,
    containers: bool,
) -> PoolOutput:
    """Return a pool that no stack declares, as Batch describes it."""
    machine = find_machine(vm_size)
    return PoolOutput(
        pool_id,
        vm_size,
        machine.gpus if machine else 0,
        machine.vcpus if machine else 1,
        spot,
        max_nodes,
        containers=containers,
        task_nodes=max_nodes if inter_node and slots == 1 else 1,
    )


def with_note(job: JobSnapshot, note: JobNote | None) -> Sequence[tuple[str, str]]:
    """Return the metadata of a job with this note instead of its current one."""
    return (*job.other_metadata, *(((NOTE, note.to_text()),) if note else ()))

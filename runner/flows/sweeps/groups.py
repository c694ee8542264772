"""Find the runs that belong together, and read the present state of a group until all have ended.

Modules with the Batch SDK are imported when needed; a sweep that has ended needs none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.azure.auth.credentials import Connection
from runner.azure.faults import TRANSIENT_CODES
from runner.azure.storage.blobs import in_parallel
from runner.core.states import RunState
from runner.flows.runs.documents import find_run
from runner.flows.runs.group_documents import find_group
from runner.flows.runs.history import RunFilter, list_runs
from runner.flows.runs.rows import RunRow
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group and the present state of its existing runs, by task.

    `taken_out` is a message if scheduling was disabled on a failing node since the last view.
    """

    group: RunGroup
    rows: Mapping[str, RunRow]
    taken_out: str = ""

    @property
    def failed(self) -> int:
        """The number of runs that have failed."""
        return sum(row.state == RunState.FAILED for row in self.rows.values())


def load_group_view(
    connection: Connection, group: RunGroup, known: GroupView | None = None
) -> GroupView:
    """Return the present runs of a group; runs that have ended in `known` are not read again.

    The state of runs that are unfinished in `known` is read from their tasks, which takes one
    request for all waiting runs. Their documents are read again if a task was deleted or ended
    without a result, because the run may have moved to another job.
    """
    before: Mapping[str, RunRow] = known.rows if known else {}
    rows = {name: row for name, row in before.items() if row.result}
    ids = {run_id: name for name, run_id in group.runs.items() if name not in rows}
    specs = {
        row.run_id: row.spec
        for row in before.values()
        if row.run_id in ids and row.spec and not row.is_over
    }
    found: dict[str, RunRow] = {}
    if specs:
        from runner.flows.runs.live import live_rows  # noqa: PLC0415
        from runner.flows.runs.stuck import PoolReader  # noqa: PLC0415

        live = live_rows(connection, list(specs.values()), PoolReader(connection))
        found |= {
            run_id: row
            for run_id, row in live.items()
            if row and row.status and (row.result is not None or not row.status.state.final)
        }
    unknown = [run_id for run_id in ids if run_id not in found]
    if unknown:
        found |= {row.run_id: row for row in list_runs(connection, limit=None, ids=unknown).rows}
    # Keep the order of the group.
    present = {name: row for run_id, name in ids.items() if (row := found.get(run_id))}
    return GroupView(group, rows | present)


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs that belong together: those of a sweep, a group or an experiment.

    Attributes:
        name: The ID of the sweep or group, or the name of the experiment.
        run_ids: The runs, including the earlier ones of resumed trials.
        group: The sweep or group; None for an experiment.
    """

    name: str
    run_ids: tuple[str, ...]
    group: RunGroup | None = None


def find_run_set(connection: Connection, reference: str) -> RunSet:
    """Return the runs of a sweep, a group or an experiment.

    Raises:
        RunnerError: R-SWEEP-UNKNOWN, nothing has this name; R-GROUP-AMBIGUOUS.
    """
    try:
        group = find_group(connection, reference)
    except RunnerError as err:
        if err.code not in ("R-GROUP-UNKNOWN", "R-GROUP-AMBIGUOUS"):
            raise
        rows = list_runs(connection, limit=None, only=RunFilter(reference)).rows
        if rows:
            return RunSet(reference, tuple(row.run_id for row in rows))
        if err.code == "R-GROUP-AMBIGUOUS":
            raise
        raise RunnerError(
            "R-SWEEP-UNKNOWN",
            f"no sweep, group or experiment {reference!r}",
            why="no run belongs to any of that name",
            fix=err.fix if "did you mean" in err.fix else "runner experiments ls",
        ) from err
    # The newest run of a resumed trial may not exist, if a paused job rejected it.
    earlier = (run_id for runs in group.earlier.values() for run_id in runs)
    return RunSet(group.group_id, (*group.runs.values(), *earlier), group)


def find_run_or_set(connection: Connection, reference: str) -> RunSpec | RunSet:
    """Return the run of a reference, or else the runs of a sweep, a group or an experiment.

    Raises:
        RunnerError: nothing has this name.
    """
    try:
        return find_run(connection, reference)
    except RunnerError as err:
        if err.code not in ("R-RUN-UNKNOWN", "R-RUN-AMBIGUOUS"):
            raise
        try:
            return find_run_set(connection, reference)
        except RunnerError as other:
            if other.code == "R-SWEEP-UNKNOWN" or err.code == "R-RUN-AMBIGUOUS":
                raise err from None
            raise


def load_specs(connection: Connection, runs: RunSet, *, started: bool) -> list[RunSpec]:
    """Return the whole documents of the runs, in order of submission.

    Args:
        connection: the services.
        runs: the runs; those that were deleted are left out.
        started: True leaves out runs that no node has started, False only those whose parameters
            will be chosen when they start.
    """
    rows = list_runs(connection, limit=None, ids=runs.run_ids).rows
    chosen = (row for row in reversed(rows) if row.attempts or (row.is_decided and not started))
    return in_parallel(lambda row: find_run(connection, row.run_id), chosen)


_POLL_S = 1.0
_LONGEST_POLL_S = 15.0
_POLL_SHARE = 0.1  # maximum part of the time for polls: local services share the cores of the runs


def group_views(connection: Connection, group: RunGroup) -> Iterator[GroupView | None]:
    """Yield a view each second until all runs have ended; None while services do not respond.

    Views of a large group follow each other more slowly, because they take long to read. Disables
    scheduling on a node that keeps failing runs of the group.

    Raises:
        RunnerError: the services did not respond for `CONTACT_TIMEOUT_S`.
    """
    from runner.flows.runs.stuck import disable_failing_node  # noqa: PLC0415
    from runner.flows.runs.watch import CONTACT_TIMEOUT_S  # noqa: PLC0415

    contact = time.monotonic()
    view = last = None
    failed = 0
    while True:
        began = time.monotonic()
        try:
            view = last = load_group_view(connection, group, last)
            if view.failed > failed:
                failed = view.failed
                pools = {row.spec.pool for row in view.rows.values() if row.spec}
                taken_out = (disable_failing_node(connection, pool) for pool in sorted(pools))
                view = replace(view, taken_out=next(filter(None, taken_out), ""))
            contact = time.monotonic()
        except RunnerError as err:
            if err.code not in TRANSIENT_CODES or time.monotonic() - contact > CONTACT_TIMEOUT_S:
                raise
            view = None
        took = time.monotonic() - began if view else 0.0
        yield view
        if view and all(row.is_over for row in view.rows.values()):
            return
        time.sleep(max(_POLL_S, min(took / _POLL_SHARE, _LONGEST_POLL_S)))

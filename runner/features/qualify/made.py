"""What a qualification makes, on record before it exists, so that the next one can remove it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import delete_job
from runner.core.home import write_atomically
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.core.settings import Settings, stack_option
from runner.features.qualify.places import remove_pool
from runner.flows.removal import RunSelection, plan_removal, remove_runs
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import code_container, find_run
from runner.protocol.codec import DAMAGED, NOT_STORED, JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.paths import code_blob

_REMOVED_WITHIN_S = 120.0
_STAGE = "remove"


@dataclass(slots=True)
class MadeThings(JsonDocument):
    """The IDs of pools, runs with their jobs, and code archives; and the file that has them."""

    file: Path = field(metadata=NOT_STORED)
    pools: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()

    @classmethod
    def open(cls, settings: Settings) -> MadeThings:
        """Return what an earlier qualification of this target left, if it was killed."""
        name = settings.stack if settings.target.has_stacks else settings.target.name
        file = settings.home / "qualify" / f"{name}.json"
        with suppress(OSError, *DAMAGED):
            return cls.from_json(json.loads(file.read_text("utf-8")), file=file)
        return cls(file)

    def add(self, **ids: str) -> None:
        """Record IDs before the things exist: `pools=…`, `runs=…`, `jobs=…`, `archives=…`."""
        for name, value in ids.items():
            known: tuple[str, ...] = getattr(self, name)
            if value not in known:
                setattr(self, name, (*known, value))
        write_atomically(self.file, json.dumps(self.to_json()))

    def remove(self, connection: Connection, on_progress: OnProgress) -> list[str]:
        """Remove everything. Return a line with a command for each thing that is left."""
        total = len(self.pools) + len(self.runs) + len(self.archives)
        if not total:
            self.file.unlink(missing_ok=True)
            return []
        on_progress(Progress(_STAGE, "start", "runs, jobs and pools of the qualification"))
        left = [
            *self._each("runs", _remove_run, connection),
            *self._each("jobs", _remove_job, connection),
            *self._each("pools", _remove_pool, connection),
            *self._each("archives", _remove_archive, connection),
        ]
        if left:
            on_progress(Progress(_STAGE, "failed", f"{len(left)} of {total} are left"))
        else:
            self.file.unlink(missing_ok=True)
            on_progress(Progress(_STAGE, "end", f"{total} things removed"))
        return left

    def _each(
        self, name: str, remove: Callable[[Connection, str], str], connection: Connection
    ) -> list[str]:
        """Remove the things of one kind; those that are left stay on record."""
        left: list[str] = []
        lines: list[str] = []
        for each in getattr(self, name):
            try:
                line = remove(connection, each)
            except RunnerError as err:
                again = with_target("runner qualify", connection)
                line = f"{name.removesuffix('s')} {each}: {err.what}; run `{again}` again"
            if line:
                left.append(each)
                lines.append(line)
        setattr(self, name, tuple(left))
        return lines


def with_target(command: str, connection: Connection) -> str:
    """Return the command with the options that select the target and the stack."""
    target = connection.target
    stack = stack_option(connection.outputs.stack) if target.has_stacks else ""
    return f"{command} --target {target.name}{stack}"


def _remove_run(connection: Connection, run_id: str) -> str:
    try:
        cancel_run(connection, find_run(connection, run_id))
        plan = plan_removal(connection, RunSelection((run_id,)))
        remove_runs(connection, plan, ignore_progress)
    except RunnerError as err:
        if err.code != "R-RUN-UNKNOWN":  # it was not submitted, or is removed
            return (
                f"run {run_id}: {err.what}; {with_target(f'runner rm {run_id} --yes', connection)}"
            )
    return ""


def _remove_job(connection: Connection, job_id: str) -> str:
    delete_job(connection, job_id)
    return ""


def _remove_pool(connection: Connection, pool_id: str) -> str:
    if remove_pool(connection, pool_id, _REMOVED_WITHIN_S):
        return ""
    again = with_target(f"runner pool rm {pool_id} --yes", connection)
    return f"pool {pool_id}: still being deleted; {again}"


def _remove_archive(connection: Connection, sha256: str) -> str:
    code_container(connection).delete(code_blob(sha256))
    return ""

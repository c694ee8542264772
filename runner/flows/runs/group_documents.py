"""Find groups of runs in blob storage by reference, and read their documents."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.flows.runs.documents import find_run, newest, runs_container
from runner.flows.runs.waiting import read_run
from runner.protocol.errors import RunnerError
from runner.protocol.groups import (
    GROUPS_FOLDER,
    SUBMITTING_FOLDER,
    LaterRun,
    RunGroup,
    group_blob,
    parse_group,
)
from runner.protocol.paths import (
    check_reference,
    find_similar_run,
    is_run_id,
    newest_first,
    parse_sweep_id,
)
from runner.protocol.run_spec import RunSpec, parse_run

_NOT_A_RUN = frozenset({"R-RUN-UNKNOWN", "R-RUN-AMBIGUOUS"})


def find_group(connection: Connection, reference: str) -> RunGroup:
    """Return the group of an ID, a unique prefix, or `@last`. Raise RunnerError."""
    text = check_reference(reference)
    container = runs_container(connection)
    content = container.read(group_blob(text)) if is_run_id(text) else None
    if content is not None:
        return with_later_runs(container, parse_group(content, text))
    names = [
        blob.name for blob in container.list(f"{GROUPS_FOLDER}{'' if text == '@last' else text}")
    ]
    if text == "@last" and names:
        blobs = {_group_id(name): name for name in names}
        last = newest(
            list(blobs),
            lambda each: container.read(blobs[each]),
            lambda content, each: parse_group(content, each).created,
        )
        names = [blobs[last]]
    if len(names) == 1 and (content := container.read(names[0])) is not None:
        return with_later_runs(container, parse_group(content, names[0]))
    if not names:
        raise _no_group(container, text)
    shown = ", ".join(_group_id(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")
    raise RunnerError(
        "R-GROUP-AMBIGUOUS",
        f"prefix {text!r} matches {len(names)} groups",
        why=shown,
        fix=f"use more characters of the ID, for example {_group_id(names[-1])}",
    )


def with_later_runs(container: BlobContainer, group: RunGroup) -> RunGroup:
    """Return a sweep with the newest run of each trial; other groups are not changed."""
    if not group.trials:
        return group
    names = [blob.name for blob in container.list(LaterRun.folder(group.group_id))]
    contents = in_parallel(container.read, names)
    found = (
        LaterRun.parse(name, content or b"") for name, content in zip(names, contents, strict=True)
    )
    return group.with_later(each for each in found if each is not None)


def _no_group(container: BlobContainer, text: str) -> RunnerError:
    if begun := [note.name for note in container.list(f"{SUBMITTING_FOLDER}{text}")]:
        group_id = begun[0].removeprefix(SUBMITTING_FOLDER).removesuffix(".json")
        return RunnerError(
            "R-GROUP-SUBMITTING",
            f"the submission of {group_id} has not added its tasks",
            why="the submission is in progress, or was killed, in which case nothing of it runs",
            fix="try again in a moment; if it was killed, run `runner submit FILE` again",
        )
    near = find_similar_run(
        text, newest_first([_group_id(blob.name) for blob in container.list(GROUPS_FOLDER)])
    )
    fix = f"did you mean {near}?" if near else "runner submit FILE"
    return RunnerError("R-GROUP-UNKNOWN", f"group {text!r} not found", fix=fix)


def _group_id(blob: str) -> str:
    return blob.removeprefix(GROUPS_FOLDER).removesuffix(".json")


def list_group_ids(connection: Connection, prefix: str = "") -> list[str]:
    """Return the IDs of all groups with a prefix, newest first."""
    blobs = runs_container(connection).list(f"{GROUPS_FOLDER}{prefix}")
    return newest_first([_group_id(blob.name) for blob in blobs])


def group_instead(connection: Connection, reference: str, err: RunnerError) -> RunGroup:
    """Return the group of a reference; `err` is why it names no run.

    Raises:
        RunnerError: it names no group either; `err`, or the error of the group if that says more.
    """
    if err.code not in _NOT_A_RUN:
        raise err
    try:
        return find_group(connection, reference)
    except RunnerError as other:
        no_group = other.code in ("R-GROUP-UNKNOWN", "R-GROUP-AMBIGUOUS")
        if no_group and err.code == "R-RUN-AMBIGUOUS":
            raise err from None
        if other.code == "R-GROUP-UNKNOWN" and "did you mean" not in other.fix:
            raise err from None
        raise


def find_run_or_group(connection: Connection, reference: str) -> RunSpec | RunGroup:
    """Return the run of a reference, or else the group of runs. Raise RunnerError."""
    try:
        return find_run(connection, reference)
    except RunnerError as err:
        return group_instead(connection, reference, err)


def owner_of(container: BlobContainer, run_id: str) -> str | None:
    """Return the sweep or group of a run, or its own ID without one; None if it is not a run."""
    group_id = parse_sweep_id(run_id)
    if group_id and container.size(group_blob(group_id)) is not None:
        return group_id
    with suppress(RunnerError):
        content = read_run(container, run_id)
        if content is None:
            return None
        group_id = parse_run(content, run_id).group
        if group_id and container.size(group_blob(group_id)) is not None:
            return group_id
    return run_id


def owners_of(container: BlobContainer, tasks: Iterable[tuple[str, str]]) -> list[str]:
    """Return the sweeps, groups and runs that tasks belong to, each once. Other tasks are ignored.

    Args:
        container: the container of runs.
        tasks: IDs of job and task.
    """
    found = in_parallel(lambda each: owner_of(container, each[1]), tasks)
    return [*dict.fromkeys(filter(None, found))]

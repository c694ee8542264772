"""A submitted group: found by reference, shown, and ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.azure.batch import close_when_done
from runner.azure.credentials import Connection
from runner.core.dag import in_order
from runner.core.errors import RunnerError
from runner.core.group import FOLDER, Group, group_blob, parse_group
from runner.core.run_ids import check_reference, is_run_id
from runner.core.run_paths import RunPaths
from runner.core.run_record import parse_run
from runner.flows.cancel import Cancelled, cancel_run
from runner.flows.history import RunRow, list_runs
from runner.flows.run_documents import runs_container

_NOT_A_RUN = frozenset({"R-RUN-UNKNOWN", "R-RUN-AMBIGUOUS"})


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group and its runs as they are now, by task; one that was deleted is missing."""

    group: Group
    rows: Mapping[str, RunRow]


def find_group(connection: Connection, reference: str) -> Group:
    """The group of an id, or of a unique prefix of one. Raises R-GROUP-UNKNOWN."""
    text = check_reference(reference)
    container = runs_container(connection)
    content = container.read(group_blob(text)) if is_run_id(text) else None
    if content is not None:
        return parse_group(content, text)
    names = [blob.name for blob in container.list(f"{FOLDER}{'' if text == '@last' else text}")]
    if text == "@last":
        names = sorted(names, key=lambda name: name[-len("20261121-143005-k3f9.json") :])[-1:]
    if len(names) == 1 and (content := container.read(names[0])) is not None:
        return parse_group(content, names[0])
    what = f"{text!r} begins {len(names)} groups" if names else f"there is no group {text!r}"
    shown = ", ".join(name.removeprefix(FOLDER).removesuffix(".json") for name in names[:5])
    raise RunnerError(
        "R-GROUP-UNKNOWN", what, why=shown, fix="type more of it" if names else "runner submit FILE"
    )


def group_instead(connection: Connection, reference: str, err: RunnerError) -> Group:
    """The group that a reference means which is no run; raises `err` where it is none either."""
    if err.code not in _NOT_A_RUN:
        raise err
    try:
        return find_group(connection, reference)
    except RunnerError as other:
        if other.code != "R-GROUP-UNKNOWN":
            raise
        raise err from None


def load_group_view(connection: Connection, home: Path, group: Group) -> GroupView:
    """The runs of a group as they are now."""
    ids = {run_id: name for name, run_id in group.runs.items()}
    history = list_runs(connection, home, limit=None, ids=list(ids))
    return GroupView(group, {ids[row.run_id]: row for row in history.rows})


def cancel_group(connection: Connection, group: Group) -> dict[str, Cancelled]:
    """End every run of a group that has not ended; the last first, so that none starts meanwhile.

    Its job closes, since all its tasks are complete then: also one that a `runner submit` which was
    killed left open.
    """
    container = runs_container(connection)
    done: dict[str, Cancelled] = {}
    for name in reversed(in_order(group.after)):
        run_id = group.runs[name]
        content = container.read(RunPaths(run_id).run)
        if content is not None:
            done[name] = cancel_run(connection, parse_run(content, run_id))
    close_when_done(connection, group.job_id)
    return done

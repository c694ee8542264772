"""Attempts of a run: where each ran, how it ended, and the checkpoint that it resumed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.units import format_count, format_duration, parse_moment
from runner.flows.runs.documents import load_attempt_ends, load_attempts, runs_container
from runner.flows.runs.live import RunView
from runner.protocol.checkpoints import (
    BadManifestError,
    CheckpointBlobs,
    CheckpointManifest,
    ResumeHistory,
    newest_loadable,
    parse_checkpoint,
)
from runner.protocol.codec import parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptEnd, AttemptStart
from runner.protocol.run_spec import RunSpec
from runner.protocol.usage import AttemptUsage, find_lost_work, load_usage, loses_work


def list_checkpoints(container: BlobContainer, run_id: str) -> tuple[CheckpointManifest, ...]:
    """Return the complete checkpoints, newest first. Only a restore compares hashes."""
    return _load_checkpoints(container, run_id)[0]


def checkpoint_problem(container: BlobContainer, run_id: str, attempt: int) -> str | None:
    """Return why a running attempt commits no checkpoints, from its last checkpoint event."""
    name = RunPaths(run_id).attempt_events(attempt)
    content = container.read(name) if attempt else None
    for line in reversed((content or b"").splitlines()):
        event = _event(line)
        if event.get("stage") != "checkpoint":
            continue
        if event.get("state") == "failed":
            return str(event.get("message") or "")
        if "checkpoint" in event:  # the end of a checkpoint, not its progress
            return str(event["problem"]) if event.get("problem") else None
    return None


def _event(line: bytes) -> dict[str, Any]:
    try:
        event: Any = parse_json(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", event) if isinstance(event, dict) else {}


def incomplete_checkpoints(container: BlobContainer, run_id: str) -> tuple[str, ...]:
    """Return the checkpoints that cannot be restored, each with the reason."""
    return _load_checkpoints(container, run_id)[1]


def _load_checkpoints(
    container: BlobContainer, run_id: str
) -> tuple[tuple[CheckpointManifest, ...], tuple[str, ...]]:
    blobs = CheckpointBlobs(run_id)
    sizes = {blob.name: blob.size_bytes for blob in container.list(blobs.root)}
    manifests = {name: k for name in sizes if (k := blobs.parse_number(name)) is not None}
    contents = in_parallel(container.read, manifests)
    whole: list[CheckpointManifest] = []
    problems: list[str] = []
    for content, number in zip(contents, manifests.values(), strict=True):
        try:
            whole.append(_complete(content, blobs, number, sizes))
        except BadManifestError as err:
            problems.append(f"checkpoint {number}: {err}")
    whole.sort(key=lambda checkpoint: checkpoint.order, reverse=True)
    return tuple(whole), tuple(problems)


def find_checkpoint(
    container: BlobContainer, spec: RunSpec, wanted: int | None = None
) -> tuple[str, CheckpointManifest] | None:
    """Return run ID and checkpoint that the run would resume from, or None.

    Args:
        container: the container of runs.
        spec: the run.
        wanted: the number of one of its own checkpoints. None means its newest one that no attempt
            failed to load, or, if it has none, the checkpoint that the run itself resumed from.
    """
    own = list_checkpoints(container, spec.run_id)
    if wanted is not None:
        chosen = next((each for each in own if each.number == wanted), None)
        return None if chosen is None else (spec.run_id, chosen)
    before, history = spec.resume_from, ResumeHistory(spec.run_id)
    if own or before is not None:
        history = load_history(container, spec.run_id)
    chosen = newest_loadable(history, own)
    if chosen is not None:
        return spec.run_id, chosen
    if before is None:
        return None
    run_id, number = before.run_id, before.checkpoint
    there = list_checkpoints(container, run_id)
    found = next((each for each in there if number in (None, each.number)), None)
    if found is None or history.is_abandoned(run_id, found) or history.has_failed(run_id, found):
        return None
    return run_id, found


def load_history(container: BlobContainer, run_id: str) -> ResumeHistory:
    """Return the attempts of a run that failed to load a checkpoint."""
    ends = load_attempt_ends(container, run_id)
    return ResumeHistory(run_id, tuple(each.resume_failed for each in ends if each.resume_failed))


def _complete(
    manifest: bytes | None, blobs: CheckpointBlobs, number: int, sizes: dict[str, int]
) -> CheckpointManifest:
    """Return the checkpoint if all its files exist. Raise BadManifestError."""
    checkpoint = parse_checkpoint(manifest or b"", blobs, number)
    for file in checkpoint.files:
        if sizes.get(file.blob) != file.size_bytes:
            raise BadManifestError(f"{file.path} is missing or incomplete")
    return checkpoint


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint that an attempt resumed from; `run_id` may be another run."""

    run_id: str
    checkpoint: int
    attempt: int
    step: int | None

    def text(self, run_id: str) -> str:
        """Return this checkpoint as text for the table of attempts of run `run_id`."""
        step = f", step {self.step}" if self.step is not None else ""
        of = f"attempt {self.attempt}" if self.run_id == run_id else self.run_id
        return f"checkpoint {self.checkpoint} of {of}{step}"


def load_resumes(container: BlobContainer, run_id: str) -> dict[int, Resumed]:
    """Return checkpoints by attempt. Attempts that did not resume from one are missing."""
    prefix = RunPaths(run_id).attempts
    names = [blob.name for blob in container.list(prefix) if blob.name.endswith("/resume.json")]
    found: dict[int, Resumed] = {}
    for name, content in zip(names, in_parallel(container.read, names), strict=True):
        number = name.removeprefix(prefix).partition("/")[0]
        resumed = parse_resumed(content or b"")
        if resumed is not None and number.isdecimal():
            found[int(number)] = resumed
    return found


def parse_resumed(content: bytes) -> Resumed | None:
    """Parse `attempts/<n>/resume.json`. Return None if it is not valid."""
    try:
        raw: dict[str, Any] = parse_json(content)
        step = raw.get("step")
        return Resumed(
            str(raw["run_id"]),
            int(raw["checkpoint"]),
            int(raw["attempt"]),
            None if step is None else int(step),
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt.

    Attributes:
        why: How it ended: succeeded, failed, terminated, lost, cancelled or running.
        others: The nodes of rank 1 and up in a run over several nodes; None has not started.
        message: Names the lost node if its loss ended the attempt.
        not_loaded: The checkpoint that its script could not load, with the error.
        lost_s: Work of an evicted or lost attempt that no later attempt continued, in seconds; None
            if there is none, or no record limits it.
        lost_is_bound: True if at most `lost_s` were lost, because no record has the end.
        pool: Pool of its node; empty in older documents.
        waited_s: Time without a node after the attempt before it was evicted, lost or moved, in
            seconds; None for other attempts. If no record has the end of that attempt, its last
            sign of life counts.
    """

    attempt: int
    node: str
    spot: bool | None
    started: str
    ended: str | None
    why: str
    exit_code: int | None
    step: str | None
    took_s: float | None
    resumed: Resumed | None = None
    others: tuple[str | None, ...] = ()
    message: str | None = None
    not_loaded: str = ""
    lost_s: float | None = None
    lost_is_bound: bool = False
    pool: str = ""
    waited_s: float | None = None

    @property
    def lost_node(self) -> bool:
        """True if the node was taken from the attempt: with notice, without, or on request."""
        return self.why in ("lost", "terminated")

    @property
    def lost_text(self) -> str:
        """The lost work for people, such as `<= 12.0 s`; empty if there is none."""
        if self.lost_s is None:
            return ""
        return f"{'<= ' if self.lost_is_bound else ''}{format_duration(self.lost_s)}"


def list_attempts(connection: Connection, view: RunView) -> tuple[AttemptRow, ...]:
    """Return all attempts that started, in order."""
    if not view.attempts:
        return ()
    recorded = load_attempt_ends(runs_container(connection), view.spec.run_id)
    ends = {end.attempt: end for end in recorded}
    resumes = load_resumes(runs_container(connection), view.spec.run_id)
    last = view.attempts[-1].attempt
    rows = (_row(view, start, ends.get(start.attempt), last) for start in view.attempts)
    others = _other_nodes(connection, view.spec)
    found = [
        replace(row, resumed=resumes.get(row.attempt), others=others(row.attempt)) for row in rows
    ]
    if not any(row.lost_node for row in found):
        return tuple(found)
    usage = {each.attempt: each for each in _load_usage(connection, view)}
    has_result = view.result is not None
    found = [
        _with_lost_work(row, usage.get(row.attempt), is_last=row.attempt == last, over=has_result)
        for row in found
    ]
    after = (_waited_s(before, usage.get(before.attempt), row) for before, row in pairwise(found))
    return tuple(replace(row, waited_s=s) for row, s in zip(found, (None, *after), strict=True))


def _waited_s(before: AttemptRow, usage: AttemptUsage | None, row: AttemptRow) -> float | None:
    if not before.lost_node:
        return None
    ended, started = parse_moment(before.ended or ""), parse_moment(row.started)
    if ended is None and usage is not None and usage.last_sign:
        ended = datetime.fromtimestamp(usage.last_sign / 1000, UTC)
    if ended is None or started is None:
        return None
    return round(max((started - ended).total_seconds(), 0.0), 3)


def describe_waits(spec: RunSpec, rows: Sequence[AttemptRow]) -> str:
    """Return how long a run waited for nodes after evictions and moves; empty if it did not."""
    waits = [row.waited_s for row in rows if row.waited_s is not None]
    if not waits:
        return ""
    moves = sum(stay.requeued > 0 for stay in spec.moved_from)
    counts = {"eviction": len(waits) - moves, "move": moves}
    after = " and ".join(format_count(count, name) for name, count in counts.items() if count > 0)
    return f"{format_duration(sum(waits))} after {after}"


def _load_usage(connection: Connection, view: RunView) -> tuple[AttemptUsage, ...]:
    """Return the usage of the attempts of a run on its primary node."""
    result, container = view.result, runs_container(connection)
    return load_usage(
        container.read,
        view.spec.run_id,
        nodes=1,
        status=result.status if result else "",
        ended=result.ended if result else None,
    )


def _with_lost_work(
    row: AttemptRow, usage: AttemptUsage | None, *, is_last: bool, over: bool
) -> AttemptRow:
    if usage is None or not row.lost_node:
        return row
    if not loses_work(usage, is_last=is_last, is_settled=over):
        return row
    lost = find_lost_work(usage, is_last=is_last)
    if not lost.most_ms:
        return row
    return replace(row, lost_s=round(lost.most_ms / 1000, 3), lost_is_bound=not lost.is_measured)


def _other_nodes(connection: Connection, spec: RunSpec) -> Callable[[int], tuple[str | None, ...]]:
    container, ranks = runs_container(connection), range(1, spec.nodes)
    found = in_parallel(lambda rank: load_attempts(container, spec.run_id, rank), ranks)
    by_rank = [{start.attempt: start.node for start in starts} for starts in found]
    if not by_rank:
        return lambda _: ()
    return lambda attempt: tuple(nodes.get(attempt) for nodes in by_rank)


def _row(view: RunView, start: AttemptStart, end: AttemptEnd | None, last: int) -> AttemptRow:
    ended = end.ended if end else None
    if end is None and view.result and view.result.attempt == start.attempt and view.result.ended:
        ended = view.result.ended.isoformat()
    return AttemptRow(
        attempt=start.attempt,
        node=start.node,
        spot=None if start.dedicated is None else not start.dedicated,
        started=start.started,
        ended=ended,
        why=end.why if end else _why_without_end(view, start.attempt, last),
        exit_code=end.exit_code if end else None,
        step=end.step if end else None,
        took_s=_took_s(start.started, ended),
        message=end.message if end else None,
        not_loaded=_describe_load(end, view.spec.run_id) if end else "",
        pool=start.pool,
    )


def _describe_load(end: AttemptEnd, run_id: str) -> str:
    failure = end.resume_failed
    return f"{failure.describe(run_id)}: {failure.message}" if failure else ""


def _why_without_end(view: RunView, attempt: int, last: int) -> str:
    """Return why an attempt has no end.json: its node was lost, or it is running."""
    if view.result is not None and view.result.attempt == attempt:
        return view.result.status
    if attempt < last or view.status.state.final or view.status.state.value == "queued":
        return "lost"
    return "running"


def _took_s(started: str, ended: str | None) -> float | None:
    try:
        took = datetime.fromisoformat(ended or "") - datetime.fromisoformat(started)
    except (ValueError, OverflowError, TypeError):
        return None
    return round(took.total_seconds(), 3)

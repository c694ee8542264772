"""The time of a run, divided into spans: waiting, boot, each stage of each attempt, lost work.

Times of a node are as the node wrote them; `timeline.py` corrects clocks that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.units import parse_moment
from runner.flows.runs.documents import runs_container
from runner.flows.runs.live import RunView
from runner.protocol.paths import RunPaths
from runner.protocol.results import SIDE_STAGES, StageEvent, parse_event_line
from runner.protocol.usage import AttemptUsage, find_lost_work, load_usage, loses_work

WAIT, BOOT, LOST, EVICTED, CHECKPOINT = "wait", "boot", "lost work", "evicted", "checkpoint"
KEPT = "node kept"  # after a failure
MOMENTS = frozenset({EVICTED, CHECKPOINT})  # spans that end when they start


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A part of the time of a run.

    Attributes:
        stage: `wait`, `boot`, `lost work`, or a stage of the agent. The end of a node (`evicted`)
            and a `checkpoint` are moments.
        attempt: The attempt; 0 before the first one.
        start, end: `end` is None while the stage runs.
        failed: True if the stage ended with an error, other than by an eviction.
        message: What the agent said of it last.
        node: The node; empty while the run waits.
        spot: Whether the node is a spot node; None if not recorded.
    """

    stage: str
    attempt: int
    start: datetime
    end: datetime | None
    failed: bool = False
    message: str = ""
    node: str = ""
    spot: bool | None = None

    def took_s(self, now: datetime) -> float:
        """Return its seconds, until `now` if it has not ended."""
        return max(((self.end or now) - self.start).total_seconds(), 0.0)


def load_spans(connection: Connection, view: RunView) -> tuple[StageSpan, ...]:
    """Return the spans of a run in order of their start, without those of other ranks."""
    container = runs_container(connection)
    result = view.result
    usages = load_usage(
        container.read,
        view.spec.run_id,
        nodes=1,
        status=result.status if result else "",
        ended=result.ended if result else None,
        attempts=len(view.attempts) or 1,
        kept_until=result.kept_until if result else None,
    )
    events = in_parallel(lambda each: _read_events(container, view.spec.run_id, each), usages)
    is_over, is_kept = result is not None, view.kept is not None
    return divide(view.spec.created, usages, events, is_over=is_over, is_kept=is_kept)


def _kept(usages: Sequence[AttemptUsage], *, is_kept: bool) -> Iterator[StageSpan]:
    """Yield the span in which the node is kept after a failure, up to its latest end."""
    last = usages[-1] if usages else None
    ended = _at(last.ended) if last is not None else None
    if last is not None and ended is not None and last.held_by is not None:
        end = last.held_by if last.held is None else last.held
        yield _span(KEPT, last, ended, None if is_kept else _at(end))


def divide(
    created: datetime,
    usages: Sequence[AttemptUsage],
    events: Sequence[Sequence[StageEvent]],
    *,
    is_over: bool,
    is_kept: bool = False,
) -> tuple[StageSpan, ...]:
    """Return the spans of a run in order of their start.

    Args:
        created: Time of the submission.
        usages: The attempts of the primary node, in order.
        events: The events of each attempt, in order.
        is_over: True if the run has a result.
        is_kept: True while its node is kept after a failure.
    """
    spans = [*_between(created, usages, is_over=is_over)]
    for usage, own in zip(usages, events, strict=True):
        spans += _of_attempt(usage, own, is_last=usage is usages[-1], is_over=is_over)
    spans += _kept(usages, is_kept=is_kept)
    return tuple(sorted(spans, key=lambda span: (span.start, span.attempt, span.stage == LOST)))


def _read_events(container: BlobContainer, run_id: str, usage: AttemptUsage) -> list[StageEvent]:
    content = container.read(RunPaths(run_id).attempt_events(usage.attempt)) or b""
    lines = content.decode("utf-8", "replace").splitlines()
    return [event for line in lines if (event := parse_event_line(line, usage.attempt))]


def _at(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _between(
    created: datetime, usages: Sequence[AttemptUsage], *, is_over: bool
) -> Iterator[StageSpan]:
    """Yield the spans in which the run waits for a node, and those in which a node boots."""
    since = created
    for usage in usages:
        began, booted = _at(usage.started), _at(usage.booted)
        if began is None:
            continue
        # Other runs may have used the node before: only a boot for this run counts.
        until = booted if booted is not None and since < booted < began else began
        if until > since:
            yield StageSpan(WAIT, usage.attempt, since, until)
        if until < began:
            yield _span(BOOT, usage, until, began)
        since = _at(usage.ended) or _at(usage.last_sign or None) or began
    if not is_over and not (usages and usages[-1].ended is None):
        yield StageSpan(WAIT, len(usages), since, None)


def _span(
    stage: str, usage: AttemptUsage, start: datetime, end: datetime | None, message: str = ""
) -> StageSpan:
    spot = None if usage.dedicated is None else not usage.dedicated
    return StageSpan(stage, usage.attempt, start, end, message=message, node=usage.node, spot=spot)


def _of_attempt(
    usage: AttemptUsage, events: Iterable[StageEvent], *, is_last: bool, is_over: bool
) -> Iterator[StageSpan]:
    """Yield the stages of an attempt, and the part of its work that no other one continues."""
    over = _at(usage.ended)
    if over is None and (is_over or not is_last):
        over = _at(usage.last_sign or None)
    begun: dict[str, tuple[datetime, str]] = {}
    for event in events:
        at = parse_moment(event.time)
        if at is None:
            continue
        if event.stage == CHECKPOINT and event.state == "progress" and event.total is None:
            yield _span(CHECKPOINT, usage, at, at, event.message)
        if event.stage in SIDE_STAGES:
            continue
        if event.state == "start":
            begun[event.stage] = at, event.message
        elif event.state in ("end", "failed") and event.stage in begun:
            start, said = begun.pop(event.stage)
            failed = event.state == "failed" and usage.node_ends is None
            yield replace(
                _span(event.stage, usage, start, at, event.message or said), failed=failed
            )
    for stage, (start, _) in begun.items():  # the attempt ended, or runs, in these stages
        yield _span(stage, usage, start, over)
    if over is not None and usage.node_ends is not None:
        yield _span(EVICTED, usage, over, over)
    if over is not None and loses_work(usage, is_last=is_last, is_settled=is_over):
        lost = find_lost_work(usage, is_last=is_last)
        if lost.least_ms:
            yield _span(LOST, usage, _before(over, lost.least_ms), over)


def _before(at: datetime, milliseconds: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() - milliseconds / 1000, UTC)

"""The usage of a run: the node and the times of each attempt, from the records of the attempts.

The agent copies the usage to the index when a run ends, so that one listing is enough for the costs
of all runs. All times are milliseconds since 1970 by the clock of the node, or None if unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptEnd, AttemptStart, HoldEnd, sign_interval_s

USAGE_VERSION = 1
MAX_ATTEMPTS = 10_000
_MISSING_SIGNS = 2
_PLAN_SKEW_MS = 2000  # a rehearsal counts from the start of the task, the attempt from its agent's
_NOTICE_S = 30.0  # of a rehearsal: the emulator's default
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the agent runs on 3.10

Read = Callable[[str], "bytes | None"]


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """One attempt on one node.

    Attributes:
        node: Empty if start.json is damaged.
        dedicated: None if not recorded.
        booted, created, ready: See `NodeTimes`.
        started, command, ended: Start of the attempt, start of its script, and end of the attempt.
        seen: Time of the last event. An attempt without `ended` ran at least until then.
        why: As in end.json; empty if there is none.
        node_ends: The announced time of the eviction of the node.
        kept: End of the work that later attempts continued, from a checkpoint or on the same node.
        saved: Time of the last checkpoint.
        pool: Pool of the node. It differs from the run's if the run was moved. Empty if unknown.
        ends_by: Latest end of an attempt without `ended`: the next attempt began, or signs of life
            are missing. None if nothing limits it, and for an attempt with `ended`.
        held: When the node was released that was kept after the attempt failed; None if it was not
            kept, or if that is not on record.
        held_by: Latest time of `held`; None if the node was not kept.
    """

    attempt: int
    rank: int
    node: str
    dedicated: bool | None = None
    booted: int | None = None
    created: int | None = None
    ready: int | None = None
    started: int | None = None
    command: int | None = None
    ended: int | None = None
    seen: int | None = None
    why: str = ""
    node_ends: int | None = None
    kept: int | None = None
    saved: int | None = None
    pool: str = ""
    ends_by: int | None = None
    held: int | None = None
    held_by: int | None = None

    @property
    def last_sign(self) -> int:
        """Time of the last record of the attempt: it ran at least until then."""
        known = (self.started, self.command, self.seen, self.saved)
        return max((each for each in known if each is not None), default=0)

    def kept_until(self, *, is_last: bool) -> int | None:
        """Return the end of the work that is not repeated; None if all of it is.

        If this is the last attempt, the next one will start from its last checkpoint.
        """
        return self.saved if is_last else self.kept


@dataclass(frozen=True, slots=True)
class LostWork:
    """Work of an attempt that no later attempt continued, in milliseconds.

    If the end of the attempt is on record, `least_ms` and `most_ms` are equal. If nothing limits
    the end, `most_ms` is None.
    """

    least_ms: int
    most_ms: int | None

    @property
    def is_measured(self) -> bool:
        """True if the loss is exact, not a bound."""
        return self.least_ms == self.most_ms


def loses_work(usage: AttemptUsage, *, is_last: bool, is_settled: bool) -> bool:
    """Return True if another attempt has to repeat what this one did after its last checkpoint.

    The work of a script that failed is not lost: it is the price of the failure. Nor is the work
    of the last attempt of a run that was cancelled, because nothing repeats it.

    Args:
        usage: The attempt.
        is_last: It is the last attempt of the run.
        is_settled: The run has a result, or its last attempt still runs.
    """
    return usage.why != "failed" and not (is_last and is_settled)


def find_lost_work(usage: AttemptUsage, *, is_last: bool) -> LostWork:
    """Return the work of an ended attempt that no other attempt continues, if it `loses_work`.

    Work is the time of the script: since its start, or since the checkpoint that a later attempt
    restored. An attempt that was lost before its script began loses its preparation.

    Args:
        usage: The attempt.
        is_last: Its run waits for another attempt, which will start from its last checkpoint.
    """
    since = usage.started or 0
    if usage.command is not None:
        since = max(usage.command, usage.kept_until(is_last=is_last) or 0)
    if usage.ended is not None:
        least = most = max(usage.ended - since, 0)
        return LostWork(least, most)
    least = max(usage.last_sign - since, 0)
    return LostWork(least, None if usage.ends_by is None else max(usage.ends_by - since, least))


_FIELDS = tuple(AttemptUsage.__dataclass_fields__)
# Types of the fields that are not integers; fields that are never None.
_KINDS = {"node": str, "why": str, "pool": str, "dedicated": bool}
_OF_HOLD = frozenset({"held", "held_by"})  # few runs keep their node
_PRESENT = frozenset({"attempt", "rank", "node", "why", "pool"})


def to_milliseconds(time: str | datetime | None) -> int | None:
    """Return a time as milliseconds since 1970, or None if it is not a time with a zone."""
    try:
        found = datetime.fromisoformat(time) if isinstance(time, str) else time
        if found is None or found.tzinfo is None:
            return None
        return (found - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


def usage_to_json(attempts: Sequence[AttemptUsage]) -> dict[str, Any]:
    """Return the attempts as rows of values, because space in the index is limited."""
    is_held = any(getattr(each, name) is not None for each in attempts for name in _OF_HOLD)
    names = [name for name in _FIELDS if is_held or name not in _OF_HOLD]
    rows = [[getattr(each, name) for name in names] for each in attempts]
    return {"version": USAGE_VERSION, "fields": names, "rows": rows}


def parse_usage(text: str | bytes) -> tuple[AttemptUsage, ...] | None:
    """Return the attempts of an index entry, or None if it is damaged or has a newer format."""
    try:
        raw: Any = parse_json(text)
        if raw["version"] != USAGE_VERSION:
            return None
        rows = [dict(zip(raw["fields"], row, strict=True)) for row in raw["rows"]]
        return tuple(_checked(row) for row in rows)
    except DAMAGED:
        return None


def _checked(row: Mapping[str, Any]) -> AttemptUsage:
    """Return the attempt. Raise one of DAMAGED for a value of another type."""
    for name, value in row.items():
        is_missing = value is None and name not in _PRESENT
        if not is_missing and type(value) is not _KINDS.get(name, int) and name in _FIELDS:
            raise ValueError(f"{name} is {value!r}")
    return AttemptUsage(**{name: row[name] for name in _FIELDS if name in row})


@dataclass(frozen=True, slots=True)
class _Events:
    command: int | None = None
    seen: int | None = None
    commits: Mapping[int, int] | None = None  # time of each checkpoint


@dataclass(frozen=True, slots=True)
class _Records:
    """An attempt on the primary node, its checkpoints, and the checkpoint that it resumed from."""

    usage: AttemptUsage
    commits: Mapping[int, int]
    resumed: tuple[int, int] | None  # attempt and checkpoint; None if they are of another run
    signs: bool = False  # the agent wrote signs of life
    evictions: int | None = None  # of a rehearsal, before the attempt


def load_usage(
    read: Read,
    run_id: str,
    *,
    nodes: int,
    status: str = "",
    ended: str | datetime | None = None,
    attempts: int = MAX_ATTEMPTS,
    kept_until: str | datetime | None = None,
) -> tuple[AttemptUsage, ...]:
    """Return the attempts of a run by number and rank.

    Args:
        read: Returns the content of a blob, or None if it does not exist.
        run_id: The run.
        nodes: Number of nodes of the run.
        status: Status of its result; empty without a result.
        ended: End of the result, used for a last attempt without end.json.
        attempts: Maximum number of attempts.
        kept_until: As in the result.
    """
    paths = RunPaths(run_id)
    found: list[_Records] = []
    while len(found) < min(attempts, MAX_ATTEMPTS):
        number = len(found) + 1
        content = read(paths.attempt_start(number))
        if content is None:
            break
        found.append(_load_attempt(read, paths, number, content))
    if found and found[-1].usage.ended is None and status in ("succeeded", "failed"):
        last = replace(found[-1].usage, ended=to_milliseconds(ended), why=status)
        found[-1] = replace(found[-1], usage=last)
    if found and (held_by := to_milliseconds(kept_until)) is not None:
        end = HoldEnd.load(read(paths.attempt_hold(len(found))) or b"")
        held = to_milliseconds(end.ended) if end is not None else None
        last = replace(found[-1].usage, held=held, held_by=held_by)
        found[-1] = replace(found[-1], usage=last)
    found = _with_ends(found, read, paths, to_milliseconds(ended) if status else None)
    usage: list[AttemptUsage] = []
    for primary in _with_kept_work(found, has_succeeded=status == "succeeded"):
        usage.append(primary)
        for rank in range(1, nodes):
            content = read(RunPaths(run_id, rank).attempt_start(primary.attempt))
            if content is not None:
                usage.append(_on_node(content, primary.attempt, rank, primary))
    return tuple(usage)


def _load_attempt(read: Read, paths: RunPaths, number: int, start: bytes) -> _Records:
    end = AttemptEnd.load(read(paths.attempt_end(number)) or b"") or AttemptEnd(
        number, "", "", None, None
    )
    events = _parse_events(read(paths.attempt_events(number)) or b"")
    commits = events.commits or {}
    usage = _on_node(
        start,
        number,
        0,
        AttemptUsage(
            number,
            0,
            "",
            command=events.command,
            ended=to_milliseconds(end.ended),
            seen=events.seen,
            why=end.why,
            node_ends=to_milliseconds(end.node_ends),
            saved=max(commits.values(), default=None),
        ),
    )
    record = AttemptStart.load(start)
    resumed = None
    if number > 1:  # the first attempt can only resume another run
        resumed = _resumed(read(paths.attempt_resume(number)) or b"", paths.run_id)
    return _Records(
        usage,
        commits,
        resumed,
        signs=record is not None and record.signs,
        evictions=record.evictions if record is not None else None,
    )


def _with_ends(
    found: Sequence[_Records], read: Read, paths: RunPaths, run_ended: int | None
) -> list[_Records]:
    """Return the attempts with the ends of those that did not record theirs, or with a limit."""
    ends: list[_Records] = []
    for number, each in enumerate(found):
        usage = each.usage
        if usage.ended is None and usage.started is not None:
            after = found[number + 1] if number + 1 < len(found) else None
            limit = after.usage.started if after is not None else run_ended
            planned = _planned_end(each, after, read, paths)
            if planned is not None and (limit is None or planned <= limit + _PLAN_SKEW_MS):
                planned = planned if limit is None else min(planned, limit)
                usage = replace(usage, ended=max(planned, usage.last_sign))
            else:
                usage = replace(usage, ends_by=_latest_end(usage, limit, signs=each.signs))
        ends.append(replace(each, usage=usage))
    return ends


def _latest_end(usage: AttemptUsage, limit: int | None, *, signs: bool) -> int | None:
    """Return the latest end of an attempt on a lost node, or None if nothing limits it.

    Args:
        usage: The attempt.
        limit: When the next attempt began, or the run ended.
        signs: Its agent wrote signs of life, of which two in a row are missing after its end.
    """
    last = usage.last_sign
    limits = [] if limit is None else [limit]
    if signs:
        interval_s = sign_interval_s((last - (usage.started or last)) / 1000)
        limits.append(last + int(_MISSING_SIGNS * interval_s * 1000))
    return max(min(limits), last) if limits else None


def _planned_end(each: _Records, after: _Records | None, read: Read, paths: RunPaths) -> int | None:
    """Return when a rehearsal evicted the node of an attempt, or None if it did not."""
    number, started = each.evictions, each.usage.started
    if number is None or started is None or after is None or (after.evictions or 0) <= number:
        return None
    try:
        run: Any = parse_json(read(paths.run) or b"")
        return started + int(1000 * sum(planned_times(run["rehearsal"]["evictions"][number])))
    except (IndexError, *DAMAGED):
        return None


def planned_times(planned: Sequence[float | None]) -> tuple[float, float]:
    """Return the seconds until the notice of an eviction, and from there to the eviction.

    Args:
        planned: An entry of `rehearsal.evictions` in run.json.
    """
    after_s, notice_s = float(planned[0] or 0.0), planned[1]
    return after_s, _NOTICE_S if notice_s is None else float(notice_s)


def _on_node(start: bytes, number: int, rank: int, like: AttemptUsage) -> AttemptUsage:
    """Return an attempt on the node in its start.json, with all other values from `like`."""
    record = AttemptStart.load(start)
    if record is None:
        return replace(like, attempt=number, rank=rank, node="")
    times = record.node_times
    return replace(
        like,
        attempt=number,
        rank=rank,
        node=record.node,
        dedicated=record.dedicated,
        booted=to_milliseconds(times.booted),
        created=to_milliseconds(times.created),
        ready=to_milliseconds(times.ready),
        started=to_milliseconds(record.started),
        node_ends=like.node_ends if rank == 0 else None,
        pool=record.pool,
    )


def _parse_events(content: bytes) -> _Events:
    command: int | None = None
    seen: int | None = None
    commits: dict[int, int] = {}
    for line in content.splitlines():
        try:
            raw: Any = parse_json(line)
            time = to_milliseconds(str(raw.get("time")))
            stage, state = raw.get("stage"), raw.get("state")
            if time is None:
                continue
            seen = time if seen is None else max(seen, time)
            if stage == "command" and state == "start" and command is None:
                command = time
            if stage == "checkpoint" and state == "progress" and "checkpoint" in raw:
                commits[int(raw["checkpoint"])] = time
        except DAMAGED:
            continue  # an incomplete last line
    return _Events(command, seen, commits)


def first_commit_ms(events: bytes) -> int | None:
    """Return how long the script of an attempt ran until its first checkpoint was committed.

    Args:
        events: events.jsonl of the attempt.

    Returns:
        Milliseconds, or None if it committed none.
    """
    found = _parse_events(events)
    first = min((found.commits or {}).values(), default=None)
    return None if first is None or found.command is None else max(first - found.command, 0)


def load_work_ms(read: Read, run_id: str, attempt: int | None) -> int:
    """Return how long the scripts of a run worked for its checkpoints, in milliseconds.

    Args:
        read: As in `load_usage`.
        run_id: The run.
        attempt: The last attempt that counts; None for all.
    """
    most = MAX_ATTEMPTS if attempt is None else attempt
    found = load_usage(read, run_id, nodes=1, attempts=most)
    return sum(map(_work_ms, found))


def _work_ms(usage: AttemptUsage) -> int:
    ends = (usage.kept, usage.saved, usage.ended, usage.last_sign)
    end = next(each for each in ends if each is not None)
    return 0 if usage.command is None else max(end - usage.command, 0)


def _resumed(content: bytes, run_id: str) -> tuple[int, int] | None:
    try:
        raw: Any = parse_json(content)
        return (int(raw["attempt"]), int(raw["checkpoint"])) if raw["run_id"] == run_id else None
    except DAMAGED:
        return None


def _with_kept_work(found: Sequence[_Records], *, has_succeeded: bool) -> list[AttemptUsage]:
    """Return the attempts with their values of `kept`.

    They are found backwards from the last attempt, along the checkpoints that were resumed from.
    """
    kept: dict[int, int | None] = {}
    by_number = {each.usage.attempt: each for each in found}
    current = found[-1] if found else None
    while current is not None:
        before = by_number.get(current.usage.attempt - 1)
        if current.resumed is not None:
            number, checkpoint = current.resumed
            before = by_number.get(number) if number < current.usage.attempt else None
            if before is not None:
                kept[number] = before.commits.get(checkpoint, before.usage.saved)
        elif before is not None and current.usage.command is None:
            if (
                has_succeeded and current is found[-1]
            ):  # the script had ended, and this attempt only exported
                kept[before.usage.attempt] = before.usage.ended or before.usage.seen
            else:  # it has not restored a checkpoint yet, or ended before it could
                while before is not None and before.usage.saved is None:
                    before = by_number.get(before.usage.attempt - 1)
                if before is not None:
                    kept[before.usage.attempt] = before.usage.saved
        else:
            before = None
        current = before
    return [replace(each.usage, kept=kept.get(each.usage.attempt)) for each in found]

"""Run ids: readable, sortable by time, valid as Batch task ids."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

from runner.core.errors import RunnerError

MAX_ID = 64  # Batch ids: 1-64 of [A-Za-z0-9_-], case-insensitive
SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no 0/o, 1/l
_LOOKED_AT = 1000  # ids, for one that was meant
_STAMP_LENGTH = len("-20261121-143005-k3f9")
_NAME_END = re.compile(r"-\d{8}-")
_NAMES_ALIKE = 0.75
_RUN_ID = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9_-]*)-(?P<stamp>\d{8}-\d{6})-(?P<suffix>[a-z0-9]{4})$"
)


def slug(text: str) -> str:
    """Lower-case letters, digits, `_` and `-`, starting with a letter or digit; never empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_-]+", "-", plain).strip("-_") or "run"


def make_run_id(name: str, created: datetime, suffix: str) -> str:
    """`<name>-YYYYMMDD-HHMMSS-xxxx`, at most 64 characters; `suffix` is four of SUFFIX_ALPHABET."""
    short = slug(name)[: MAX_ID - _STAMP_LENGTH].rstrip("-_")
    return f"{short}-{created:%Y%m%d-%H%M%S}-{suffix}"


def is_run_id(text: str) -> bool:
    """Whether `text` has the form of a complete run id."""
    return len(text) <= MAX_ID and _RUN_ID.match(text) is not None


def newest_first(run_ids: list[str]) -> list[str]:
    """Run ids by the time in them, newest first; ids of the same second in reverse order."""
    return sorted(run_ids, key=_time_key, reverse=True)


def _time_key(run_id: str) -> tuple[str, str]:
    match = _RUN_ID.match(run_id)
    return (match["stamp"] if match else "", run_id)


def submitted(run_id: str) -> datetime | None:
    """The time in a run id, to the second; None where it is none."""
    match = _RUN_ID.match(run_id)
    try:
        stamp = match["stamp"] if match else ""
        return datetime.strptime(stamp, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def job_id_for(experiment: str, pool: str, priority: int = 0) -> str:
    """The Batch job of an experiment on a pool: `<experiment>_<pool>`, cut to fit 64 characters.

    Priority belongs to the job, not to its tasks: one that is not 0 makes a job of its own,
    `<experiment>_<pool>_p10` or `_m10`.
    """
    rank = f"_{'p' if priority > 0 else 'm'}{abs(priority)}" if priority else ""
    # A closed job is followed by `<id>-2`, `<id>-3` ...
    room = MAX_ID - len(pool) - 1 - len(rank) - len("-99")
    return f"{slug(experiment)[: max(room, 1)].rstrip('-_')}_{pool}{rank}"


def check_reference(text: str) -> str:
    """A run reference as typed: an id, a prefix of one, or `@last`. Raises on anything else."""
    if text == "@last" or re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", text):
        return text
    raise RunnerError(
        "R-RUN-REFERENCE",
        f"{text!r} is not a run",
        why="a run is its id, a unique prefix of it, or @last",
        fix="runner ps",
    )


def near_run(text: str, ids: Sequence[str]) -> str | None:
    """The newest of the ids that begin much as `text` does; what was mistyped may be a prefix."""
    import difflib  # noqa: PLC0415  only a mistake needs it

    beginnings = {run_id[: len(text)]: run_id for run_id in reversed(ids[:_LOOKED_AT])}
    found = difflib.get_close_matches(text, beginnings, n=1, cutoff=0.75)
    if not found:
        return None
    near = beginnings[found[0]]
    # Times of one day are alike: they must not make ids of other names look near.
    names = (_NAME_END.split(text)[0], _NAME_END.split(near)[0])
    alike = difflib.SequenceMatcher(None, *names).ratio() >= _NAMES_ALIKE
    return near if alike or not _NAME_END.search(text) else None

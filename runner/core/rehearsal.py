"""Plan the evictions of a rehearsal: at random from a seed, or by a trace.

The plan has one time per eviction, counted from the start of the attempt whose node is evicted.
Therefore, the same text gives the same evictions, however long nodes boot.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from batch_emulator.domain.eviction_trace import TraceError, load_trace
from runner.core.units import UnitError, parse_duration
from runner.protocol.errors import RunnerError

_MAX_EVICTIONS = 1000  # limit of the emulator
_DEFAULT_COUNT = 100
_DAY_S = 86_400
_BOUNDS_S = {"mtbf": (1, 3650 * _DAY_S), "notice": (0, 3600), "away": (0, 365 * _DAY_S)}
_KEYS = ("seed", "mtbf", "notice", "away", "count")


def plan_rehearsal(text: str) -> dict[str, Any]:
    """Return the document `rehearsal` of run.json.

    Args:
        text: `seed=7,mtbf=10m`, optionally with `notice`, `away` and `count`, or the path of a
            trace. The times of a trace are running times of the run, summed over all attempts.

    Raises:
        RunnerError: R-EVICT, the text or the trace is not valid.
    """
    evictions = _draw_evictions(text) if "=" in text else _load_trace(Path(text).expanduser())
    return {"spec": text, "evictions": evictions}


def _draw_evictions(text: str) -> list[list[float | None]]:
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in _KEYS:
            raise _invalid(f"unknown {part.strip()!r}", f"allowed: {', '.join(_KEYS)}")
        if name in given:
            raise _invalid(f"duplicate {name!r}")
        given[name] = value
    if "mtbf" not in given:
        raise _invalid("missing 'mtbf'", "mtbf is the mean time until a node is evicted")
    times = {name: _parse_time(name, given[name]) for name in _BOUNDS_S if name in given}
    seed, count = _parse_whole(given, "seed", 0), _parse_whole(given, "count", _DEFAULT_COUNT)
    if not 1 <= count <= _MAX_EVICTIONS:
        raise _invalid(f"'count' is {count}", f"allowed: 1 to {_MAX_EVICTIONS}")
    draw = random.Random(f"rehearsal/{seed}")  # noqa: S311
    return [
        [round(draw.expovariate(1 / times["mtbf"]), 3), times.get("notice"), times.get("away")]
        for _ in range(count)
    ]


def _parse_time(name: str, text: str) -> float:
    try:
        seconds = parse_duration(text).total_seconds()
    except UnitError as err:
        raise _invalid(f"{name!r}: {err.what}", err.why) from err
    least, most = _BOUNDS_S[name]
    if not least <= seconds <= most:
        raise _invalid(f"{name!r} is {text}", f"allowed: {least} s to {most:,} s")
    return seconds


def _parse_whole(given: dict[str, str], name: str, otherwise: int) -> int:
    text = given.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise _invalid(f"{name!r} is {text!r}", "expected a whole number of at least 0")
    return int(text)


def _load_trace(path: Path) -> list[list[float | None]]:
    try:
        entries = load_trace(path, in_order=True)
    except TraceError as err:
        raise _invalid(str(err)) from err
    if len(entries) > _MAX_EVICTIONS:
        raise _invalid(
            f"{path}: {len(entries):,} entries",
            f"a rehearsal has at most {_MAX_EVICTIONS} evictions",
        )
    found: list[list[float | None]] = []
    before_s = 0.0
    for entry in entries:
        time_s = round(entry.time_s, 3)
        if entry.evict != 1:
            raise _invalid(
                f"{path}: invalid entry at time {time_s:g}",
                'each entry of a rehearsal evicts one node: {"time": 120, "evict": 1}',
            )
        notice_s = None if entry.notice_s is None else round(entry.notice_s, 3)
        found.append([round(time_s - before_s, 3), notice_s, None])
        before_s = time_s
    return found


def _invalid(what: str, why: str = "") -> RunnerError:
    fix = "--evict seed=7,mtbf=10m, or --evict trace.jsonl"
    return RunnerError("R-EVICT", f"invalid --evict: {what}", why=why, fix=fix)

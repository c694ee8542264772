"""Sizes, durations and ages: one grammar to parse them, one format to display them.

**Sizes.** `K M G T` are powers of 1000 and `Ki Mi Gi Ti` powers of 1024, as in Kubernetes; a `B`
may follow, case does not matter, and a number alone is bytes. So `28G`, `28gb`
and `28 GB` are 28,000,000,000 bytes, `28Gi`, `28GiB` and `28 gib` are 30,064,771,072. Fractions are
allowed (`1.5GiB`); a fraction of a byte is dropped.

**Durations.** Numbers with the units `w d h m s` (or `min`) in that order (`90s`, `1h30m`, `2h`),
ISO 8601 with weeks, days and times (`P1DT2H`, `PT15M`; months and years differ in length and are
rejected), or a number alone, which is seconds. `m` is minutes in any case.

Standard library only, because `--since` and `--timeout` must not load pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from runner.protocol import host
from runner.protocol.errors import RunnerError

format_size = host.format_size  # shared with the agent

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
# Without flags and named groups, so that the JSON schemas can contain the same patterns.
SIZE_PATTERN = rf"^\s*({_NUMBER})\s*([kKmMgGtT][iI]?)?[bB]?\s*$"
_UNIT_PATTERNS = ("[wW]", "[dD]", "[hH]", "[mM](?:[iI][nN])?", "[sS]")
_UNITS_PATTERN = "".join(rf"(?:({_NUMBER})\s*{unit}\s*)?" for unit in _UNIT_PATTERNS)
_ISO_DATE, _ISO_TIME = (
    "".join(rf"(?:({_NUMBER})[{letter}{letter.lower()}])?" for letter in letters)
    for letters in ("WD", "HMS")
)
DURATION_PATTERN = (
    rf"^\s*(?=[0-9]|[pP].*[0-9])"
    rf"(?:({_NUMBER})|{_UNITS_PATTERN}|[pP]{_ISO_DATE}(?:[tT](?=[0-9]){_ISO_TIME})?)\s*$"
)
_SIZE = re.compile(SIZE_PATTERN)
_DURATION = re.compile(DURATION_PATTERN)
_UNIT_SECONDS = (7 * 86400, 86400, 3600, 60, 1)
_MAX_QUOTED = 60  # maximum number of characters that an error quotes
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class UnitError(ValueError):
    """The text is not a size or a duration; `what`, `why` and `fix` are parts of an error."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}: {fix}")
        self.what, self.why, self.fix = what, why, fix


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}...")


def parse_size(text: str) -> int:
    """Return the number of bytes: of `28G`, `28gb`, `28 GiB`, `500 MB`, `1073741824`.

    Raises:
        UnitError: The text is not a size.
    """
    match = _SIZE.match(text)
    if match is not None:
        unit = (match[2] or "").lower()
        total = Decimal(match[1]) * (1024 if unit[1:] else 1000) ** _POWERS[unit[:1]]
        if total < 1 << 63:
            return int(total)
    raise UnitError(
        f"{_quote(text)} is not a size",
        "expected a number of bytes, or a number with K, M, G, T (powers of 1000) or Ki, Mi, Gi, "
        "Ti (powers of 1024)",
        "use a size such as 28GiB, 500MB or 64G",
    )


def parse_duration(text: str) -> timedelta:
    """Return the duration.

    Args:
        text: Numbers with units (`90s`, `15m`, `1h30m`, `2h`, `1d`, `1w`), ISO 8601 (`P1DT2H`), or
            seconds.

    Raises:
        UnitError: The text is not a duration.
    """
    match = _DURATION.match(text)
    if match is not None:
        seconds, *rest = match.groups(default="0")
        amounts = [
            Decimal(one) + Decimal(other) for one, other in zip(rest[:5], rest[5:], strict=True)
        ]
        total = Decimal(seconds) + sum(a * b for a, b in zip(amounts, _UNIT_SECONDS, strict=True))
        if total < 10**9 * 86400:
            return timedelta(seconds=int(total), microseconds=int(total % 1 * 10**6))
    fix = "use a duration such as 90s, 90m, 1h30m, 2h, 1d or P1DT2H"
    if clock := re.fullmatch(r"(\d{1,3}):([0-5]?\d)(?::([0-5]?\d))?", text.strip(), re.ASCII):
        first, second, third = (int(part or 0) for part in clock.groups())
        long = f"{first}h{second}m{f'{third}s' if third else ''}"
        fix = f"write {long}" if clock[3] else f"write {long}, or {first}m{second}s"
    raise UnitError(
        f"{_quote(text)} is not a duration",
        "expected numbers with w, d, h, m or s, ISO 8601, or a number of seconds",
        fix,
    )


def parse_duration_flag(flag: str, text: str, least: str, most: str, reason: str = "") -> timedelta:
    """Return the duration given to a command-line option, from `least` to `most`.

    Args:
        flag: Name of the option, without dashes.
        text: Value of the option.
        least: Minimum, such as `1m`.
        most: Maximum, such as `7d`.
        reason: Reason for the bounds, shown to the user; empty if there is none.

    Raises:
        RunnerError: R-FLAG-VALUE, the text is not a duration or is out of bounds.
    """
    try:
        found = parse_duration(text)
    except UnitError as err:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"invalid --{flag}: {err.what}",
            why=err.why,
            fix=f"--{flag} 90m",
        ) from err
    if parse_duration(least) <= found <= parse_duration(most):
        return found
    nearest = least if found < parse_duration(least) else most
    raise RunnerError(
        "R-FLAG-VALUE",
        f"invalid --{flag} {text}",
        why=f"allowed: {least} to {most}{reason and f', {reason}'}",
        fix=f"--{flag} {nearest}",
    )


def parse_moment(text: str) -> datetime | None:
    """Return a time with a zone, or None if the text is not one."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time of `--since`.

    Args:
        text: A duration before `now` with a unit (`7d`, `12h`), or a date or time. A time without a
            time zone is local.
        now: The current time, with a time zone.

    Raises:
        RunnerError: R-SINCE, the text is neither.
    """
    try:
        if text.strip()[-1:].isdigit():  # a date, not a number of seconds
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
        try:
            return now - parse_duration(text)
        except UnitError:
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as err:
        raise RunnerError(
            "R-SINCE",
            f"invalid --since {text!r}",
            why="expected a duration with a unit (m, h, d, w) or a date",
            fix="--since 7d, --since 12h, or --since 2026-11-21",
        ) from err


def format_duration(duration: float | timedelta) -> str:
    """Return a duration, or seconds, as text: `0.4 s`, `12 s`, `3 min 20 s`, `3 d 04 h`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    whole = round(seconds)
    if seconds < 9.95 and seconds != whole:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _format_two_units(whole, 60, "min", 1, "s")
    if whole < 48 * 3600:
        return _format_two_units(whole, 3600, "h", 60, "min")
    return _format_two_units(whole, 86400, "d", 3600, "h")


def _format_two_units(
    seconds: int, large: int, large_unit: str, small: int, small_unit: str
) -> str:
    rest = seconds % large // small
    return f"{seconds // large} {large_unit}" + (f" {rest:02d} {small_unit}" if rest else "")


def format_age(passed: timedelta) -> str:
    """Return an age in one unit: `12 s`, `5 min`, `3 h`, `12 d`."""
    seconds = max(round(passed.total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length or (unit == "min" and seconds >= length):
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def format_count(number: int, noun: str) -> str:
    """Return a number of things as text, such as `1 file` or `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_names(names: Iterable[str], most: int = 10) -> str:
    """Return names as text, such as `1-3, 5, merge`: numbers in a row are a range.

    Args:
        names: the names, sorted.
        most: number of names and ranges after which the others are only counted.
    """
    ranges: list[list[str]] = []
    for name in names:
        last = ranges[-1] if ranges else []
        if last and last[-1].isdecimal() and name == f"{int(last[-1]) + 1:0{len(last[-1])}d}":
            last.append(name)
        else:
            ranges.append([name])
    shown = [f"{one[0]}-{one[-1]}" if len(one) > 2 else ", ".join(one) for one in ranges[:most]]
    if left := sum(map(len, ranges[most:])):
        shown.append(f"and {left} more")
    return ", ".join(shown)

"""The names that a formula finds: constants, words, metrics and the variables that it sets."""

from __future__ import annotations

from batch_emulator.autoscale.dialect import Dialect
from batch_emulator.autoscale.samples import LEGACY_METRICS, METRICS, TICKS_PER_SECOND
from batch_emulator.autoscale.values import WORDS, Interval, Metric, Value, Word

DEDICATED = "$TargetDedicatedNodes"
SPOT = "$TargetLowPriorityNodes"
OPTION = "$NodeDeallocationOption"
TARGETS = (DEDICATED, SPOT, OPTION)
# the names of before there were spot nodes; the full name wins where both are set (docs)
TARGET_ALIASES = {"$TargetDedicated": DEDICATED, "$TargetLowPriority": SPOT}
METRIC_ALIASES = {"$CurrentDedicated": "$CurrentDedicatedNodes"}

_SECONDS = {
    "Zero": 0,
    "Second": 1,
    "Minute": 60,
    "Hour": 3600,
    "Day": 86_400,
    "Week": 7 * 86_400,
    "Year": 365 * 86_400,  # [S]
}
CONSTANTS: dict[str, Value] = {
    **{
        f"TimeInterval_{name}": Interval(seconds * TICKS_PER_SECOND)
        for name, seconds in _SECONDS.items()
    },
    "TimeInterval_100ns": Interval(1),
    "TimeInterval_Microsecond": Interval(10),
    "TimeInterval_Millisecond": Interval(10_000),
    **{word: Word(word) for word in WORDS},
}
_METRICS = {name: Metric(name) for name in (*METRICS, *LEGACY_METRICS)}
_SERVICE = (*TARGETS, *TARGET_ALIASES, *METRIC_ALIASES, *_METRICS, *CONSTANTS)
_FOLDED = {name.lower(): name for name in _SERVICE}


def spelled(name: str, dialect: Dialect) -> str:
    """The service's spelling of one of its names, where case does not matter."""
    return name if dialect.case_sensitive else _FOLDED.get(name.lower(), name)


def meant(name: str) -> str | None:
    """A name of the service that differs in nothing but case."""
    found = _FOLDED.get(name.lower())
    return None if found == name else found


def metric(name: str, dialect: Dialect) -> Metric | None:
    """The metric of that name."""
    name = METRIC_ALIASES.get(name, name)
    if name in LEGACY_METRICS and not dialect.legacy_metrics:
        return None
    if name == "$UsableNodeCount" and not dialect.usable_node_count:
        return None
    return _METRICS.get(name)

"""A switch for each point of the formula language on which the sources disagree or are silent.

[X]: the sources disagree. [S]: no source covers the point. The rest of the language is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Dialect:
    """An interpretation of the language. The defaults follow the newest sources and samples."""

    case_sensitive: bool = True
    """[X] The REST reference of 2017 writes `$targetDedicatedNodes`, the article never does."""

    empty_is_zero: bool = True
    """[S] avg, min, max ... of nothing, and `val` outside of a vector, are 0 (else an error).

    Public formulas pass GetSample(1) to them on pools that have no samples yet.
    """

    bare_metrics: bool = True
    """[X] A metric in arithmetic is its newest sample, 0 without one (else an error).

    The article multiplies `$CurrentDedicatedNodes`, and says elsewhere that metrics have methods.
    """

    more_operators: bool = False
    """[X] Also timestamp - timeinterval, double op doubleVec, timeinterval / timeinterval and
    `-` of a vector, which some texts use although the table of operators lacks them."""

    minimum_percent: float = 70.0
    """[X] The percentage of samples that GetSample of a time frame requires by default. On new
    pools the service answers "wanted 70%, received 0%" (Azure/batch-shipyard#138, read 2026-11-22).
    The article implies 0, and the REST reference of 2017 shows 10."""

    percent_scale: float = 100.0
    """[X] GetSamplePercent of complete samples: 100 (seen on the service), 1 (REST reference)."""

    cpu_scale: float = 1.0
    """[X] `$CPUPercent` of a fully busy pool: 1 in the formulas, 100 in the text above them."""

    sunday: int = 7
    """[S] `weekday` of a Sunday; Monday is 1. ISO 8601 and public formulas use 7; 0 is possible."""

    rounding: bool = True
    """[X by date] ceil, floor and round exist; formulas older than 2022 say they do not."""

    log2_of_vectors: bool = False
    """[X] `ln` of a vector has base 2 in one version of the article."""

    legacy_metrics: bool = True
    """[X by date] $WallClockSeconds, $MemoryBytes, $DiskBytes and the like exist (0, a warning)."""

    usable_node_count: bool = True
    """[S] `$UsableNodeCount` exists; seen in third-party formulas only."""

    fraction_digits: int = 7
    """[S] Digits after the second that `time` reads. 6 are known to work, 9 are known to fail,
    7 are what the service itself writes."""

    spot_in_results: bool = True
    """[X by date] Results name `$TargetLowPriorityNodes`; the oldest do not."""


DEFAULT = Dialect()
STRICT = replace(
    DEFAULT,
    empty_is_zero=False,
    bare_metrics=False,
    legacy_metrics=False,
    usable_node_count=False,
    fraction_digits=6,
)
LENIENT = replace(
    DEFAULT, case_sensitive=False, more_operators=True, minimum_percent=0.0, fraction_digits=9
)
DIALECTS = {"default": DEFAULT, "strict": STRICT, "lenient": LENIENT}

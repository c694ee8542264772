"""Generated traces: the spot capacity of a pool whose machines live for random times.

A trace is drawn before a simulation and does not depend on a policy, so that the optimum of
`optimum.py` can know what each policy meets.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise

from runner.features.simulation.scenario import MS, ScenarioError, TraceEntry

_MAX_ENTRIES = 500_000
# Kadupitiya, Jadhao and Sharma, "Modeling the Temporally Constrained Preemptions of Transient
# Cloud VMs" (HPDC 2020, arXiv 1911.05160): F(t) = A (1 - exp(-t / EARLY) + exp((t - END) / LATE)).
# Many machines are lost in their first hours, few after that, and the rest near END. A cancels,
# because the time here ends at END. The unit is an hour of theirs; the mean is scaled.
_EARLY, _LATE, _END = 1.0, 0.8, 24.0
_STEPS = 2048


@cache
def _bathtub_table() -> tuple[list[float], float]:
    """Return the distribution function at even steps from 0 to its end, and the mean."""
    times = [_END * step / _STEPS for step in range(_STEPS + 1)]
    shape = [1 - math.exp(-t / _EARLY) + math.exp((t - _END) / _LATE) for t in times]
    low, high = shape[0], shape[-1]
    function = [(each - low) / (high - low) for each in shape]
    # The mean is the integral of 1 - F, by the trapezoidal rule.
    mean = _END / _STEPS * sum(1 - (a + b) / 2 for a, b in pairwise(function))
    return function, mean


def _bathtub(chance: float) -> float:
    """Return the lifetime, with a mean of 1, that a machine reaches with this probability."""
    function, mean = _bathtub_table()
    step = max(1, bisect_left(function, chance))
    below, above = function[step - 1], function[step]
    part = (chance - below) / (above - below) if above > below else 0.0
    return _END / _STEPS * (step - 1 + part) / mean


# The quantile functions, for a mean of 1.
LIFETIMES: Mapping[str, Callable[[float], float]] = {
    "exponential": lambda chance: -math.log(1 - chance),
    "bathtub": _bathtub,
}


def generate_trace(
    lifetime: str, mean_ms: float, away_ms: float, *, machines: int, until_ms: int, seed: int
) -> tuple[TraceEntry, ...]:
    """Return the capacity of a pool over time, for machines that live independently.

    Args:
        lifetime: A key of LIFETIMES.
        mean_ms: Mean lifetime of a machine.
        away_ms: Mean time until another machine replaces it, exponential; 0 for at once.
        machines: Largest capacity. A machine that is replaced at once is still an eviction.
        until_ms: End of the trace; after it, the capacity is `machines`.
        seed: The same seed gives the same trace.

    Raises:
        ScenarioError: the trace would have more than 500,000 entries.
    """
    quantile = LIFETIMES[lifetime]
    steps: list[tuple[int, int]] = []
    for machine in range(machines):
        draw = random.Random(f"lifetimes/{seed}/{machine}")  # noqa: S311
        now = 0.0
        while (now := now + max(1.0, mean_ms * quantile(draw.random()))) < until_ms:
            steps.append((round(now), -1))
            now += draw.expovariate(1 / away_ms) if away_ms else 0.0
            steps.append((min(round(now), until_ms), 1))
            if len(steps) > _MAX_ENTRIES:
                raise ScenarioError(
                    f"more than {_MAX_ENTRIES // 2:,} evictions until the end; use fewer nodes, a "
                    "longer --mtbf or an earlier --deadline"
                )
    steps.sort()  # a loss before the return at the same time
    capacity = machines
    found = [TraceEntry(0.0, capacity=machines)]
    for time_ms, change in steps:
        capacity += change
        found.append(TraceEntry(time_ms / MS, capacity=capacity))
    return tuple(found)

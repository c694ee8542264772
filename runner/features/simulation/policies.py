"""Policies that choose between spot and dedicated nodes to end all work before a deadline.

`uniform` is Uniform Progress of "Can't Be Late: Optimizing Spot Instance Savings under Deadlines"
(Wu et al., NSDI 2024), and `greedy` is its baseline, each for a pool instead of one machine. All
except `on-demand` and `spot` have the safety net of that paper: when dedicated nodes can only just
meet the deadline, no spot node is added until the end, and dedicated nodes replace missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.features.simulation.scenario import Policy, SimulatedPool

# The first forecast assumes an hour of node time, of which 90 % was progress.
_PRIOR_MS = 3_600_000.0
_PRIOR_RATE = 0.9


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a policy.

    Attributes:
        deadline_ms: Deadline of all work, since the start of the simulation.
        nodes: Maximum number of nodes of the pool.
        slots: Task slots of a node.
        changeover_ms: Time until work of a lost node continues on another node.
        lost_ms: Most work that an eviction undoes; None without checkpoints.
    """

    deadline_ms: int
    nodes: int
    slots: int
    changeover_ms: int
    lost_ms: int | None = None

    def wanted(self, state: SimulatedPool) -> int:
        """Return the number of nodes for all waiting and running tasks."""
        return min(self.nodes, state.nodes_wanted)

    def slack_ms(self, state: SimulatedPool) -> float:
        """Return the time that remains if all nodes work from now on.

        If all tasks fit on the nodes at once, the longest decides. Otherwise, tasks in any order
        end within the time of Graham's bound for list scheduling.
        """
        needed = float(state.longest_ms)
        if not self._fits(state):
            needed = state.left_ms / (self.nodes * self.slots) + self.tail_ms(state)
        return self.deadline_ms - state.now_ms - needed

    def tail_ms(self, state: SimulatedPool) -> float:
        """Return the longest time at the end in which nodes can be without work."""
        share = 0 if self._fits(state) else 1 - 1 / (self.nodes * self.slots)
        return state.longest_ms * share

    def _fits(self, state: SimulatedPool) -> bool:
        """Return True if no task waits for the end of another one."""
        return state.all_arrived and state.nodes_wanted <= self.nodes


def on_demand(goal: Goal) -> Policy:
    """Use dedicated nodes only."""
    return lambda state: (0, goal.wanted(state))


def spot(goal: Goal) -> Policy:
    """Use spot nodes only, also if the work ends late or never."""
    return lambda state: (goal.wanted(state), 0)


def fallback(goal: Goal) -> Policy:
    """Replace each missing spot node by a dedicated node."""

    def decide(state: SimulatedPool) -> tuple[int, int]:
        wanted = goal.wanted(state)
        return wanted, max(0, wanted - state.spot)

    return _with_safety_net(goal, decide)


def greedy(goal: Goal) -> Policy:
    """Use only spot nodes, even if there are none, until the safety net applies."""
    return _with_safety_net(goal, lambda state: (goal.wanted(state), 0))


def uniform(goal: Goal) -> Policy:
    """Replace missing spot nodes while the progress is behind uniform progress to the deadline."""
    behind = False

    def expected_ms(state: SimulatedPool, at_ms: float) -> float:
        return (state.done_ms + state.left_ms) * min(1.0, at_ms / goal.deadline_ms)

    def decide(state: SimulatedPool) -> tuple[int, int]:
        nonlocal behind
        # Hysteresis: once behind, progress counts as behind until it is ahead by two changeovers.
        margin = 2 * goal.changeover_ms if behind else 0
        behind = state.done_ms < expected_ms(state, state.now_ms + margin)
        wanted = goal.wanted(state)
        return wanted, max(0, wanted - state.spot) if behind else 0

    return _with_safety_net(goal, decide)


def forecast(goal: Goal) -> Policy:
    """Add a dedicated node for each spot node that is expected to be missing.

    The expectation is the share of the requested spot node time that was progress so far.
    """
    asked_ms, got_ms, last_ms, last_done = _PRIOR_MS, _PRIOR_MS * _PRIOR_RATE, 0, 0

    def decide(state: SimulatedPool) -> tuple[int, int]:
        nonlocal asked_ms, got_ms, last_ms, last_done
        wanted = goal.wanted(state)
        nodes = state.spot + state.dedicated
        if nodes:  # progress of the spot nodes, and their progress without evictions
            got_ms += (state.done_ms - last_done) / goal.slots * state.spot / nodes
        asked_ms += wanted * (state.now_ms - last_ms)
        last_ms, last_done = state.now_ms, state.done_ms
        rate = min(1.0, max(0.01, got_ms / asked_ms))
        time_ms = goal.deadline_ms - state.now_ms - goal.tail_ms(state) - 3 * goal.changeover_ms
        needed = state.left_ms / (goal.slots * max(1.0, time_ms))  # nodes that never pause
        short = math.ceil(needed - rate * goal.nodes)
        return wanted, max(0, min(short, wanted - state.spot))

    return _with_safety_net(goal, decide)


POLICIES: Mapping[str, Callable[[Goal], Policy]] = {
    "on-demand": on_demand,
    "spot": spot,
    "fallback": fallback,
    "greedy": greedy,
    "uniform": uniform,
    "forecast": forecast,
}


def _with_safety_net(goal: Goal, policy: Policy) -> Policy:
    caught = False

    def decide(state: SimulatedPool) -> tuple[int, int]:
        nonlocal caught
        slack_ms = goal.slack_ms(state)
        caught = caught or slack_ms < 2 * goal.changeover_ms
        if not caught:
            return policy(state)
        wanted = goal.wanted(state)
        # A spot node that works uses no slack, and its eviction uses it once.
        is_safe = goal.lost_ms is not None and slack_ms >= goal.changeover_ms + goal.lost_ms
        kept = min(state.spot, wanted) if is_safe else 0
        return kept, wanted - kept

    return decide


def checkpoint_interval_s(save_s: float, mtbf_s: float) -> tuple[float, float]:
    """Return the best work between two checkpoints by Young and by Daly, in seconds.

    Args:
        save_s: Time for which a checkpoint stops the work, above 0.
        mtbf_s: Mean time between two evictions of a node, above 0.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006,
    "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 37.
    """
    young = math.sqrt(2 * save_s * mtbf_s)
    if save_s >= 2 * mtbf_s:
        return young, mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young, young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s

"""Find problems of a formula that Batch accepts, such as no upper bound, no target, or lost work.

The formula is evaluated on pools in different states, so the rules do not depend on how it is
written.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from batch_emulator.autoscale.evaluate import Evaluation, Inputs, evaluate
from batch_emulator.autoscale.parser import Statement, parse, tokens
from batch_emulator.autoscale.samples import KEPT, METRICS, PERIOD, SampleHistory
from batch_emulator.autoscale.scope import DEDICATED, OPTION, SPOT, TARGET_ALIASES, correct_case
from batch_emulator.autoscale.values import (
    FormulaSyntaxError,
    FormulaTooLongError,
    Timestamp,
)

Level = Literal["error", "warning"]
_NOW = datetime(2026, 1, 7, 12, tzinfo=UTC)  # a Wednesday
_MANY_TASKS = 100_000
_MANY_NODES = 1000
_MAX_NODES = 1_000_000
_EVALUATIONS = 96  # evaluations of a day, every 15 minutes
_TASKS_PER_SLOT = 4
_NODES = 4
_KEEP_TASKS = frozenset({"taskcompletion", "retaineddata"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a formula.

    Attributes:
        rule: Name of the rule, such as `no-upper-bound`.
        line: Line of the formula, from 1; None if the problem concerns all of it.
        what: The problem and its effect.
        better: A better statement, or an instruction.
        level: `error` if the formula cannot work, else `warning`.
    """

    rule: str
    line: int | None
    what: str
    better: str
    level: Level = "warning"


def lint(
    text: str,
    *,
    slots: int = 1,
    interval_s: float | None = None,
    boot_s: float | None = None,
    spot: bool = True,
) -> list[Finding]:
    """Return the problems of a formula, in order of its lines.

    Args:
        text: The formula.
        slots: Task slots of a node of the pool.
        interval_s: Seconds between two evaluations; None if unknown.
        boot_s: Seconds that a node takes to boot and to run its start task.
        spot: True if the pool should have spot nodes.
    """
    try:
        statements = parse(text)
    except (FormulaSyntaxError, FormulaTooLongError) as err:
        line = text.count("\n", 0, err.at) + 1
        return [Finding("syntax", line, err.detail(text), "correct the formula", "error")]
    found = [*_Lint(text, statements, slots).findings(spot=spot)]
    if interval_s is not None and boot_s is not None and interval_s < boot_s:
        found.append(_evaluates_too_often(interval_s, boot_s))
    return sorted(found, key=lambda finding: finding.line or 0)


def _evaluates_too_often(interval_s: float, boot_s: float) -> Finding:
    minutes = max(5, -(-int(boot_s) // 60))
    return Finding(
        "interval-below-boot",
        None,
        f"the formula is evaluated every {interval_s:.0f} s, and a node boots for {boot_s:.0f} s: "
        "an evaluation is due before the nodes of the last one take tasks",
        f"evaluate every {minutes} minutes: autoScaleEvaluationInterval PT{minutes}M",
    )


class _Lint:
    def __init__(self, text: str, statements: Sequence[Statement], slots: int) -> None:
        self.text = text
        self.statements = statements
        self.slots = slots
        self.lines: dict[str, int] = {}
        for statement in statements:
            if statement.target is not None:
                name = TARGET_ALIASES.get(statement.target, statement.target)
                self.lines[name] = self._line(statement.at)
        self.reads = {name for kind, name in self._names() if kind == "read"}

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield the names in the formula, whether they are read or set."""
        targets = {statement.at for statement in self.statements if statement.target}
        for token in tokens(self.text):
            if token.kind == "name":
                yield "set" if token.at in targets else "read", token.text

    def _assigned_text(self, name: str) -> str:
        """Return the text of the last assignment to a target, or `...` if it is long."""
        offsets = [each.at for each in self.statements if each.target]
        last = max(at for at in offsets if self._sets(at, name))
        value = self.text[last:].partition(";")[0].partition("=")[2].strip()
        return value if "\n" not in value and 0 < len(value) <= 60 else "..."

    def _sets(self, at: int, name: str) -> bool:
        written = re.match(r"\$\w+", self.text[at:])
        return written is not None and TARGET_ALIASES.get(written[0], written[0]) == name

    def _line_naming(self, message: str) -> int | None:
        """Return the first line with a variable that a message names."""
        named = set(re.findall(r"\$\w+", message))
        places = (each.at for each in tokens(self.text) if each.text in named)
        return next(map(self._line, places), None)

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def findings(self, *, spot: bool) -> Iterator[Finding]:
        """Yield the findings of all rules."""
        yield from self._misspelled()
        if not {DEDICATED, SPOT} & set(self.lines):
            yield Finding(
                "target-never-set",
                self._line(self.statements[-1].at) if self.statements else None,
                "the formula sets neither node count, so the pool never changes",
                f"{SPOT} = min(4, $PendingTasks.GetSample(1));",
                "error",
            )
            return
        broken = self._always_fails()
        if broken is not None:
            yield broken
            return
        yield from self._reads_nothing()
        yield from self._fails_on_new_pools()
        yield from self._has_no_upper_bound()
        yield from self._keeps_idle_nodes()
        if spot:
            yield from self._ignores_spot()
        if self.slots > 1:
            yield from self._counts_tasks_as_nodes()
        option = self._evaluate(_waiting(8), spot=2, dedicated=2).option
        if option in _KEEP_TASKS:
            return
        yield from self._removes_working_nodes()
        is_set = OPTION in self.lines
        lines = [self.lines[name] for name in (SPOT, DEDICATED) if name in self.lines]
        ends = "end as failed" if option == "terminate" else "start again on another node"
        yield Finding(
            "no-taskcompletion",
            self.lines[OPTION] if is_set else min(lines),
            f"{OPTION} is {option if is_set else 'not set'}: a node that leaves the pool stops its "
            f"tasks, which {ends}",
            f"{OPTION} = taskcompletion;",
        )

    def _removes_working_nodes(self) -> Iterator[Finding]:
        """Find a formula that counts only waiting tasks, so that it removes working nodes."""
        tasks = self.slots * _NODES
        started = {"$RunningTasks": tasks, "$PendingTasks": tasks}
        for name, spot, dedicated in ((SPOT, _NODES, 0), (DEDICATED, 0, _NODES)):
            if name not in self.lines:
                continue
            waiting = self._steady_targets(_waiting(tasks), spot=spot, dedicated=dedicated)
            working = self._steady_targets(started, spot=spot, dedicated=dedicated)
            if sum(waiting) and sum(working) < min(_NODES, sum(waiting)):
                yield Finding(
                    "removes-working-nodes",
                    self.lines[name],
                    f"when {tasks} tasks run on {_NODES} nodes and none waits, it requests "
                    f"{sum(working)}: tasks are stopped and start again",
                    "use $PendingTasks, which counts waiting and running tasks",
                )
                return

    def _misspelled(self) -> Iterator[Finding]:
        for statement in self.statements:
            name = statement.target
            intended = correct_case(name) if name else None
            if intended is not None:
                yield Finding(
                    "other-case",
                    self._line(statement.at),
                    f"{name} is a variable of the formula: names are case-sensitive",
                    f"write {intended}",
                    "error",
                )

    # -- probes

    def _evaluate(
        self,
        values: Mapping[str, float],
        *,
        spot: int = 0,
        dedicated: int = 0,
        samples: int = KEPT,
        now: datetime = _NOW,
    ) -> Evaluation:
        """Evaluate the formula on a pool that has had these metrics for `samples` periods."""
        history = SampleHistory()
        full = {
            **dict.fromkeys(METRICS, 0.0),
            "$TaskSlotsPerNode": self.slots,
            "$CurrentLowPriorityNodes": spot,
            "$CurrentDedicatedNodes": dedicated,
            "$SampleNodeCount": spot + dedicated,
            "$UsableNodeCount": spot + dedicated,
            **values,
        }
        newest = Timestamp.of(now).ticks
        if samples:
            history.fill(newest - (samples - 1) * PERIOD, samples, full)
        draw = random.Random(0).random  # noqa: S311
        return evaluate(self.text, Inputs(history, now, dedicated, spot, draw))

    def _always_fails(self) -> Finding | None:
        """Return a finding if the evaluation fails although the pool has samples of a whole day."""
        idle = self._evaluate({})
        busy = self._evaluate(_waiting(8), spot=2, dedicated=2)
        if idle.problem is None or busy.problem is None:
            found = idle.problem or busy.problem
            if found is None:
                return None
            state = "without tasks" if idle.problem else "with tasks and nodes"
            return Finding(
                "fails-sometimes",
                _line_of(found.detail),
                f"on a pool {state} the evaluation fails, and the pool keeps its size: "
                f"{found.detail}",
                "test the divisor first: nodes > 0 ? tasks / nodes : 0",
            )
        detail = busy.problem.detail
        rule, better = "always-fails", "correct the line"
        if "Insufficient" in detail:
            rule = "never-enough-samples"
            better = "read samples of at least two minutes: GetSample(2 * TimeInterval_Minute)"
        return Finding(rule, _line_of(detail), f"always fails: {detail}", better, "error")

    def _reads_nothing(self) -> Iterator[Finding]:
        for warning in self._evaluate(_waiting(8), spot=2, dedicated=2).warnings:
            if "always 0" in warning or "no value" in warning:
                yield Finding(
                    "reads-nothing",
                    self._line_naming(warning),
                    f"GetSample always returns no samples: {warning}",
                    "read a metric that Batch measures, over at least two minutes",
                )

    def _fails_on_new_pools(self) -> Iterator[Finding]:
        new = self._evaluate({}, samples=0)
        if new.problem is not None:
            yield Finding(
                "fails-on-new-pools",
                _line_of(new.problem.detail),
                f"a new pool has no samples, and the evaluation fails: {new.problem.detail}",
                "$PendingTasks.GetSamplePercent(5 * TimeInterval_Minute) < 70 ? 1 : "
                "avg($PendingTasks.GetSample(5 * TimeInterval_Minute))",
            )

    def _has_no_upper_bound(self) -> Iterator[Finding]:
        spot, dedicated = self._steady_targets(_waiting(_MANY_TASKS), spot=_NODES, dedicated=_NODES)
        for name, count in ((SPOT, spot), (DEDICATED, dedicated)):
            if name in self.lines and count > _MANY_NODES:
                yield Finding(
                    "no-upper-bound",
                    self.lines[name],
                    f"{_MANY_TASKS:,} waiting tasks request {count:,} nodes: only the quota limits "
                    "the cost",
                    f"{name} = min(10, {self._assigned_text(name)});",
                )

    def _steady_targets(
        self, values: Mapping[str, float], *, spot: int, dedicated: int, now: datetime = _NOW
    ) -> tuple[int, int]:
        """Return the targets after a day of evaluations with constant metrics."""
        for _ in range(_EVALUATIONS):
            found = self._evaluate(values, spot=spot, dedicated=dedicated, now=now)
            if found.problem is not None or (found.spot, found.dedicated) == (spot, dedicated):
                break
            spot, dedicated = min(found.spot, _MAX_NODES), min(found.dedicated, _MAX_NODES)
        return spot, dedicated

    def _keeps_idle_nodes(self) -> Iterator[Finding]:
        """Find a formula that keeps nodes at all times of a week, after a day without tasks."""
        for name, spot, dedicated in ((SPOT, _NODES, 0), (DEDICATED, 0, _NODES)):
            if name not in self.lines:
                continue
            left = [
                self._steady_targets(
                    {}, spot=spot, dedicated=dedicated, now=_NOW + timedelta(hours=hour)
                )
                for hour in (0, 12, 24 * 3)  # noon, midnight, Saturday
            ]
            least = min(each[name == DEDICATED] for each in left)
            if least:
                yield Finding(
                    "never-zero",
                    self.lines[name],
                    f"after a day without tasks the pool keeps {least:,} nodes, which cost money",
                    f"set {name} to 0 when $PendingTasks is 0",
                )

    def _ignores_spot(self) -> Iterator[Finding]:
        reads_spot = {"$CurrentLowPriorityNodes", "$PreemptedNodeCount", SPOT} & self.reads
        if SPOT not in self.lines:
            why = f", although it reads {min(reads_spot)}" if reads_spot else ""
            yield Finding(
                "spot-target-not-set",
                self.lines[DEDICATED],
                f"it sets only {DEDICATED}{why}: spot nodes of the pool are never removed, and "
                "new nodes are dedicated ones at the full price",
                f"set {SPOT}; and {DEDICATED} = 0; for a pool of spot nodes only",
            )

    def _counts_tasks_as_nodes(self) -> Iterator[Finding]:
        """Find a formula that requests one node per task on nodes with several slots."""
        one = self._evaluate(_waiting(self.slots * _TASKS_PER_SLOT), spot=0)
        tasks = self.slots * _TASKS_PER_SLOT
        for name, count in ((SPOT, one.spot), (DEDICATED, one.dedicated)):
            if name in self.lines and count == tasks:
                yield Finding(
                    "tasks-not-slots",
                    self.lines[name],
                    f"{tasks} tasks request {count} nodes, but a node runs {self.slots} at a time",
                    f"divide the number of tasks by {self.slots}",
                )


def _waiting(tasks: int) -> dict[str, float]:
    return {"$ActiveTasks": tasks, "$PendingTasks": tasks}


def _line_of(detail: str) -> int | None:
    """Return the line in `Line 2, Col 7: ...`."""
    word = detail.removeprefix("Line ").partition(",")[0]
    return int(word) if word.isdecimal() else None

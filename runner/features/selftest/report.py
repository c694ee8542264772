"""The report of a self-test, for programs (JSON) and for people (Markdown)."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.core.home import not_writable
from runner.core.progress import Warnings
from runner.features.selftest.conformance import (
    Conformance,
    ConformanceStatement,
    badge,
    counts,
    table,
)
from runner.features.selftest.contract import Compared, Leftover
from runner.features.selftest.scenario import scenario
from runner.features.selftest.training import TrainingReport
from runner.protocol.errors import RunnerError


@dataclass(frozen=True, slots=True)
class BillLine:
    """An item that costs by time; spot nodes cost at most `usd_per_hour`."""

    what: str
    seconds: float
    usd_per_hour: float

    @property
    def usd(self) -> float:
        """The cost."""
        return self.seconds / 3600 * self.usd_per_hour


@dataclass(frozen=True, slots=True)
class PoolUpdate:
    """The update of a pool's cap; `answer` is what the service answered if it refused it."""

    pool: str
    in_place: bool
    answer: str


@dataclass(slots=True)
class SelftestReport:
    """The report of a self-test, which is filled while it runs.

    Attributes:
        target: The name of the account that is compared with the emulator.
        usd_at_most: The bound that was computed before the start.
        usd_per_hour: The price of a node.
        updates: The updates of the stack's pools, on Azure only.
        warnings: The warnings of the deployments.
        left: Resources that could not be removed.
        problem: The error that ended the test, or None.
    """

    target: str
    usd_at_most: float = 0.0
    usd_per_hour: float = 0.0
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None
    steps: Sequence[Compared] = ()
    training: TrainingReport | None = None
    updates: list[PoolUpdate] = field(default_factory=list[PoolUpdate])
    warnings: Warnings = field(default_factory=Warnings)
    bill: list[BillLine] = field(default_factory=list[BillLine])
    left: list[Leftover] = field(default_factory=list[Leftover])
    problem: RunnerError | None = None

    @property
    def different(self) -> list[Compared]:
        """The steps whose answers differ."""
        return [step for step in self.steps if step.differences]

    @property
    def passed(self) -> bool:
        """True if all answers are equal, run and updates succeeded, and nothing is left."""
        ok = self.training is None or not self.training.problem
        ok = ok and all(update.in_place for update in self.updates)
        return ok and not (self.different or self.left or self.problem)

    @property
    def usd(self) -> float:
        """The total cost."""
        return sum(line.usd for line in self.bill)

    def to_json(self) -> dict[str, Any]:
        """Return the document, with bodies only of answers that differ."""
        training = self.training
        return {
            "target": self.target,
            "passed": self.passed,
            "started": self.started.isoformat(),
            "ended": self.ended.isoformat() if self.ended else None,
            "equal": len(self.steps) - len(self.different),
            "different": len(self.different),
            "steps": [_step(step) for step in self.steps],
            "training": dataclasses.asdict(training) if training else None,
            "pool_updates": [dataclasses.asdict(each) for each in self.updates],
            "warnings": self.warnings.found,
            "usd_at_most": self.usd_at_most,
            "usd": self.usd,
            "bill": [{**dataclasses.asdict(line), "usd": line.usd} for line in self.bill],
            "left": [dataclasses.asdict(each) for each in self.left],
            "problem": self.problem.summary if self.problem else None,
        }

    def to_markdown(self) -> str:
        """Return the report as a page."""
        started = f"{self.started:%Y-%m-%d %H:%M} UTC"
        lines = [f"# Self-test of {self.target}, {started}", "", self.summary(), ""]
        lines += [f"Ended by an error: {self.problem.summary}", ""] if self.problem else []
        lines += _table(
            ("request", self.target, "emulator", "difference"),
            [
                (step.step, str(step.target), str(step.emulator), "; ".join(step.differences))
                for step in self.steps
            ],
        )
        if self.training:
            pairs = dataclasses.asdict(self.training).items()
            rows = [(name, str(value)) for name, value in pairs]
            lines += ["## Training", "", *_table(("", "value"), rows)]
        if self.updates:
            updates = [(each.pool, each.answer) for each in self.updates]
            lines += ["## Updates of pools", "", *_table(("pool", "answer"), updates)]
        bill = [(b.what, f"{b.seconds / 60:.0f}", f"{b.usd:.4f}") for b in self.bill]
        bill.append(("sum", "", f"{self.usd:.4f}, bound {self.usd_at_most:.2f}"))
        lines += ["## Bill", "", *_table(("for", "minutes", "USD at most"), bill)]
        if self.left:
            rows = [(each.what, f"`{each.command}`") for each in self.left]
            lines += ["## Not removed", "", *_table(("what", "command"), rows)]
        return "\n".join(lines)

    def summary(self) -> str:
        """Return one sentence about the comparison."""
        if not self.steps:
            return "No answers were compared."
        equal = len(self.steps) - len(self.different)
        return f"{equal} of {len(self.steps)} answers equal those of the emulator."

    def statements(self) -> list[ConformanceStatement]:
        """Return a statement for each operation of which answers were compared."""
        operations = {step.name: step.operation for step in scenario()}
        found: dict[str, list[Compared]] = {}
        for step in self.steps:
            if not step.target.outcome:
                found.setdefault(operations.get(step.step, step.step), []).append(step)
        return [_statement(name, found[name], self.started) for name in sorted(found)]

    def to_conformance(self, badge_name: str) -> str:
        """Return the comparison by operation, as the emulator's conformance page has it."""
        statements = self.statements()
        missing = len(self.steps) - sum(not step.target.outcome for step in self.steps)
        lines = [
            f"# Conformance of {self.target} and the emulator, {self.started:%Y-%m-%d}",
            "",
            f"![conformance]({badge_name})",
            "",
            (
                "An operation is *same* if all compared answers have the same status, error code, "
                "headers and types of properties."
            ),
            "",
            *counts([("operations", statements)]),
            "",
            *table(("operation", "requests", "", "source"), statements),
            "",
            *([f"Requests without an answer to compare: {missing}.", ""] if missing else []),
        ]
        return "\n".join(lines)

    def write(self, path: Path) -> Path:
        """Write the JSON to `path`, and next to it the page, whose path is returned.

        If answers were compared, a conformance page and its badge are written, too.
        """
        page = path.with_suffix(".md")
        conformance = path.with_name(f"{path.stem}-conformance.md")
        image = conformance.with_suffix(".svg")
        try:
            path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
            page.write_text(self.to_markdown(), encoding="utf-8")
            if self.steps:
                conformance.write_text(self.to_conformance(image.name), encoding="utf-8")
                image.write_text(badge(f"emulator and {self.target}", self.statements()), "utf-8")
        except OSError as err:
            raise not_writable(path.parent, err) from err
        return page


@contextmanager
def charging(report: SelftestReport, what: str, usd_per_hour: float) -> Generator[None]:
    """Add the time of the block to the bill, even after an error."""
    began = time.monotonic()
    try:
        yield
    finally:
        report.bill.append(BillLine(what, time.monotonic() - began, usd_per_hour))


def _statement(operation: str, steps: Sequence[Compared], when: datetime) -> ConformanceStatement:
    different = [
        f"{step.step}: {', '.join(step.differences)}" for step in steps if step.differences
    ]
    verdict = Conformance.DIFFERS if different else Conformance.SAME
    source = f"recording of {when:%Y-%m-%d}"
    return ConformanceStatement(operation, verdict, source, "; ".join(different), str(len(steps)))


def _step(step: Compared) -> dict[str, Any]:
    document: dict[str, Any] = {"step": step.step, "differences": list(step.differences)}
    for name, answer in (("target", step.target), ("emulator", step.emulator)):
        found = dataclasses.asdict(answer)
        dropped = {"step"} if step.differences else {"step", "body", "shape"}
        document[name] = {key: value for key, value in found.items() if key not in dropped}
    return document


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    parts = [head, ["--"] * len(head), *cells]
    return [*(f"| {' | '.join(row)} |" for row in parts), ""]

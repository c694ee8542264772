"""The report of a qualification: a document, and one page of A4 for people."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from runner.azure.batch.raw import API_VERSION
from runner.contract import PoolOutput, StackOutputs
from runner.core.home import not_writable
from runner.core.units import format_count
from runner.features.qualify.criteria import (
    NOT_COVERED,
    CriterionRow,
    QualificationBounds,
    QualificationEvidence,
    failed_or_open,
    judge,
)
from runner.flows.extras import DISTRIBUTION
from runner.protocol.errors import RunnerError

GUIDE = "https://learn.microsoft.com/azure/batch/batch-capacity-planning"
_PAGE = Path(__file__).with_name("report.html")


@dataclass(slots=True)
class QualificationReport:
    """What was measured, where and when. It is filled while the qualification runs.

    Attributes:
        target: `local` or `azure`.
        outputs: The stack.
        first: The pool.
        second: The pool that runs fall over to, or None.
        nodes: The nodes that were asked for.
        evidence: The figures.
        left: A line for each thing that could not be removed.
        problem: The error that ended the qualification, or None.
    """

    target: str
    nodes: int
    bounds: QualificationBounds
    outputs: StackOutputs | None = None
    first: PoolOutput | None = None
    second: PoolOutput | None = None
    evidence: QualificationEvidence = field(default_factory=QualificationEvidence)
    left: list[str] = field(default_factory=list[str])
    problem: RunnerError | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended: datetime | None = None

    @property
    def rows(self) -> tuple[CriterionRow, ...]:
        """The criteria with their figures."""
        return judge(self.evidence, self.bounds)

    @property
    def passed(self) -> bool:
        """True if every criterion passed, and nothing is left."""
        return not (self.left or self.problem or any(failed_or_open(self.rows)))

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        states = [row.state for row in self.rows]
        counts = [(state, states.count(state)) for state in ("passed", "failed", "not measured")]
        found = ", ".join(f"{count} {state}" for state, count in counts if count)
        return f"{'Ready' if self.passed else 'Not ready'}: {found}"

    def facts(self) -> dict[str, str]:
        """Return what was measured, with which versions, by name."""
        outputs, first, second = self.outputs, self.first, self.second
        found = {"target": self.target}
        if outputs is not None and first is not None:
            kind = "spot" if first.spot else "dedicated"
            found |= {
                "account": f"{outputs.batch_account} ({outputs.location})",
                "pool": f"{first.id}: {format_count(self.nodes, 'node')}, {first.vm_size}, {kind}",
                "second pool": f"{second.id}: {second.vm_size}" if second else "none",
            }
        ours, python = version(DISTRIBUTION), platform.python_version()
        found["versions"] = f"runner {ours}, Batch {API_VERSION}, Python {python}"
        found["time"] = f"{self.started:%Y-%m-%d %H:%M} UTC" + (
            f", took {(self.ended - self.started).total_seconds():.0f} s" if self.ended else ""
        )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the document of `-o json`."""
        return {
            "format": 1,
            "passed": self.passed,
            "summary": self.summary,
            **{name.replace(" ", "_"): value for name, value in self.facts().items()},
            "nodes": self.nodes,
            "started": self.started.isoformat(),
            "ended": self.ended.isoformat() if self.ended else None,
            "guide": GUIDE,
            "rows": [row.to_json() for row in self.rows],
            "bounds": self.bounds.to_json(),
            "not_covered": list(NOT_COVERED),
            "left": list(self.left),
            "problem": self.problem.summary if self.problem else None,
        }

    def to_html(self) -> str:
        """Return the page, which needs no other file."""
        facts = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in self.facts().items()
        )
        notes = [*self.left, *([f"Ended early: {self.problem.summary}"] if self.problem else [])]
        return Template(_PAGE.read_text("utf-8")).substitute(
            title=escape(f"Qualification of {self.first.id if self.first else self.target}"),
            state="passed" if self.passed else "failed",
            summary=escape(self.summary),
            facts=facts,
            rows="".join(map(_html_row, self.rows)),
            notes=_items(notes, "Not removed, or ended early"),
            covered="; ".join(map(escape, NOT_COVERED)),
            guide=GUIDE,
        )

    def write_html(self, path: Path) -> None:
        """Write the page. Raise RunnerError if that is not possible."""
        try:
            path.write_text(self.to_html(), encoding="utf-8")
        except OSError as err:
            raise not_writable(path.parent, err) from err


def refuse_path(path: Path) -> None:
    """Raise RunnerError before the measurement if the page has no folder."""
    if not path.absolute().parent.is_dir():
        raise not_writable(path.parent, FileNotFoundError(2, "no such folder"))


def _html_row(row: CriterionRow) -> str:
    kind = row.state.replace(" ", "-")
    why = f'<p class="why">{escape(row.why)}</p>' if row.why else ""
    return (
        f'<tr class="{kind}"><th scope="row">{escape(row.name)}<small>{escape(row.guide)}</small>'
        f'</th><td><span class="state">{escape(row.state)}</span></td>'
        f"<td>{escape(row.figure) or '&ndash;'}{why}</td><td>{escape(row.bound)}</td></tr>\n"
    )


def _items(lines: Sequence[str], title: str) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<section><h2>{escape(title)}</h2><ul>{items}</ul></section>"

"""`runner pool autoscale`: evaluate formulas on a pool, apply them, and check them."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_pool
from runner.cli.options import Invocation, YesOption, on_target
from runner.core.units import format_count, format_duration
from runner.features.simulation.verbs.options import (
    BootOption,
    FormulasArgument,
    IntervalOption,
    NamedPoolOption,
    SlotsOption,
    to_interval_s,
    to_seconds,
)
from runner.features.simulation.verbs.simulate import simulate
from runner.protocol.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.azure.batch.pools import PoolAutoscale, PoolView
    from runner.cli.ui.output import Output
    from runner.features.simulation.formula_lint import Finding
    from runner.features.simulation.formulas import Candidate, FormulaChange

app = typer.Typer(no_args_is_help=True, help="Check, simulate and apply autoscale formulas.")
ScaledPoolOption = Annotated[
    str | None,
    typer.Option(
        help="Pool of the formula and its samples.",
        show_default="the only pool with a formula",
        autocompletion=complete_pool,
    ),
]


@app.command("evaluate")
@on_target
def evaluate(
    call: Invocation,
    formula: Annotated[
        str, typer.Argument(metavar="FORMULA|FILE", help="Formula, or a file with one.")
    ],
    pool: ScaledPoolOption = None,
) -> None:
    """Evaluate a formula on a pool with its current samples; the pool does not change."""
    from runner.features.simulation.formulas import evaluate as evaluate_flow

    out = call.out
    found, run = evaluate_flow(call.settings(), pool, formula)
    problem = run.error
    document: dict[str, Any] = {
        "pool": found.id,
        "evaluated": run.evaluated.isoformat() if run.evaluated else None,
        "spot": _nodes(run, "$TargetLowPriorityNodes"),
        "dedicated": _nodes(run, "$TargetDedicatedNodes"),
        "spot_target": found.spot_target,
        "dedicated_target": found.dedicated_target,
        "results": dict(run.results),
        "error": _error_document(run),
    }
    if out.as_text:
        _show_evaluation(out, found, run)
    else:
        out.record(document)
    if problem is not None:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _nodes(run: PoolAutoscale, name: str) -> int | None:
    """Return the target that a formula sets; None if it failed or does not set the target."""
    value = run.results.get(name)
    return None if run.error is not None or value is None else int(float(value))


def _error_document(run: PoolAutoscale) -> dict[str, str] | None:
    return {"code": run.error.code, "message": run.error.message} if run.error else None


def _show_evaluation(out: Output, pool: PoolView, run: PoolAutoscale) -> None:
    targets = {
        "spot": ("$TargetLowPriorityNodes", pool.spot_target),
        "dedicated": ("$TargetDedicatedNodes", pool.dedicated_target),
    }
    if run.error is None:
        shown = {
            kind: f"stays {current}"
            if (nodes := _nodes(run, name)) is None
            else f"{format_count(nodes, 'node')}, now {current}"
            for kind, (name, current) in targets.items()
        }
        out.record({"pool": pool.id, **shown})
        out.text()
    elif run.results:
        out.text("values when the formula failed; the targets of the pool stay:")
    if run.results:
        rows = [{"variable": name, "value": value} for name, value in run.results.items()]
        out.rows(rows, ("variable", "value"))
    if run.error is not None:
        out.note(f"{run.error.code}: {run.error.message}", style="red")
        for line in _position(run.formula, run.error.message):
            out.note(f"  {line}")


@app.command("last")
@on_target
def last(call: Invocation, pool: ScaledPoolOption = None) -> None:
    """Show the last evaluation of a pool's formula: its time, and its result or error."""
    from runner.features.simulation.formulas import last_evaluation

    out = call.out
    found = last_evaluation(call.settings(), pool)
    run, view = found.run, found.pool
    if not out.as_text:
        out.record(
            {
                "pool": view.id,
                "evaluated": run.evaluated.isoformat() if run.evaluated else None,
                "interval_s": run.interval_s,
                "overdue": found.overdue,
                "results": dict(run.results),
                "error": _error_document(run),
                "allocation": view.allocation,
            }
        )
    elif run.evaluated is None or found.age_s is None:
        out.note(f"pool {view.id}: the formula was not evaluated yet")
    else:
        ago = f"{format_duration(found.age_s)} ago"
        every = f"every {format_duration(run.interval_s)}"
        when = f"{run.evaluated:%Y-%m-%d %H:%M:%S} UTC, {ago}, {every}"
        out.note(f"evaluated {when}", style="dim")
        _show_evaluation(out, view, run)
        if found.overdue:
            out.warning(
                "the evaluation is overdue: "
                + (
                    "the service waits for the end of a resize"
                    if view.allocation != "steady"
                    else "the values do not describe the present pool"
                )
            )
    if run.error is not None:
        raise typer.Exit(ExitCode.RUN_FAILED)


@app.command("apply")
@on_target
def apply(
    call: Invocation,
    formula: Annotated[
        str, typer.Argument(metavar="FORMULA|FILE", help="Formula, or a file with one.")
    ],
    pool: ScaledPoolOption = None,
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time between two evaluations, at least 5m.",
            show_default="unchanged",
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Check and evaluate a formula, and set it on a pool.

    Shows the change and asks for confirmation. The formula of a pool that a stack declares is
    changed in the stack's file instead.
    """
    from runner.features.simulation.formulas import apply_formula, plan_formula

    out, settings = call.out, call.settings()
    change = plan_formula(settings, pool, formula, to_interval_s(interval))
    view = change.pool
    if out.as_text:
        _show_change(out, change)
    kept = "not confirmed: the pool keeps its formula" if view.autoscale else "not confirmed"
    question, fix = f"Apply the formula to pool {view.id}?", "run the command again with --yes"
    out.require(question, "R-NOT-CONFIRMED", kept, yes=yes, fix=fix)
    apply_formula(settings, change)
    if not out.as_text:
        run = change.evaluation
        out.record(
            {
                "pool": view.id,
                "formula": change.formula,
                "replaced": view.autoscale.formula if view.autoscale else None,
                "interval_s": change.interval_s
                or (view.autoscale.interval_s if view.autoscale else 900.0),
                "results": dict(run.results) if run else {},
                "warnings": [each.rule for each in change.findings],
            }
        )
        return
    out.note(f"applied; to see its next evaluation: runner pool autoscale last --pool {view.id}")


def _show_change(out: Output, change: FormulaChange) -> None:
    old = change.pool.autoscale.formula.splitlines() if change.pool.autoscale else []
    lines = [*difflib.ndiff(old, change.formula.splitlines())]
    for line in lines:
        if not line.startswith("?"):
            out.text(line.rstrip())
    from runner.features.simulation.formulas import Candidate

    candidate = Candidate("formula", change.formula)
    if change.findings:
        _show_findings(out, [(candidate, list(change.findings))])
    if change.evaluation is None:
        out.note(
            f"pool {change.pool.id} has no formula now ({change.pool.spot_target} spot, "
            f"{change.pool.dedicated_target} dedicated nodes), so this one cannot be evaluated "
            "before it is applied"
        )
    else:
        _show_evaluation(out, change.pool, change.evaluation)


def _position(formula: str, message: str) -> list[str]:
    """Return the line of the formula that an error names, and a mark below its column."""
    named = re.search(r"Line (\d{1,6}), Col (\d{1,6})", message)
    lines = formula.splitlines()
    if named is None or not 0 < int(named[1]) <= len(lines):
        return []
    line = lines[int(named[1]) - 1]
    return [line.replace("\t", " "), f"{' ' * (min(int(named[2]), len(line) + 1) - 1)}^"]


@app.command("lint")
@on_target
def lint(
    call: Invocation,
    formulas: FormulasArgument = None,
    pool: NamedPoolOption = None,
    slots: SlotsOption = None,
    interval: IntervalOption = None,
    boot: BootOption = "4m",
    spot: Annotated[
        bool, typer.Option("--spot/--dedicated", help="Kind of nodes that the pool should have.")
    ] = True,
) -> None:
    """Find mistakes in formulas that Batch accepts, such as a missing upper bound."""
    from runner.features.simulation.formulas import PoolSetting, assume, lint_all

    out = call.out
    setting = PoolSetting(pool, slots, to_interval_s(interval))
    assumed = assume(call.settings(), formulas or (), setting)
    found = lint_all(assumed, boot_s=to_seconds("boot", boot, "0s", "1d"), spot=spot)
    rows = [_finding_row(each, finding) for each, findings in found for finding in findings]
    if out.as_text:
        _show_findings(out, found)
    else:
        out.rows(rows, ("formula", "line", "level", "rule", "what", "better"))
    if any(row["level"] == "error" for row in rows):
        raise typer.Exit(ExitCode.RUN_FAILED)


def _finding_row(candidate: Candidate, finding: Finding) -> dict[str, Any]:
    return {
        "formula": candidate.name,
        "line": finding.line,
        "level": finding.level,
        "rule": finding.rule,
        "what": finding.what,
        "better": finding.better,
    }


def _show_findings(out: Output, found: Sequence[tuple[Candidate, list[Finding]]]) -> None:
    for candidate, findings in found:
        if not findings:
            out.text(f"{candidate.name}: no problem found")
        lines = candidate.formula.splitlines()
        for finding in findings:
            place = candidate.name if finding.line is None else f"{candidate.name}:{finding.line}"
            out.text(f"{place}: {finding.level}: {finding.what} [{finding.rule}]")
            if finding.line is not None and finding.line <= len(lines):
                out.text(f"    {lines[finding.line - 1].strip()}")
            out.text(f"  better: {finding.better}")


app.command("simulate")(simulate)

"""`runner selftest`: compare a target with the emulator, train on it, and write a report."""

from __future__ import annotations

import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.autocomplete import complete_stack
from runner.cli.commands.environment.deploy import run_stack_checks
from runner.cli.options import DataOption, TargetOption, YesOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import ExitCode
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.features.selftest.own_stack import OwnStack
    from runner.features.selftest.report import SelftestReport

_COLUMNS = ("request", "target", "emulator", "difference")


def selftest(
    target: TargetOption = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="Pulumi stack whose subscription and region are used.",
            show_default="dev, unless the settings name another",
            autocompletion=complete_stack,
        ),
    ] = None,
    max_cost: Annotated[
        float, typer.Option(metavar="USD", min=0, help="Maximum cost on Azure.")
    ] = 5.0,
    training: Annotated[
        bool, typer.Option(help="Also train MNIST, with one eviction of its node.")
    ] = True,
    data: DataOption = None,
    check: Annotated[bool, typer.Option(help="Run the checks of `runner check` first.")] = True,
    report: Annotated[
        Path,
        typer.Option(
            help="JSON file for the report; the same is written as Markdown (.md) next to it."
        ),
    ] = Path("selftest-report.json"),
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare the answers of a target with those of the emulator, and train once on it.

    On Azure, it deploys a temporary stack, and deletes it with all its resources.
    """
    from runner.features.selftest.report import SelftestReport
    from runner.features.selftest.selftest import ask_emulator, reporting, run_selftest
    from runner.features.selftest.training import check_training

    out = Output(output)
    settings = open_settings(target, stack).for_whole_stack()
    checked = check_training(settings, data) if training else None
    own = _plan_stack(out, settings, max_cost, check=check) if settings.target.has_stacks else None
    _consent(out, own, yes=yes)
    found = SelftestReport(settings.target.name)
    if own is not None:
        settings = own.settings
        found.usd_at_most, found.usd_per_hour = own.usd_at_most, own.usd_per_hour
    try:
        with out.stages() as view, reporting(found), ExitStack() as deployed:
            expected = ask_emulator(view.on_progress)  # before anything that costs money
            if own is not None:
                from runner.features.selftest.own_stack import deployed_stack

                stack_of_test = deployed_stack(
                    own,
                    found,
                    env=os.environ,
                    consent=lambda question: yes or out.confirm(question),
                    on_progress=view.on_progress,
                )
                deployed.enter_context(stack_of_test)
            run_selftest(settings, expected, checked, found, view.on_progress, stack=stack)
    finally:  # also after Ctrl-C
        page = found.write(report)
        _show(out, found, page)
    if found.problem:
        raise found.problem
    if not found.passed:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _plan_stack(out: Output, settings: Settings, max_usd: float, *, check: bool) -> OwnStack:
    """Plan the stack of the test, and run the checks before its deployment."""
    from runner.features.selftest.own_stack import plan_own_stack
    from runner.flows.environment.checks.run import first_failure

    now = datetime.now(UTC)
    own = plan_own_stack(settings, cwd=Path.cwd(), env=os.environ, now=now, max_usd=max_usd)
    if check and (failure := first_failure(run_stack_checks(out, own.settings, own.folder))):
        raise failure
    return own


def _consent(out: Output, own: OwnStack | None, *, yes: bool) -> None:
    question = "Compare the local services with a new emulator, and evict one node?"
    if own is not None:
        question = (
            f"Deploy stack {own.settings.stack!r} in {own.location}, test it for at most "
            f"{format_usd(1e6 * own.usd_at_most)}, and delete it?"
        )
    out.require(question, "R-SELFTEST-DECLINED", "nothing was started", yes=yes)


def _show(out: Output, found: SelftestReport, page: Path) -> None:
    if out.document(found.to_json()):
        return
    rows = [
        {
            "request": step.step,
            "target": str(step.target),
            "emulator": str(step.emulator),
            "difference": "; ".join(step.differences),
        }
        for step in found.different
    ]
    if rows:
        out.rows(rows, _COLUMNS)
    pairs = {"answers": found.summary()}
    if found.training:
        run = found.training
        pairs["training"] = run.problem or (
            f"{run.run_id} {run.state} after {run.attempts} attempts, {run.model_file}"
        )
    if found.updates:
        pairs["pool updates"] = "; ".join(f"{each.pool}: {each.answer}" for each in found.updates)
    cost, allowed = (format_usd(1e6 * usd) for usd in (found.usd, found.usd_at_most))
    pairs["cost"] = f"{cost} at most, {allowed} were allowed"
    pairs["report"] = str(page)
    out.panel("The self-test passed" if found.passed else "The self-test failed", pairs)
    for text in found.warnings.found:
        out.warning(text)
    for each in found.left:
        out.warning(f"{each.what} was not removed; to remove it: {each.command}")

"""`runner selftest`: compare a target with the emulator, train on it, and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.options import DataOption, NewStackOption, TargetOption, YesOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.flows.selftest.report import SelftestReport

_COLUMNS = ("request", "target", "emulator", "difference")


def selftest(
    target: TargetOption = None,
    stack: NewStackOption = None,
    training: Annotated[
        bool, typer.Option(help="Also train MNIST, and take its node away once.")
    ] = True,
    data: DataOption = None,
    report: Annotated[
        Path, typer.Option("--report", help="File of the report; a page is written beside it.")
    ] = Path("selftest-report.json"),
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare every answer of a target with the emulator's, and train on it once."""
    from runner.flows.selftest.report import SelftestReport
    from runner.flows.selftest.selftest import reporting, run_selftest
    from runner.flows.selftest.training import check_training

    out = Output(output)
    settings = open_settings(target, stack)
    checked = check_training(settings, data) if training else None
    found = SelftestReport(settings.target, 0.0)
    _consent(out, "Compare the local services with a new emulator, and evict one node?", yes=yes)
    try:
        with out.stages() as view, reporting(found):
            run_selftest(settings, checked, found, view.on_progress)
    finally:  # also after Ctrl-C
        page = found.write(report)
        _show(out, found, page)
    if found.problem:
        raise found.problem
    if not found.passed:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _consent(out: Output, question: str, *, yes: bool) -> None:
    if yes or out.confirm(question):
        return
    raise RunnerError(
        "R-SELFTEST-DECLINED",
        "nothing was started",
        why="the question was not answered with y",
        fix="answer y, or add --yes if there is no terminal",
        exit_code=ExitCode.USAGE,
    )


def _show(out: Output, found: SelftestReport, page: Path) -> None:
    from runner.flows.selftest.report import said

    if not out.as_text:
        out.record(found.to_json())
        return
    rows = [
        {
            "request": step.step,
            "target": said(step.target),
            "emulator": said(step.emulator),
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
    pairs["cost"] = f"{found.usd:.2f} USD at most"
    pairs["report"] = str(page)
    out.panel("The self-test passed" if found.passed else "The self-test failed", pairs)
    for each in found.left:
        out.warning(f"{each.what} was not removed; to remove it: {each.command}")

"""`runner bug-report`: one archive for an issue, without secrets."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.options import StackOption, TargetOption, YesOption
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.cli.ui.terminal import is_terminal
from runner.core.units import format_count
from runner.protocol.host import format_size

if TYPE_CHECKING:
    from runner.flows.bug_report import BugReport

_COLUMNS = ("file", "size", "masked")


def bug_report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Add a run: its ID, a unique prefix, or @last.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The archive to write.",
            show_default="./runner-bug-report-TIME.zip",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files without writing them.")
    ] = False,
    yes: YesOption = False,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write versions, settings, logs and states for an issue to one archive, without secrets."""
    from runner.flows.bug_report import check_path, collect_report, write_report

    out = Output(output)
    now = datetime.now().astimezone()
    path = file or Path(f"runner-bug-report-{now:%Y%m%d-%H%M%S}.zip")
    check_path(path)
    flags = {"target": target, "stack": stack}
    report = collect_report(flags, run, cwd=Path.cwd(), env=os.environ)
    if out.as_text:
        _list(out, report)
    asks = out.as_text and is_terminal(sys.stdin) and not yes and not dry_run
    written = not dry_run and (not asks or out.confirm(f"Write these files to {path}?"))
    if written:
        write_report(report, path)
    if not out.as_text:
        out.record({"path": str(path) if written else None, **report.contents()})
    elif written:
        out.note(f"wrote {path}; read it before you attach it to an issue")


def _list(out: Output, report: BugReport) -> None:
    rows = [
        {
            "file": f"{each.name} (its end)" if each.cut else each.name,
            "size": format_size(len(each.content)),
            "masked": format_count(each.masked, "secret") if each.masked else "",
        }
        for each in report.files
    ]
    out.rows(rows, _COLUMNS)
    for problem in report.problems:
        out.warning(f"not included: {problem}")

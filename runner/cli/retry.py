"""`runner retry`: a run that failed, again from its beginning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.completing import complete_run
from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.repeat_view import OtherPoolOption
from runner.cli.run_options import (
    DetachOption,
    DownloadOption,
    OutputDirOption,
    StackOption,
    TargetOption,
    open_settings,
)
from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.run_record import RunRecord
    from runner.core.settings import Settings

_COLUMNS = ("run_id", "retry_of", "pool")

RunOrNoneArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run id, a unique prefix of one, or @last.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
FailedOption = Annotated[
    bool, typer.Option("--failed", help="Every failed or lost run not yet retried; detached.")
]
ExperimentOption = Annotated[
    str | None,
    typer.Option("--experiment", "-e", help="With --failed: of this one.", show_default=False),
]


def retry(
    run: RunOrNoneArgument = None,
    failed: FailedOption = False,
    experiment: ExperimentOption = None,
    pool: OtherPoolOption = None,
    detach: DetachOption = False,
    download: DownloadOption = True,
    output_dir: OutputDirOption = None,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run again what failed, was cancelled or lost: same code, data and parameters."""
    from runner.azure.credentials import connect
    from runner.cli.repeat_view import finish, submit_and_follow
    from runner.flows.repeat import retry_run
    from runner.flows.run_documents import find_run

    if failed is (run is not None) or (experiment and not failed):
        raise RunnerError(
            "R-RETRY-WHICH",
            "retry takes one run, or --failed",
            why="--experiment narrows --failed" if experiment else "it has both, or neither",
            fix="runner retry @last, or runner retry --failed --experiment NAME",
        )
    out = Output(output)
    settings = open_settings(target, stack, output_dir=output_dir)
    connection = connect(settings)
    if run is None:
        _retry_all(out, connection, settings, experiment, pool)
        return
    record = find_run(connection, run)
    again, followed = submit_and_follow(
        out,
        connection,
        lambda on_progress: retry_run(connection, record, pool, on_progress),
        detach=detach,
        output_dir=_folder(settings.output_dir, download=download),
    )
    finish(out, connection, again, followed)


def _folder(output_dir: Path, *, download: bool) -> Path | None:
    return output_dir if download else None


def _retry_all(
    out: Output,
    connection: Connection,
    settings: Settings,
    experiment: str | None,
    pool: str | None,
) -> None:
    from runner.core.progress import ignore_progress
    from runner.flows.repeat import list_to_retry, retry_each

    found = list_to_retry(connection, settings.home, experiment)
    rows: list[dict[str, str]] = []
    problems: list[RunnerError] = []
    for row, again in retry_each(connection, found, pool, ignore_progress):
        if isinstance(again, RunnerError):
            problems.append(again)
            out.warning(f"{row.run_id}: {again.what}")
        else:
            rows.append(_row(row.run_id, again))
    out.rows(rows, _COLUMNS, empty="no failed run is left to retry")
    if problems:
        raise problems[0]


def _row(run_id: str, again: RunRecord) -> dict[str, str]:
    return {"run_id": again.run_id, "retry_of": run_id, "pool": again.pool}

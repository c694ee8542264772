"""What `retry`, `resume` and `reproduce` share: submitting, and watching the new run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.output import Output

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.cli.attach import Followed
    from runner.core.progress import OnProgress
    from runner.core.run_record import RunRecord

OtherPoolOption = Annotated[
    str | None, typer.Option("--pool", help="Pool to run on.", show_default="the run's own")
]


def submit_and_follow(
    out: Output,
    connection: Connection,
    submit: Callable[[OnProgress], RunRecord],
    *,
    detach: bool,
    output_dir: Path | None,
) -> tuple[RunRecord, Followed | None]:
    """The new run, and how it ended unless nobody waits. Ctrl-C exits 130 and leaves it running."""
    from runner.cli.attach import INTERRUPTED, follow

    with out.stages() as view:
        try:
            record = submit(view.on_progress)
        except KeyboardInterrupt:
            view.log("interrupted; whether a run was submitted, tells: runner ps", error=True)
            raise typer.Exit(INTERRUPTED) from None
        if detach:
            return record, None
        view.log(f"run {record.run_id}   (Ctrl-C leaves it running)", error=True)
        return record, follow(out, view, connection, record, output_dir)


def finish(
    out: Output, connection: Connection, record: RunRecord, followed: Followed | None
) -> None:
    """Say how it ended, exit 1 unless it succeeded; or how to watch it."""
    from runner.cli.attach import report

    if followed is not None:
        report(out, connection, record, followed)
        return
    show_submitted(out, record)


def show_submitted(out: Output, record: RunRecord) -> None:
    """A run that nobody waits for."""
    out.record({"run_id": record.run_id, "job_id": record.job_id, "pool": record.pool})
    out.note(f"watch it: runner attach {record.run_id}")

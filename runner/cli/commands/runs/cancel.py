"""`runner cancel`: end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli.options import RunOrGroupArgument, StackOption, TargetOption, open_connection
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection


def cancel(
    run: RunOrGroupArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End a run, or all of a group; logs and what was written so far stay."""
    from runner.flows.runs.cancel import cancel_run
    from runner.flows.runs.documents import find_run

    out = Output(output)
    connection = open_connection(target, stack)
    try:
        record = find_run(connection, run)
    except RunnerError as err:
        _cancel_group(out, connection, run, err)
        return
    cancelled = cancel_run(connection, record)
    if output is not OutputFormat.TABLE:
        out.record(
            {"run_id": record.run_id, "state": cancelled.state.value, "changed": cancelled.changed}
        )
    elif cancelled.changed:
        out.note(f"{record.run_id} is cancelled; its log: runner logs {record.run_id}")
    else:
        out.note(f"{record.run_id} had ended before: {cancelled.state.value}")


def _cancel_group(out: Output, connection: Connection, reference: str, err: RunnerError) -> None:
    from runner.flows.runs.groups import cancel_group, group_instead

    group = group_instead(connection, reference, err)
    with out.stages() as view:
        done = cancel_group(connection, group, view.on_progress)
    rows = [
        {
            "task": name,
            "run_id": group.runs[name],
            "state": cancelled.state.value,
            "changed": cancelled.changed,
        }
        for name, cancelled in done.items()
    ]
    out.rows(rows, ("task", "run_id", "state", "changed"), empty="its runs are gone")

"""`runner cancel`: end a run."""

from __future__ import annotations

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import RunArgument, StackOption, TargetOption, open_connection


def cancel(
    run: RunArgument,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End a run; its logs and what it has written so far stay."""
    from runner.flows.cancel import cancel_run
    from runner.flows.run_documents import find_run

    out = Output(output)
    connection = open_connection(target, stack)
    record = find_run(connection, run)
    cancelled = cancel_run(connection, record)
    if output is not OutputFormat.TABLE:
        out.record(
            {"run_id": record.run_id, "state": cancelled.state.value, "changed": cancelled.changed}
        )
    elif cancelled.changed:
        out.note(f"{record.run_id} is cancelled; its log: runner logs {record.run_id}")
    else:
        out.note(f"{record.run_id} had ended before: {cancelled.state.value}")

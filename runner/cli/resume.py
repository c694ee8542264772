"""`runner resume`: a run that ended, continued from its newest checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.repeat_view import OtherPoolOption
from runner.cli.run_options import (
    DetachOption,
    DownloadOption,
    OutputDirOption,
    RunArgument,
    StackOption,
    TargetOption,
    open_settings,
)

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="Change a parameter.", show_default=False
    ),
]
CheckpointOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint",
        metavar="N",
        help="Go on from this checkpoint of the run, not its newest.",
        show_default=False,
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="N", min=1, help="On N nodes at once.", show_default="as before"
    ),
]


def resume(
    run: RunArgument,
    set_: SetOption = None,
    checkpoint: CheckpointOption = None,
    nodes: NodesOption = None,
    pool: OtherPoolOption = None,
    detach: DetachOption = False,
    download: DownloadOption = True,
    output_dir: OutputDirOption = None,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Go on with a run that ended, from its newest complete checkpoint, as a new run."""
    from runner.azure.credentials import connect
    from runner.cli.repeat_view import finish, submit_and_follow
    from runner.flows.repeat import resume_run
    from runner.flows.run_documents import find_run

    out = Output(output)
    settings = open_settings(target, stack, output_dir=output_dir)
    connection = connect(settings)
    record = find_run(connection, run)
    overrides = tuple(set_ or ())
    again, followed = submit_and_follow(
        out,
        connection,
        lambda on_progress: resume_run(
            connection, record, pool, overrides, on_progress, checkpoint, nodes=nodes
        ),
        detach=detach,
        output_dir=settings.output_dir if download else None,
    )
    finish(out, connection, again, followed)

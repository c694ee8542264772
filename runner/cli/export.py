"""`runner export`: a run for MLflow or TensorBoard."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import RunArgument, StackOption, TargetOption, open_settings

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.run_record import RunRecord
    from runner.core.settings import Settings


class Destination(StrEnum):
    """What runs can be exported to."""

    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


def export(
    run: RunArgument,
    to: Annotated[Destination, typer.Option("--to", help="For which tool.")],
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri",
            help="MLflow's address or folder; for TensorBoard a folder.",
            show_default="MLFLOW_TRACKING_URI, ./tensorboard",
        ),
    ] = None,
    artifacts: Annotated[
        bool, typer.Option("--artifacts/--no-artifacts", help="Send the outputs to MLflow, too.")
    ] = True,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy a run to MLflow or TensorBoard; again, to bring the copy up to date."""
    from runner.azure.credentials import connect
    from runner.flows.run_documents import find_run

    out = Output(output)
    settings = open_settings(target, stack)
    connection = connect(settings)
    record = find_run(connection, run)
    if to is Destination.MLFLOW:
        out.record(_to_mlflow(out, connection, record, settings, uri, artifacts=artifacts))
    else:
        out.record(_to_tensorboard(connection, record, uri))


def _to_mlflow(
    out: Output,
    connection: Connection,
    record: RunRecord,
    settings: Settings,
    uri: str | None,
    *,
    artifacts: bool,
) -> dict[str, Any]:
    from runner.flows.export_mlflow import export_to_mlflow

    with out.stages() as view:
        done = export_to_mlflow(
            connection, record, settings.home, uri, view.on_progress, artifacts=artifacts
        )
    return {
        "run_id": record.run_id,
        "mlflow_run_id": done.id,
        "where": done.where,
        "created": done.created,
        "new_points": done.points,
        "new_files": done.files,
    }


def _to_tensorboard(connection: Connection, record: RunRecord, uri: str | None) -> dict[str, Any]:
    from runner.flows.event_files import export_to_tensorboard

    where, points = export_to_tensorboard(connection, record, uri)
    return {"run_id": record.run_id, "where": str(where), "points": points}

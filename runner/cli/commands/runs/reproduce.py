"""`runner reproduce`: repeat a run, and compare the models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.commands.runs.attach import report
from runner.cli.commands.runs.repeat import (
    OtherPoolOption,
    SendEnvOption,
    show_submitted,
    submit_and_follow,
    to_consent,
)
from runner.cli.options import DetachOption, Invocation, RunArgument, on_target
from runner.cli.ui.output import Output, OutputFormat
from runner.protocol.errors import ExitCode
from runner.protocol.metrics import format_metric as text

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.planning.reproduction import Drift
    from runner.flows.submit.reproduce import Comparison
    from runner.protocol.run_spec import RunSpec

_FILE_COLUMNS = ("file", "outcome", "differs_in")


@on_target
def reproduce(
    call: Invocation,
    run: RunArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Compare with this run instead of running.",
            autocompletion=complete_run
        )] = None,
    pool: OtherPoolOption = None,
    send_env: SendEnvOption = None,
    detach: DetachOption = False,
) -> None:  # fmt: skip
    """Repeat a run with the same code, data and packages, and compare the models."""
    from runner.flows.runs.documents import find_run
    from runner.flows.submit.reproduce import find_drift

    out = call.out
    connection = call.connect()
    original = find_run(connection, run)
    if against is not None:
        _compare(out, connection, original, find_run(connection, against))
        return
    _announce(out, original, find_drift(connection, original, pool))
    repeated = _run(out, connection, original, pool, send_env, detach=detach)
    if repeated is not None:
        _compare(out, connection, original, repeated)


def _run(
    out: Output,
    connection: Connection,
    original: RunSpec,
    pool: str | None,
    send_env: list[str] | None,
    *,
    detach: bool,
) -> RunSpec | None:
    """Return the new run if it succeeded, or None if detached. Exit with 1 if it failed."""
    from runner.core.states import RunState
    from runner.flows.submit.reproduce import reproduce_run

    consent = to_consent(out, send_env, f"runner reproduce {original.run_id}")
    again = partial(reproduce_run, connection, original, pool, consent=consent)
    repeated, followed = submit_and_follow(out, connection, again, detach=detach, output_dir=None)
    if followed is None:
        show_submitted(out, repeated)
        out.note(f"to compare: runner reproduce {original.run_id} --against {repeated.run_id}")
        return None
    if followed.ended.status.state is not RunState.SUCCEEDED:
        report(out, connection, repeated, followed)
    return repeated


def _announce(out: Output, original: RunSpec, drift: Sequence[Drift]) -> None:
    code = original.code
    if code.git_dirty:
        out.note(f"the code has uncommitted changes on top of git {str(code.git_revision)[:12]}")
    for one in drift:
        out.warning(f"changed: {one.what}, {one.was} -> {one.now}")


def _compare(out: Output, connection: Connection, original: RunSpec, repeated: RunSpec) -> None:
    from runner.flows.submit.reproduce import compare_runs

    found = compare_runs(connection, original, repeated)
    if out.format is OutputFormat.JSON:
        out.record({**dataclasses.asdict(found), "same_model": found.same_model})
    elif out.format is OutputFormat.TSV:
        out.rows(_files(found), _FILE_COLUMNS)
    else:
        _show(out, found)
    if not found.same_model:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _show(out: Output, found: Comparison) -> None:
    out.rows(_files(found), _FILE_COLUMNS, empty="no outputs")
    out.text()
    for name, (was, now) in found.metrics.items():
        shown = ["none" if value is None else text(value) for value in (was, now)]
        if shown[0] == shown[1]:
            shown = [repr(was), repr(now)]
        out.text(f"metric {name}: {shown[0]} -> {shown[1]}")
    for one in found.drift:
        out.text(f"drift: {one.what}, {one.was} -> {one.now}")
    if found.same_model:
        out.text(f"same model: {found.repeated} reproduces {found.original}")
    else:
        unknown = (
            "" if found.drift else "; no drift is recorded, so the script may not be deterministic"
        )
        out.text(f"not the same model: {found.repeated} and {found.original} differ{unknown}")


def _files(found: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "file": file.path + ("" if file.model else " (not part of the model)"),
            "outcome": file.verdict,
            "differs_in": file.detail,
        }
        for file in found.files
    ]

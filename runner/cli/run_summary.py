"""How a run ended: the closing panel, the last lines of a failed one, and the JSON document."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.output import Output, StageView

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.cli.run_display import RunDisplay
    from runner.core.run_record import RunRecord, RunResult
    from runner.flows.model_registration import RunModel
    from runner.flows.watch_events import RunEnded


def output_url(connection: Connection, run_id: str, result: RunResult | None) -> str:
    """Where the outputs are in blob."""
    outputs = connection.outputs
    folder = result.output if result else "output/"
    return f"{outputs.blob_endpoint}/{outputs.container_runs}/{run_id}/{folder}"


def result_document(
    connection: Connection,
    record: RunRecord,
    ended: RunEnded,
    folder: Path | None,
    model: RunModel | None = None,
) -> dict[str, Any]:
    """The outcome for programs: `result.json` and where everything is."""
    result: dict[str, Any] = dict(ended.result.raw) if ended.result else {}
    return {
        **result,
        "run_id": record.run_id,
        "status": ended.status.state.value,
        "message": ended.status.reason or None,
        "fix": ended.status.fix or None,
        "experiment": record.experiment,
        "job_id": record.job_id,
        "pool": record.pool,
        "code_sha256": record.raw["code"]["sha256"],
        "output_url": output_url(connection, record.run_id, ended.result),
        "output_dir": str(folder) if folder else None,
        "model": dataclasses.asdict(model) if model else None,
    }


def print_summary(
    out: Output,
    connection: Connection,
    record: RunRecord,
    ended: RunEnded,
    folder: Path | None,
    view: StageView | None = None,
    *,
    model: RunModel | None = None,
) -> None:
    """The closing panel on stderr; `view` saw the run from the first key press."""
    pairs = {"status": _status_line(ended)}
    if ended.result is None and ended.status.fix:
        pairs["fix"] = ended.status.fix
    if ended.result:
        pairs |= _result_pairs(record, ended.result)
        if view:
            pairs |= _in_all(ended.result, view)
    if ended.result and ended.result.outputs:
        pairs["in blob"] = output_url(connection, record.run_id, ended.result)
    if folder is not None:
        pairs["on disk"] = str(folder)
    if record.data_notice:
        pairs["data"] = record.data_notice
    if model is not None:
        pairs["model"] = f"registered {model}" if model.version else str(model)
    commands = _next_commands(record, ended, folder)
    if model is not None:
        again = f"runner models register {record.run_id}"
        commands.append(f"runner models get {model.reference}" if model.version else again)
    out.panel(record.run_id, pairs, commands=commands)


def print_failure(
    out: Output,
    connection: Connection,
    record: RunRecord,
    ended: RunEnded,
    display: RunDisplay,
) -> None:
    """The last 20 lines of a failed run, unless they are what the screen shows already."""
    from runner.cli.run_display import LAST_LINES

    node = ended.result.rank if ended.result else 0
    lines = _log_tail(connection, record, node) or ended.task_output.splitlines()[-LAST_LINES:]
    shown = list(display.shown)
    if not lines or shown[-len(lines) :] == lines:
        return
    of = f"node {node} of {record.run_id}" if node else record.run_id
    out.note(f"the last {len(lines)} lines of {of}:", style="bold")
    for line in lines:
        out.note(f"  {line}")


def _log_tail(connection: Connection, record: RunRecord, node: int) -> list[str]:
    from runner.cli.run_display import LAST_LINES
    from runner.flows.logs import last_lines

    stderr = last_lines(connection, record.run_id, "stderr", LAST_LINES, node)
    return stderr or last_lines(connection, record.run_id, "stdout", LAST_LINES, node)


def _status_line(ended: RunEnded) -> str:
    from runner.core.exit_codes import describe_exit

    state, result = ended.status.state.value, ended.result
    if result is None or result.status == "succeeded":
        return f"{state}: {ended.status.reason}" if ended.status.reason else state
    where = f" in step {result.step}" if result.step else ""
    code = f" ({describe_exit(result.exit_code)})" if result.exit_code is not None else ""
    return f"{state}{where}{code}"


def _result_pairs(record: RunRecord, result: RunResult) -> dict[str, str]:
    from runner.cli.run_text import metric, where_time_went
    from runner.core.failure_advice import advice_for_result
    from runner.core.metrics import not_finite_text
    from runner.core.units import format_duration, format_size

    pairs: dict[str, str] = {}
    if result.status != "succeeded" and result.message:
        pairs["why"] = result.message
    if fix := advice_for_result(result.code):
        pairs["fix"] = fix
    names = sorted(result.metrics, key=lambda name: name != record.primary_metric)
    pairs |= {name: metric(result.metrics[name]) for name in names}
    if odd := not_finite_text(result.metrics, record.run_id):
        pairs["not finite"] = odd
    if result.started and result.ended:
        pairs["took"] = format_duration((result.ended - result.started).total_seconds())
    if stages := where_time_went(result.stages_s):
        pairs["of which"] = stages
    if result.outputs:
        total = format_size(sum(file.size_bytes for file in result.outputs))
        names = [file.path for file in result.outputs]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        pairs["outputs"] = f"{', '.join(names[:5])}{more} ({total})"
    return pairs


def _in_all(result: RunResult, view: StageView) -> dict[str, str]:
    """What this machine waited for beside the run itself: services, upload, boot, download."""
    from runner.cli.run_text import where_time_went
    from runner.core.units import format_duration

    inside = {"azurite", *result.stages_s}  # Azurite's installation is part of the services' time
    around = where_time_went({k: s for k, s in view.seconds.items() if k not in inside})
    total = format_duration(time.monotonic() - view.began)
    return {"in all": f"{total}, with {around}" if around else total}


def _next_commands(record: RunRecord, ended: RunEnded, folder: Path | None) -> list[str]:
    run_id = record.run_id
    commands = [f"runner show {run_id}", f"runner logs {run_id}"]
    if ended.result and ended.result.rank:
        commands[1] += f" --node {ended.result.rank} --stderr"
    if ended.result and ended.result.outputs and folder is None:
        commands.append(f"runner files get {run_id}")
    return commands

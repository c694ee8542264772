"""The documents of one run, for programs: details, diagnosis, events, files and log."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.flows.devices import load_devices
from runner.flows.runs.diagnose import diagnose
from runner.flows.runs.documents import find_run
from runner.flows.runs.timeline import load_timeline
from runner.page.ask import Ask
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.details import (
    CheckpointFileLine,
    DiagnosisDocument,
    EventLine,
    FileLine,
    LogDocument,
    LogSelection,
    RunDocument,
    checkpoint_file_lines,
    diagnosis_document,
    event_line,
    file_lines,
    load_details,
    log_document,
    run_document,
)
from runner.views.devices import DevicesDocument, devices_document

_TAIL = 1000
_MOST_LINES = 100_000
_MOST_NODES = 10_000


async def read_run(ask: Ask) -> RunDocument:
    """Return the details of a run."""
    run_id = ask.parts["run_id"]
    return await ask.source.read(
        ("api run", run_id),
        lambda connection: run_document(load_details(connection, find_run(connection, run_id))),
    )


async def read_devices(ask: Ask) -> DevicesDocument:
    """Return what a run has used of its nodes."""
    run_id = ask.parts["run_id"]
    return await ask.source.read(
        ("api devices", run_id),
        lambda connection: devices_document(load_devices(connection, find_run(connection, run_id))),
    )


async def read_diagnosis(ask: Ask) -> DiagnosisDocument:
    """Return the cause of a problem of a run, sweep, pool, node or job."""
    subject = ask.parts["subject"]
    return await ask.source.read(
        ("api why", subject),
        lambda connection: diagnosis_document(diagnose(connection, subject)),
    )


async def read_events(ask: Ask) -> list[EventLine]:
    """Return the events of a run, oldest first."""
    run_id = ask.parts["run_id"]

    def load(connection: Connection) -> list[EventLine]:
        spec = find_run(connection, run_id)
        return [event_line(event) for event in load_timeline(connection, spec)]

    return await ask.source.read(("api events", run_id), load)


async def read_files(ask: Ask) -> list[FileLine]:
    """Return the exported files and the logs of a run."""
    return await _read_files(ask, file_lines)


async def read_checkpoint_files(ask: Ask) -> list[CheckpointFileLine]:
    """Return the files of the complete checkpoints of a run."""
    return await _read_files(ask, checkpoint_file_lines)


async def _read_files(ask: Ask, make: Any) -> Any:
    run_id = ask.parts["run_id"]

    def load(connection: Connection) -> Any:
        url_of = partial(connection.blob_url, connection.outputs.container_runs)
        return make(connection, find_run(connection, run_id), url_of)

    return await ask.source.read(("api files", make.__name__, run_id), load)


async def read_log(ask: Ask) -> LogDocument:
    """Return the last lines of a log of a run."""
    run_id, stream = ask.parts["run_id"], ask.text("stream", "stdout")
    if stream not in ("stdout", "stderr"):
        raise RunnerError(
            "R-PAGE-QUERY",
            f"invalid stream={stream[:40]!r} in the address",
            why="expected stdout or stderr",
            fix="remove stream from the address",
        )
    attempt = ask.number("attempt", 0, low=1)
    node = ask.number("node", -1, high=_MOST_NODES)
    wanted = LogSelection(
        cast("Any", stream),
        ask.number("tail", _TAIL, high=_MOST_LINES),
        attempt or None,
        None if node < 0 else node,
    )
    return await ask.source.read(
        ("api log", run_id, wanted),
        lambda connection: log_document(connection, find_run(connection, run_id), wanted),
    )


ENDPOINTS = (
    Endpoint(
        "/runs/{run_id}",
        "Return the details of a run.",
        RunDocument,
        read_run,
        command="runner show RUN",
    ),
    Endpoint(
        "/runs/{run_id}/devices",
        "Return what a run uses of GPUs, CPU, memory, disk and network.",
        DevicesDocument,
        read_devices,
        command="runner metrics RUN --system",
    ),
    Endpoint(
        "/runs/{run_id}/events",
        "List the events of a run, oldest first.",
        list[EventLine],
        read_events,
        command="runner events RUN",
    ),
    Endpoint(
        "/runs/{run_id}/files",
        "List the exported files and the logs of a run.",
        list[FileLine],
        read_files,
        command="runner files ls RUN",
    ),
    Endpoint(
        "/runs/{run_id}/checkpoint-files",
        "List the files of the complete checkpoints of a run, the newest checkpoint first.",
        list[CheckpointFileLine],
        read_checkpoint_files,
        command="runner files ls RUN --checkpoints",
    ),
    Endpoint(
        "/runs/{run_id}/log",
        "Return the last lines of a log, as `runner logs RUN` prints them.",
        LogDocument,
        read_log,
        (
            ("stream", "stdout (default) or stderr"),
            ("tail", f"number of lines; {_TAIL} by default"),
            ("attempt", "only the log of this attempt, counted from 1"),
            ("node", "only the log of the node with this rank, counted from 0"),
        ),
    ),
    Endpoint(
        "/why/{subject}",
        "Explain the problem of a run, sweep, pool, node or job.",
        DiagnosisDocument,
        read_diagnosis,
        command="runner why SUBJECT",
    ),
)

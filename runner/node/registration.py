"""Registers the model of a run that succeeded: the last thing an agent does for it.

A run is not worse for a model that cannot be registered. What is left undone, a later execution of
the task does, or a client.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from runner.node.append_blob import AppendBlob
from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.clock import now_text
from runner.node.documents import parse_json
from runner.node.events import EventLog, Report
from runner.node.failures import StageFailedError
from runner.node.lines import LineQueue
from runner.node.model_documents import (
    Document,
    ModelRequest,
    RegistryError,
    draft_version,
    is_wanted,
    model_record_blob,
    parse_request,
)
from runner.node.model_store import NodeModels
from runner.node.redaction import Redactor
from runner.node.registry import Registered, Registry
from runner.node.sync import Shipper
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)

STEP = "model"
FORMAT = 1
THREADS = 4
LAST_EVENTS_S = 10.0

NO_ACCESS = RegistryError(
    "R-MODEL-ACCESS",
    "the model was not registered",
    "the task was given no access to the container of models",
    "",
)


def settle_model(
    runs: Container, models: Container | None, blobs: RunBlobs, redactor: Redactor
) -> None:
    """Register what run.json asks for, if the run succeeded and it was not done yet."""
    try:
        run: Document = parse_json(runs.get(blobs.run) or b"{}")
        if not is_wanted(run.get("model")):
            return
        result: Document = parse_json(runs.get(blobs.result) or b"{}")
        if result.get("status") == "succeeded" and not _is_done(runs, run):
            _register(runs, models, blobs, run, result, redactor)
    except (StorageError, OSError) as err:
        logger.warning("the model was not registered: %s", err)
    except Exception:
        logger.exception("the model was not registered")


def _is_done(runs: Container, run: Document) -> bool:
    name = str(run["model"].get("name"))
    record: Document = parse_json(runs.get(model_record_blob(str(run["run_id"]), name)) or b"{}")
    return bool(record.get("version"))


def _register(
    runs: Container,
    models: Container | None,
    blobs: RunBlobs,
    run: Document,
    result: Document,
    redactor: Redactor,
) -> None:
    run_id, name = str(run["run_id"]), str(run["model"].get("name"))
    events = AppendBlob(runs, blobs.attempt(int(result["attempt"]), "events.jsonl"))
    try:
        with _stage(events, f"registering the model {name}", redactor) as report:
            registered = _version(runs, models, blobs, run, result, report)
    except StageFailedError as err:
        again = f"runner models register {run_id}"
        problem = {
            "version": None,
            "problem": redactor.text(err.message),
            "fix": again,
            "time": now_text(),
        }
        # A version that another attempt made is not to be hidden behind our trouble.
        record = {"format": FORMAT, "name": name, **problem}
        runs.create(model_record_blob(run_id, name), json.dumps(record).encode())
        return
    record = {"format": FORMAT, "name": name, "version": registered.version, "time": now_text()}
    runs.put(model_record_blob(run_id, name), json.dumps(record).encode())
    logger.info("registered %s@%d", name, registered.version)


def _version(
    runs: Container,
    models: Container | None,
    blobs: RunBlobs,
    run: Document,
    result: Document,
    report: Report,
) -> Registered:
    """The run's version; raises StageFailedError, which the stage tells and the record keeps."""
    try:
        if models is None:
            raise NO_ACCESS
        request = parse_request(run["model"]) or ModelRequest("")
        draft = draft_version(request, run, result)
        prefix = blobs.root + str(result.get("output") or "output/")
        registry = Registry(NodeModels(models, runs), request.name, _in_parallel)
        return registry.register(
            draft, lambda path: prefix + path, on_bytes=_counter(draft, report)
        )
    except RegistryError as err:
        raise StageFailedError(STEP, err.code, str(err)) from err
    except StorageError as err:
        raise StageFailedError(STEP, "StorageFailed", str(err)) from err
    except Exception as err:
        logger.exception("the model was not registered")
        raise StageFailedError(STEP, "AgentFailed", f"{type(err).__name__}: {err}") from err


@contextmanager
def _stage(events: AppendBlob, message: str, redactor: Redactor) -> Generator[Report, None, None]:
    """A stage after the last one: the attempt's own events were shipped to their end."""
    queue = LineQueue()
    shipper = Shipper(queue, events)
    shipper.start()
    try:
        with EventLog(queue, redactor).stage(STEP, message) as report:
            yield report
    finally:
        try:
            shipper.finish(LAST_EVENTS_S)
        except (StorageError, OSError, ValueError) as err:
            logger.warning("not everything was written: %s", err)


def _counter(draft: Document, report: Report) -> Callable[[int], None]:
    total = sum(int(file["size_bytes"]) for file in draft["files"])
    done = 0
    lock = threading.Lock()

    def count(size: int) -> None:
        nonlocal done
        with lock:
            done = min(done + size, total)
            report(f"registering the model {draft['name']}", done, total, "bytes")

    return count


def _in_parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="model") as pool:
        return list(pool.map(function, items))

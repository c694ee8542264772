"""Register the model of a run that succeeded, as the last step of its agent.

A failed registration does not fail the run: a later execution of the task, or a client,
completes it.
"""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from runner.node.failures import StageFailedError
from runner.node.script.redaction import Redactor
from runner.node.script.shipper import LineQueue, Shipper
from runner.node.script.streams import EventLog, Report
from runner.node.storage.blobs import AppendBlob, ContainerClient, expect_success
from runner.node.storage.http import StorageRequestError, StorageResponse
from runner.protocol.codec import now_text, parse_json
from runner.protocol.models import (
    COPY_BLOCK_BYTES,
    DIGEST_READ_BYTES,
    SUMMARY_METADATA,
    CommittedVersion,
    ModelDocument,
    ModelError,
    ModelRegistry,
    ModelRequest,
    StoredModelBlob,
    draft_version,
    model_record_blob,
)
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec


class AgentModelStore:
    """The agent's implementation of `ModelStore`, whose methods raise StorageError.

    `copy` reads from the container `runs`; all other methods use the container `models`.
    """

    def __init__(self, models: ContainerClient, runs: ContainerClient) -> None:
        self._models = models
        self._transport = models.transport
        self._runs = runs

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the blob does not exist."""
        answer = self._transport.send("GET", name)
        if _is_missing(answer):
            return None
        answer = expect_success(answer, "GET", name)
        return answer.body, answer.headers.get("etag", "")

    def create(self, name: str, body: bytes, summary: str = "") -> bool:
        """Write unless the blob exists. Return True if this call certainly wrote it."""
        return self._write(name, body, summary, {"If-None-Match": "*"})

    def replace(self, name: str, body: bytes, etag: str, summary: str = "") -> bool:
        """Replace the version with this ETag. Return True if this call certainly did."""
        return self._write(name, body, summary, {"If-Match": etag})

    def _write(self, name: str, body: bytes, summary: str, condition: dict[str, str]) -> bool:
        headers = {"x-ms-blob-type": "BlockBlob", **condition}
        headers["x-ms-blob-content-type"] = "application/json"
        if summary:
            headers[f"x-ms-meta-{SUMMARY_METADATA}"] = summary
        answer = self._transport.send("PUT", name, headers=headers, body=body)
        if answer.status in (409, 412):
            return False
        expect_success(answer, "PUT", name)
        return True

    def list(self, prefix: str) -> list[StoredModelBlob]:
        """Return all blobs below a prefix."""
        return [
            StoredModelBlob(
                node.findtext("Name") or "",
                int(node.findtext("Properties/Content-Length") or 0),
                node.findtext("Properties/Etag") or "",
                node.findtext(f"Metadata/{SUMMARY_METADATA}") or "",
            )
            for node in self._models.list_blobs(prefix, include="metadata")
        ]

    def copy(self, source: str, name: str, size_bytes: int, *, replace: bool) -> bool:
        """Copy a blob of the container `runs` within the service, in as many blocks as it needs.

        Return False if the source does not exist.
        """
        condition = {} if replace else {"If-None-Match": "*"}
        if not size_bytes:
            headers = {"x-ms-blob-type": "BlockBlob", **condition}
            return self._commit(self._transport.send("PUT", name, headers=headers), name)
        ids: list[str] = []
        for first in range(0, size_bytes, COPY_BLOCK_BYTES):
            last = min(first + COPY_BLOCK_BYTES, size_bytes) - 1
            # Concurrent copies of this blob must stage blocks with the same IDs.
            ids.append(base64.b64encode(b"%08d" % len(ids)).decode())
            query = {"comp": "block", "blockid": ids[-1]}
            headers = {
                **self._runs.transport.copy_source(source),
                "x-ms-source-range": f"bytes={first}-{last}",
            }
            answer = self._transport.send(
                "PUT", name, query=query, headers=headers, retry_s=COPY_RETRY_S
            )
            if _is_missing(answer):
                return False
            expect_success(answer, "copy", source)
        latest = "".join(f"<Latest>{block_id}</Latest>" for block_id in ids)
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{latest}</BlockList>'.encode()
        query = {"comp": "blocklist"}
        answer = self._transport.send("PUT", name, query=query, headers=condition, body=body)
        return self._commit(answer, name)

    def _commit(self, answer: StorageResponse, name: str) -> bool:
        # A concurrent copy that committed first has discarded our blocks: the blob exists.
        if answer.status not in (409, 412) and answer.code != "InvalidBlockList":
            expect_success(answer, "PUT", name)
        return True

    def digest(self, name: str) -> tuple[int, str] | None:
        """Return size and SHA-256 of the stored content, or None if the blob does not exist."""
        found = self._models.head(name)
        if found is None:
            return None
        digest = hashlib.sha256()
        for first in range(0, found.size_bytes, DIGEST_READ_BYTES):
            size = min(DIGEST_READ_BYTES, found.size_bytes - first)
            try:
                digest.update(self._models.get_range(name, first, size))
            except StorageRequestError as err:
                if err.status in (404, 416):  # replaced, or removed, while it was read
                    return None
                raise
        return found.size_bytes, digest.hexdigest()

    def touch(self, name: str) -> bool:
        """Give the blob a new ETag. Return False if it does not exist."""
        answer = self._transport.send("PUT", name, query={"comp": "metadata"})
        if _is_missing(answer):
            return False
        expect_success(answer, "touch", name)
        return True


def _is_missing(answer: StorageResponse) -> bool:
    """Return True for a missing blob. A missing container is an error."""
    return answer.status == 404 and answer.code != "ContainerNotFound"


logger = logging.getLogger(__name__)

STEP = "model"
RECORD_FORMAT = 1
THREADS = 4
EVENTS_FLUSH_S = 10.0
# The service reads the source by itself, and may be unable to, although it answers. The run has
# ended, so that its slot must not wait as long as for other requests; a client copies later.
COPY_RETRY_S = 90.0


def register_model(
    runs: ContainerClient, models: ContainerClient | None, paths: RunPaths, redactor: Redactor
) -> None:
    """Register the model of run.json, if the run succeeded and has no version yet."""
    try:
        run = RunSpec.from_json(parse_json(runs.get(paths.run) or b"{}"))
        request = run.model
        if request is None or not request.register:
            return
        result: ModelDocument = parse_json(runs.get(paths.result) or b"{}")
        record: ModelDocument = parse_json(
            runs.get(model_record_blob(run.run_id, request.name)) or b"{}"
        )
        if result.get("status") == "succeeded" and not record.get("version"):
            _register(runs, models, run, request, result, redactor)
    except (StorageRequestError, OSError) as err:
        logger.warning("the model was not registered: %s", err)
    except Exception:
        logger.exception("the model was not registered")


def _register(
    runs: ContainerClient,
    models: ContainerClient | None,
    run: RunSpec,
    request: ModelRequest,
    result: ModelDocument,
    redactor: Redactor,
) -> None:
    run_id, name = run.run_id, request.name
    blob = model_record_blob(run_id, name)
    record: ModelDocument = {"format": RECORD_FORMAT, "name": name, "version": None}
    events = AppendBlob(runs, RunPaths(run_id).attempt_events(int(result["attempt"])))
    try:
        with _stage(events, f"registering the model {name}", redactor) as report:
            registered = _register_version(runs, models, run, request, result, report)
    except StageFailedError as err:
        record |= {"problem": redactor.text(err.message), "fix": f"runner models register {run_id}"}
        # `create`, not `put`: do not replace the record of a version that another agent registered.
        runs.create(blob, json.dumps({**record, "time": now_text()}).encode())
        return
    record["version"] = registered.version
    runs.put(blob, json.dumps({**record, "time": now_text()}).encode())
    logger.info("registered %s@%d", name, registered.version)


def _register_version(
    runs: ContainerClient,
    models: ContainerClient | None,
    run: RunSpec,
    request: ModelRequest,
    result: ModelDocument,
    report: Report,
) -> CommittedVersion:
    """Register and return the run's version.

    Raises:
        StageFailedError: whatever prevented it; the events and the record name the cause.
    """
    try:
        if models is None:
            raise ModelError(
                "R-MODEL-ACCESS",
                "the model was not registered",
                why="the task has no access to the container `models`",
            )
        draft = draft_version(request.check(), run.to_json(), result)
        prefix = RunPaths(run.run_id).root + str(result.get("output") or "output/")
        registry = ModelRegistry(AgentModelStore(models, runs), request.name, _in_parallel)
        return registry.register(
            draft, lambda path: prefix + path, on_bytes=_make_counter(draft, report)
        )
    except ModelError as err:
        raise StageFailedError(STEP, err.code, err.summary) from err
    except StorageRequestError as err:
        raise StageFailedError(STEP, "StorageFailed", str(err)) from err
    except Exception as err:
        logger.exception("the model was not registered")
        raise StageFailedError(STEP, "AgentFailed", f"{type(err).__name__}: {err}") from err


@contextmanager
def _stage(events: AppendBlob, message: str, redactor: Redactor) -> Generator[Report, None, None]:
    """Run the block as a stage. Its events follow those of the attempt, which has ended."""
    queue = LineQueue()
    shipper = Shipper(queue, events)
    shipper.start()
    try:
        with EventLog(queue, redactor).stage(STEP, message) as report:
            yield report
    finally:
        try:
            shipper.finish(EVENTS_FLUSH_S)
        except (StorageRequestError, OSError, ValueError) as err:
            logger.warning("some events were not written: %s", err)


def _make_counter(draft: ModelDocument, report: Report) -> Callable[[int], None]:
    """Return a function that takes numbers of copied bytes, and reports their sum."""
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

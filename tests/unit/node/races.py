"""Reproducible races: the seed determines the order of requests and the faults."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast
from urllib.parse import unquote
from xml.sax.saxutils import escape

from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageResponse, Transport


class Killed(BaseException):
    """The process that sent the request was killed."""


@dataclass
class Service:
    """Containers in memory that serve one request at a time; keys are `container/blob`."""

    blobs: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # content, ETag
    staged: dict[str, dict[str, bytes]] = field(default_factory=dict)
    committed: dict[str, dict[str, bytes]] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)  # number of writes per blob
    etags: int = 0

    def put(self, key: str, data: bytes, blocks: dict[str, bytes] | None = None) -> None:
        self.etags += 1
        before = self.blobs.get(key)
        if before is None or before[0] != data:
            self.written[key] = self.written.get(key, 0) + 1
        self.blobs[key] = (data, self.etags)
        self.staged.pop(key, None)  # a commit drops staged blocks
        self.committed[key] = blocks or {}

    def data(self, key: str) -> bytes | None:
        found = self.blobs.get(key)
        return None if found is None else found[0]

    def answer(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[int, dict[str, str], bytes]:
        if query.get("comp") == "list":
            return 200, {}, self._list(key, query["prefix"])
        there = self.blobs.get(key)
        if method in ("GET", "HEAD", "DELETE") and there is None:
            return 404, {"x-ms-error-code": "BlobNotFound"}, b""
        if not self._fits(there, headers):
            return 412, {"x-ms-error-code": "ConditionNotMet"}, b""
        if method == "PUT":
            return self._put(key, query, headers, body)
        assert there is not None
        if method == "DELETE":
            del self.blobs[key]
            self.committed.pop(key, None)
            return 202, {}, b""
        shown = {"etag": str(there[1]), "content-length": str(len(there[0]))}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("x-ms-range", ""))
        part = there[0][int(wanted[1]) : int(wanted[2]) + 1] if wanted else there[0]
        return 200, shown, part if method == "GET" else b""

    def _fits(self, there: tuple[bytes, int] | None, headers: Mapping[str, str]) -> bool:
        if headers.get("If-None-Match") == "*" and there is not None:
            return False
        wanted = headers.get("If-Match")
        return wanted is None or (there is not None and str(there[1]) == wanted)

    def _put(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        kind = query.get("comp")
        if kind == "metadata":
            if key not in self.blobs:
                return 404, {"x-ms-error-code": "BlobNotFound"}, b""
            self.etags += 1
            self.blobs[key] = (self.blobs[key][0], self.etags)
        elif kind == "block":
            source = headers.get("x-ms-copy-source")
            if source is not None:
                found = self.data(source)
                if found is None:
                    return 404, {"x-ms-error-code": "CannotVerifyCopySource"}, b""
                first, last = re.findall(r"\d+", headers["x-ms-source-range"])
                body = found[int(first) : int(last) + 1]
            self.staged.setdefault(key, {})[query["blockid"]] = body
        elif kind == "blocklist":
            blocks = self.committed.get(key, {}) | self.staged.get(key, {})  # "Latest"
            ids = re.findall("<Latest>(.*?)</Latest>", body.decode())
            if any(block_id not in blocks for block_id in ids):
                return 400, {"x-ms-error-code": "InvalidBlockList"}, b""
            data = b"".join(blocks[block_id] for block_id in ids)
            self.put(key, data, {block_id: blocks[block_id] for block_id in ids})
        else:
            self.put(key, body)
            self.summaries[key] = headers.get("x-ms-meta-summary", "")
        return 201, {}, b""

    def _list(self, container: str, prefix: str) -> bytes:
        start = f"{container}{prefix}"
        entries = "".join(
            f"<Blob><Name>{escape(key.removeprefix(container))}</Name><Properties>"
            f"<Etag>{etag}</Etag><Content-Length>{len(data)}</Content-Length></Properties>"
            f"<Metadata><summary>{escape(self.summaries.get(key, ''))}</summary></Metadata></Blob>"
            for key, (data, etag) in sorted(self.blobs.items())
            if key.startswith(start)
        )
        return f"<R><Blobs>{entries}</Blobs><NextMarker/></R>".encode()


class Race:
    """Processes that take turns; `kill` and `lose` are probabilities per request."""

    def __init__(self, random: Random, *, kill: float = 0.0, lose: float = 0.0) -> None:
        self.random = random
        self.service = Service()
        self.kill = kill
        self.lose = lose
        self.requests = 0
        self.failures: list[BaseException] = []
        self._runnable: list[Process] = []
        self._over = threading.Semaphore(0)

    def run(self, *bodies: Callable[[Process], None]) -> None:
        """Run each body as a process until all have ended. Raise the error of a process."""
        processes = [Process(self, body) for body in bodies]
        if not processes:
            return
        self._runnable = list(processes)
        for process in processes:
            process.thread.start()
        self._next().turn.release()
        self._over.acquire()
        for process in processes:
            process.thread.join()
        if self.failures:
            raise self.failures[0]

    def _next(self) -> Process:
        return self._runnable[int(self.random.random() * len(self._runnable))]

    def switch(self, process: Process) -> None:
        """Let a process continue, perhaps the same one."""
        chosen = self._next()
        if chosen is not process:
            chosen.turn.release()
            process.turn.acquire()

    def leave(self, process: Process) -> None:
        self._runnable.remove(process)
        if self._runnable:
            self._next().turn.release()
        else:
            self._over.release()


class Process:
    """A simulated process: an attempt or a client."""

    def __init__(self, race: Race, body: Callable[[Process], None]) -> None:
        self.race = race
        self.turn = threading.Semaphore(0)
        self.dead = False
        self._lives = 0
        self._body = body
        self.thread = threading.Thread(target=self._run, daemon=True)

    def container(self, name: str) -> ContainerClient:
        """Return the agent's client of a container."""
        return ContainerClient(cast("Transport", _Wire(self, f"{name}/", self._lives)))

    def revive(self) -> None:
        """Restart after a kill; the killed process sends no more requests."""
        self.dead = False

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._body(self)
        except Killed:
            pass
        except BaseException as err:  # noqa: BLE001 - the main thread raises it
            self.race.failures.append(err)
        finally:
            self.race.leave(self)

    def send(
        self, life: int, ask: Callable[[], tuple[int, dict[str, str], bytes]]
    ) -> StorageResponse:
        """Send a request. Other processes may run first; it may be lost, or its sender killed."""
        race, random = self.race, self.race.random
        if life != self._lives:
            raise Killed
        race.requests += 1
        race.switch(self)
        self._may_die()
        status, headers, body = ask()
        tries = 1
        while random.random() < race.lose:
            race.switch(self)
            status, headers, body = ask()
            tries += 1
        self._may_die()
        return StorageResponse(status, headers, body, tries)

    def _may_die(self) -> None:
        if self.race.random.random() < self.race.kill:
            self.dead = True
            self._lives += 1
            raise Killed


class _Wire:
    """The methods of `Transport` that the container client and the model registry use."""

    def __init__(self, process: Process, container: str, life: int) -> None:
        self._process = process
        self._container = container
        self._life = life

    def send(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        retry_s: float | None = None,
    ) -> StorageResponse:
        service, key = self._process.race.service, self._container + name
        return self._process.send(
            self._life, lambda: service.answer(method, key, query or {}, headers or {}, body)
        )

    def copy_source(self, name: str) -> dict[str, str]:
        return {"x-ms-copy-source": unquote(f"{self._container}{name}")}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def output(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "size_bytes": len(data), "sha256": sha256(data)}

"""Requests to stop: SIGTERM from Batch, and the eviction notice of the node (Scheduled Events).

VM docs, "Scheduled Events": polled about once a second; `Preempt` comes thirty seconds or
more before a spot machine is deleted. A document lists the events of every machine of a scale
set, so `Resources` must name this one. The agent never acknowledges an event
(`StartRequests`): that would delete the machine at once, and another task of the node may
need the time that is left.
"""

from __future__ import annotations

import http.client
import logging
import signal
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import FrameType
from typing import Any, cast

from runner.node.failures import TerminatedError
from runner.node.settings import NodeSettings
from runner.protocol.encoding import parse_json


class Termination:
    """The request to end the task. `on_first` runs once, in the signal handler."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._requested = threading.Event()
        self._on_first = on_first
        self._also: Callable[[], None] = lambda: None
        self.is_from_batch = False  # and not from ourselves

    def install(self) -> None:
        """Handle SIGTERM and SIGINT; call this in the main thread."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    @property
    def requested(self) -> bool:
        """Return True if the task must end."""
        return self._requested.is_set()

    def check(self) -> None:
        """Raise TerminatedError if the task must end, or the error of the check set by `also`."""
        if self.requested:
            raise TerminatedError
        self._also()

    def also(self, check: Callable[[], None]) -> None:
        """Something else that may end what is going on; it replaces what was given before."""
        self._also = check

    def request(self) -> None:
        """Request the end as the signal does, from any thread."""
        if not self._requested.is_set():
            self._requested.set()
            self._on_first()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.is_from_batch = True
        self.request()


logger = logging.getLogger(__name__)

BASE_VARIABLE = "BATCH_EMULATOR_IMDS"
BASE_URL = "http://169.254.169.254"
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

POLL_S = 1.0
TIMEOUT_S = 2.0
# Where nothing answers: Azure may take two minutes to switch the service on (VM docs), and a
# machine elsewhere has none at all.
LONGEST_PAUSE_S = 30.0


# The metadata security protocol of a pool refuses requests that its policy does not allow.
_FORBIDDEN = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


@dataclass(frozen=True)
class NodeEviction:
    """The eviction of this node at `at`, a time of `time.monotonic`."""

    event_id: str
    at: float

    @property
    def left_s(self) -> float:
        """Return the seconds until then; negative afterwards."""
        return self.at - time.monotonic()


def watch_evictions(environment: Mapping[str, str], node: NodeSettings) -> EvictionWatch | None:
    """Start to watch for notices; a dedicated node is never evicted."""
    if node.dedicated:
        return None
    watch = EvictionWatch(environment.get(BASE_VARIABLE) or BASE_URL, node.node)
    watch.start()
    return watch


class EvictionWatch(threading.Thread):
    """Polls until the process ends; silent where there is no such service.

    `on_notice` is called in this thread, once for each notice.
    """

    def __init__(self, base_url: str, node: str) -> None:
        super().__init__(name="eviction notice", daemon=True)
        parts = urllib.parse.urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._names = {node.lower()} - {""}
        self._is_named = False
        self._is_blocked = False
        self._forgotten = ""
        self._remote_notice: NodeEviction | None = None
        self._lock = threading.Lock()  # of what `_poll`, `tell` and `forget` decide on
        self.notice: NodeEviction | None = None
        self.on_notice: Callable[[NodeEviction], None] | None = None

    def forget(self) -> None:
        """Drop a notice without an eviction."""
        with self._lock:
            if self.notice is not None:
                self._forgotten, self.notice = self.notice.event_id, None
            self._remote_notice = None

    def report_remote(self, notice: NodeEviction) -> None:
        """A node that this one works with is about to go: from any thread, as if it were ours."""
        with self._lock:
            self._remote_notice = notice
            is_new = self.notice is None
            if is_new:
                self.notice = notice
        if is_new and self.on_notice is not None:
            self.on_notice(notice)

    def run(self) -> None:
        """Poll until the process ends."""
        pause_s = POLL_S
        while True:
            try:
                self._poll()
                pause_s = POLL_S
            except (OSError, http.client.HTTPException, ValueError) as err:
                logger.debug("no scheduled events: %s", err)
                self._close()
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            except Exception:
                # A document like no other costs the notice, not the training.
                logger.exception("the document of scheduled events is invalid")
                pause_s = LONGEST_PAUSE_S
            time.sleep(pause_s)

    def _poll(self) -> None:
        status, date, body = self._get(EVENTS_PATH)
        if status in _FORBIDDEN and not self._is_blocked:
            self._is_blocked = True  # said once; a policy may change while the task runs
            logger.warning(
                "the node blocks Scheduled Events (status %d): an eviction comes without notice, "
                "and the run continues from its last checkpoint",
                status,
            )
        if status != http.client.OK:
            raise ValueError(f"status {status}")
        events = cast("list[dict[str, Any]]", parse_json(body).get("Events") or [])
        preempts = [event for event in events if event.get("EventType") == "Preempt"]
        ours = next((event for event in preempts if self._concerns_us(event)), None)
        event_id = str(ours.get("EventId", "")) if ours else ""
        with self._lock:
            if ours is None or event_id == self._forgotten:
                self.notice = self._remote_notice
                return
            is_new = self.notice is None or self.notice.event_id != event_id
            self.notice = notice = NodeEviction(event_id, time.monotonic() + _left_s(ours, date))
        if is_new and self.on_notice is not None:
            self.on_notice(notice)

    def _concerns_us(self, event: Mapping[str, Any]) -> bool:
        if not self._is_named:
            # On Azure a machine's name is not its node id; the emulator's is.
            status, _, body = self._get(NAME_PATH)
            if status == http.client.OK:
                self._names.add(body.decode("utf-8", "replace").strip().lower())
            self._is_named = True
        named = {str(name).lower() for name in event.get("Resources") or ()}
        return bool(named & self._names)

    def _get(self, path: str) -> tuple[int, str, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        self._connection.request("GET", self._path + path, headers={"Metadata": "true"})
        response = self._connection.getresponse()
        return response.status, response.headers.get("Date", ""), response.read()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _left_s(event: Mapping[str, Any], date: str) -> float:
    """Seconds until the event, by the clock of who announced it: ours may be wrong.

    An event that has begun has no `NotBefore`.
    """
    try:
        not_before = parsedate_to_datetime(str(event["NotBefore"])).timestamp()
    except (KeyError, ValueError, TypeError):
        return 0.0
    try:
        now = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        now = time.time()
    return max(not_before - now, 0.0)

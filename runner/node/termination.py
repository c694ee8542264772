"""Requests to stop: SIGTERM from Batch, and the eviction notice of the node (Scheduled Events).

VM docs, "Scheduled Events": clients poll about once a second. A `Preempt` event appears at least
thirty seconds before a spot machine is deleted. The document lists the events of all machines of a
scale set, so `Resources` must contain this one. The agent never acknowledges an event
(`StartRequests`), because Azure would then delete the machine at once, and another task of the
node may need the remaining time.

A `SpotRebalanceRecommendation` says that the machine has a higher risk of being evicted. It is only
an advice, and comes with a later api-version, which the page about it does not name
(learn.microsoft.com, spot-eviction-risk-notifications, read 2026-11-29): a setting of the stack has
it. The version from before is used where the service does not know that one.
"""

from __future__ import annotations

import http.client
import logging
import signal
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import FrameType
from typing import Any, cast

from runner.node.failures import TerminatedError
from runner.protocol.codec import parse_json
from runner.protocol.task import EVENTS_VERSION_VARIABLE


class Termination:
    """The request to end the task. `on_first` is called once, by the first request.

    It may be called in a signal handler.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._requested = threading.Event()
        self._on_first = on_first
        self._extra_check: Callable[[], None] = lambda: None
        self.is_from_batch = False  # True if Batch sent a signal, False if the agent decided

    def install(self) -> None:
        """Handle SIGTERM and SIGINT; call this in the main thread."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    @property
    def requested(self) -> bool:
        """Return True if the task must end."""
        return self._requested.is_set()

    def check(self) -> None:
        """Raise TerminatedError if the task must end, or the error of `set_extra_check`."""
        if self.requested:
            raise TerminatedError
        self._extra_check()

    def set_extra_check(self, check: Callable[[], None]) -> None:
        """Let `check` call this function too, which may raise. It replaces an earlier one."""
        self._extra_check = check

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
EVENTS_PATH = "/metadata/scheduledevents?api-version="
EVENTS_VERSION = "2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

POLL_S = 1.0
TIMEOUT_S = 2.0
# Between two polls if the service does not answer: Azure may take two minutes to enable it (VM
# docs), and machines elsewhere do not have it.
MAX_PAUSE_S = 30.0
# Likewise after it has answered: a node that is too busy to answer may be evicted all the same.
BUSY_PAUSE_S = 2.0


# The metadata security protocol of a pool refuses requests that its policy does not allow.
_FORBIDDEN = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
# An api-version that the service does not know: 400 by its page, 404 by its imitations.
_UNKNOWN_VERSION = (http.client.BAD_REQUEST, http.client.NOT_FOUND)


@dataclass(frozen=True)
class NodeEviction:
    """The eviction of this node at `at`, a time of `time.monotonic`."""

    event_id: str
    at: float

    @property
    def left_s(self) -> float:
        """Return the seconds until then; negative afterwards."""
        return self.at - time.monotonic()


def watch_evictions(
    environment: Mapping[str, str], node: str, *, dedicated: bool
) -> EvictionWatch | None:
    """Start to watch for notices. Return None on a dedicated node, which is never evicted."""
    if dedicated:
        return None
    base_url = environment.get(BASE_VARIABLE) or BASE_URL
    watch = EvictionWatch(base_url, node, environment.get(EVENTS_VERSION_VARIABLE) or "")
    watch.start()
    return watch


class EvictionWatch(threading.Thread):
    """Polls for eviction notices until the process ends. A missing service is not reported.

    `notice` is the current notice of this node, or None.

    Args:
        base_url: the metadata service.
        node: ID of this node.
        later_version: api-version that has rebalance recommendations; "" without.
    """

    def __init__(self, base_url: str, node: str, later_version: str = "") -> None:
        super().__init__(name="eviction notice", daemon=True)
        parts = urllib.parse.urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._names = {node.lower()} - {""}
        self._is_named = False
        self._is_blocked = False
        self.has_answered = False
        self._forgotten = ""
        self._remote_notice: NodeEviction | None = None
        self._lock = threading.Lock()  # for all notices and `_forgotten`
        self.notice: NodeEviction | None = None
        self._on_notice: Callable[[NodeEviction], None] | None = None
        self._later_version = later_version
        self._recommended = ""  # ID of the last recommendation
        self._on_recommendation: Callable[[], None] | None = None

    def notify(
        self,
        on_notice: Callable[[NodeEviction], None] | None,
        on_recommendation: Callable[[], None] | None = None,
    ) -> None:
        """Call a function now if there is a notice, and in this thread for each further one.

        `on_recommendation` is called likewise for recommendations to leave the machine. They
        replace earlier functions; None only removes those.
        """
        self._on_notice, self._on_recommendation = on_notice, on_recommendation
        if on_notice is not None and (notice := self.notice) is not None:
            on_notice(notice)
        if on_recommendation is not None and self._recommended:
            on_recommendation()

    def forget(self) -> None:
        """Ignore the current notice from now on, because no eviction followed it."""
        with self._lock:
            if self.notice is not None:
                self._forgotten, self.notice = self.notice.event_id, None
            self._remote_notice = None

    def report_remote(self, notice: NodeEviction) -> None:
        """Treat the notice of another node of the run as one of this node.

        Safe to call from any thread.
        """
        with self._lock:
            self._remote_notice = notice
            is_new = self.notice is None
            if is_new:
                self.notice = notice
        if is_new and self._on_notice is not None:
            self._on_notice(notice)

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
                pause_s = min(pause_s * 2, BUSY_PAUSE_S if self.has_answered else MAX_PAUSE_S)
            except Exception:
                # An unexpected document must not end this thread or the training.
                logger.exception("the document of scheduled events is invalid")
                pause_s = MAX_PAUSE_S
            time.sleep(pause_s)

    def _poll(self) -> None:
        version = self._later_version or EVENTS_VERSION
        status, date, body = self._get(EVENTS_PATH + version)
        if status in _UNKNOWN_VERSION and self._later_version:
            logger.warning(
                "the node has no Scheduled Events of version %s (status %d): no rebalance "
                "recommendations are read",
                version,
                status,
            )
            self._later_version = ""
            status, date, body = self._get(EVENTS_PATH + EVENTS_VERSION)
        if status in _FORBIDDEN and not self._is_blocked:
            self._is_blocked = True  # warn once, but poll on: the policy may change meanwhile
            logger.warning(
                "the node blocks Scheduled Events (status %d): an eviction comes without notice, "
                "and the run continues from its last checkpoint",
                status,
            )
        if status != http.client.OK:
            raise ValueError(f"status {status}")
        self.has_answered = True
        events = cast("list[dict[str, Any]]", parse_json(body).get("Events") or [])
        ours = self._find(events, "Preempt")
        event_id = str(ours.get("EventId", "")) if ours else ""
        self._take_recommendation(self._find(events, "SpotRebalanceRecommendation"))
        with self._lock:
            if ours is None or event_id == self._forgotten:
                self.notice = self._remote_notice
                return
            is_new = self.notice is None or self.notice.event_id != event_id
            self.notice = notice = NodeEviction(event_id, time.monotonic() + _left_s(ours, date))
        if is_new and self._on_notice is not None:
            self._on_notice(notice)

    def _find(self, events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any] | None:
        found = (each for each in events if each.get("EventType") == kind)
        return next((each for each in found if self._is_for_this_node(each)), None)

    def _take_recommendation(self, event: Mapping[str, Any] | None) -> None:
        event_id = str(event.get("EventId", "")) if event else ""
        is_new = bool(event_id) and event_id != self._recommended
        self._recommended = event_id
        if is_new and self._on_recommendation is not None:
            self._on_recommendation()

    def _is_for_this_node(self, event: Mapping[str, Any]) -> bool:
        if not self._is_named:
            # On Azure, the name of a machine is not its node ID; in the emulator, it is.
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
    """Return the seconds until the event, 0 if it has begun (then it has no `NotBefore`).

    The time is compared with the `Date` of the response, because the node's clock may be wrong.
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

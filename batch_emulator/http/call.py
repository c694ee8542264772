"""Requests as handlers see them, and replies: parameters, conditional headers, and the names that
older clients use.

The emulator uses the names of api-version 2020-09-01.12.0 and later. Before that version, a pool
had `maxTasksPerNode` instead of `taskSlotsPerNode`, tasks had no `requiredSlots`, nodes had no
`runningTaskSlotsCount`, and slots were not counted. Before 2018-12-01.8.0, a resource file had
`blobSource` instead of `httpUrl`. Source: the models of azure-batch 5.1
(2018-08-01.7.0), 6.0 (2018-12-01.8.0), 9.0 (2020-03-01.11.0) and 10.0 (2020-09-01.12.0).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache
from typing import Any, cast

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Job, Json, Node, Pool, key_of
from batch_emulator.domain.transitions import nodes
from batch_emulator.domain.validation.body_schema import check_body, names_unknown_to
from batch_emulator.domain.values import etag_text, http_date
from batch_emulator.emulator import Emulator
from batch_emulator.http import bodies, odata
from batch_emulator.http.bodies import FREE
from batch_emulator.http.odata import FieldRule

_VERSION = re.compile(r"(20\d\d-\d\d-\d\d)(\.\d{1,4}\.\d{1,4})?(-preview)?", re.ASCII)
_OLDEST = date(2018, 3, 1)
_SLOTS_SINCE = date(2020, 9, 1)
NEWEST = date(2025, 6, 1)
_NO_SSH_SINCE = date(2024, 7, 1)

# today's names, each with its older name and the api-version that renamed it
_RENAMED: Mapping[str, tuple[str, date]] = {
    "taskSlotsPerNode": ("maxTasksPerNode", _SLOTS_SINCE),
    "httpUrl": ("blobSource", date(2018, 12, 1)),
}
_UNKNOWN_THEN = frozenset({"requiredSlots", "runningTaskSlotsCount"})


def check_version(query: Mapping[str, str]) -> None:
    """Refuse a request without an api-version, or with an invalid one. Raises Fault."""
    text = query.get("api-version")
    if text is None:
        raise Fault("MissingRequiredQueryParameter", {"QueryParameterName": "api-version"})
    day = _day(text)
    if day is None or day < _OLDEST:
        raise Fault("UnsupportedRequestVersion", {"QueryParameterValue": text[:64]})


def _day(text: str) -> date | None:
    match = _VERSION.fullmatch(text)
    try:
        return None if match is None else date.fromisoformat(match[1])
    except ValueError:
        return None


def day_of(query: Mapping[str, str]) -> date:
    """Return the date of a request's api-version."""
    return _day(query.get("api-version", "")) or NEWEST


def is_old_client(query: Mapping[str, str]) -> bool:
    """Return True if the client uses the names from before slots."""
    day = _day(query.get("api-version", ""))
    return day is not None and day < _SLOTS_SINCE


def selection_in_current_names(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the query with today's names in `$select`."""
    text = query.get("$select")
    if text is None or not is_old_client(query):
        return query
    new_names = {old: new for new, old in _old_names(query).items()}
    names = (new_names.get(name.strip(), name) for name in text.split(","))
    return {**query, "$select": ",".join(names)}


def to_current_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return a request body with today's names."""
    if not is_old_client(query):
        return body
    return _renamed(body, {old: new for new, old in _old_names(query).items()}, frozenset())


def to_client_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return an answer with the names of the client's version."""
    if not is_old_client(query):
        return body
    if "taskSlotCounts" in body:
        metadata = str(body.get("odata.metadata", "")).replace("#taskcountsresult", "#taskcounts")
        return {"odata.metadata": metadata, **body.get("taskCounts", {})}
    return _renamed(body, _old_names(query), _UNKNOWN_THEN)


def _old_names(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return the older names that the client's version uses, by today's names."""
    day = day_of(query)
    return {new: old for new, (old, since) in _RENAMED.items() if day < since}


# Names in answers that not every api-version has, by the first version that has them and by the
# first that no longer has them. Names that occur in requests, too, are in the schema of requests.
# Source: the models and release notes of azure-batch 4.1 to 15.1, and recorded answers.
_SINCE: Mapping[str, date] = {
    "nodeAgentInfo": date(2018, 8, 1),
    "virtualMachineInfo": date(2021, 6, 1),
    "currentNodeCommunicationMode": date(2022, 10, 1),
    "scaleSetVmResourceId": date(2023, 11, 1),
    "upgradingOS": date(2024, 2, 1),
    **dict.fromkeys(("deallocated", "deallocating"), date(2024, 7, 1)),
    **dict.fromkeys(
        (
            "ipv6Address",
            "ipv6RemoteLoginIPAddress",
            "ipv6RemoteLoginPort",
        ),
        NEWEST,
    ),
}
_UNTIL: Mapping[str, date] = {"currentNodeCommunicationMode": NEWEST}


@lru_cache(maxsize=64)
def _unknown_to(version: str) -> frozenset[str]:
    """Return the names that an api-version does not answer with."""
    day = _day(version) or NEWEST
    late = {name for name, since in _SINCE.items() if day < since}
    gone = {name for name, until in _UNTIL.items() if day >= until}
    renamed = {
        *_RENAMED,
        *(old for old, _ in _RENAMED.values()),
    } | _UNKNOWN_THEN  # `to_client_names` renames these
    return frozenset(late | gone | (names_unknown_to(day.isoformat()) - renamed))


def without_unknown_names(body: Json, query: Mapping[str, str]) -> Json:
    """Return an answer without the properties that the client's version does not have.

    Lists of tasks stay unchanged, because they may be long: no property of a task was ever added or
    removed.
    """
    if str(body.get("odata.metadata", "")).endswith(("#tasks", "#taskaddresult")):
        return body
    version = query.get("api-version", "")
    disk = "managedDisk" if (_day(version) or NEWEST) < NEWEST else "storageAccountType"
    return _without(body, _unknown_to(version), disk)


def _without(value: Any, names: frozenset[str], disk_name: str) -> Any:
    """Remove names everywhere, and from data disks `disk_name`, which other versions use."""
    if isinstance(value, list):
        return [_without(item, names, disk_name) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    known = cast("Json", value)
    dropped = {*names, disk_name} if "lun" in known else names
    return {
        name: item if name in FREE else _without(item, names, disk_name)
        for name, item in known.items()
        if name not in dropped
    }


def _renamed(value: Any, names: Mapping[str, str], without: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, names, without) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        names.get(name, name): item if name in FREE else _renamed(item, names, without)
        for name, item in cast("Json", value).items()
        if name not in without
    }


@dataclass(slots=True)
class Reply:
    """An answer: a JSON entity, a stream of bytes, or only headers."""

    status: int = 200
    body: Json | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    stream: AsyncIterator[bytes] | None = None


class NotModified(Exception):  # noqa: N818 - it is an answer, not an error
    """The client has the current version; answered 304 without a body."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("not modified")
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Call:
    """A request after authentication and routing. Header names are lower-case."""

    emulator: Emulator
    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    base_url: str
    now: datetime
    request_id: str
    operation: str = ""  # its name in the service's description, empty for the admin API
    stream: AsyncIterator[bytes] | None = None  # the body of a request that may be large

    def json(self, *, optional: bool = False) -> Json:
        """Return the body, checked and coerced, with today's names. Raises Fault."""
        decoded = bodies.parse(self.body, optional=optional)
        checked = check_body(self.operation, self.query.get("api-version", ""), decoded)
        body = to_current_names(checked, self.query)
        if bodies.may_name_identities(self.body):
            bodies.check_identities(body, known=self.emulator.identity is not None)
        is_collection = self.path.endswith("/addtaskcollection")  # refuses single tasks
        if not is_collection and bodies.may_name_linked_storage(self.body):
            self.require_linked_storage(body)
        return body

    def require_linked_storage(self, body: Json) -> None:
        """Refuse files of a linked storage account if none is linked. Raises Fault."""
        if self.emulator.identity is None and bodies.names_linked_storage(body):
            reason = "no storage account is linked to the Batch account"
            raise bad_property("resourceFiles/autoStorageContainerName", "", reason)

    def pool(self) -> Pool:
        """Return the pool of the path. Raises Fault."""
        pool = self.emulator.account.pools.get(key_of(self.params["poolId"]))
        if pool is None:
            raise Fault("PoolNotFound")
        return pool

    def node(self) -> Node:
        """Return the node of the path. Raises Fault."""
        return nodes.require(self.emulator.account, self.params["poolId"], self.params["nodeId"])

    def job(self) -> Job:
        """Return the job of the path. Raises Fault."""
        job = self.emulator.account.jobs.get(key_of(self.params["jobId"]))
        of_tasks = self.path.strip("/").split("/")[2:3] == ["tasks"]
        if job is None or (job.erasing and of_tasks):
            raise Fault("JobNotFound")
        return job

    def check(self, etag: int, modified: datetime) -> dict[str, str]:
        """Evaluate conditional headers; return the headers of the entity if they hold.

        Raises:
            NotModified: a reader has the current version.
            Fault: a condition fails or cannot be read.
        """
        reading = self.method in ("GET", "HEAD")
        headers = entity_headers(etag, modified)
        verdict = check(self.headers, headers["ETag"], modified, reading=reading)
        if verdict is Verdict.NOT_MODIFIED:
            raise NotModified(headers)
        code = {
            Verdict.FAILED: "ConditionNotMet",
            Verdict.UNSUPPORTED: "MultipleConditionHeadersNotSupported",
            Verdict.MALFORMED: "InvalidHeaderValue",
        }.get(verdict)
        if code is not None:
            raise Fault(code)
        return headers

    @property
    def expands_stats(self) -> bool:
        """Return True if `$expand` asks for statistics."""
        return "stats" in self.query.get("$expand", "").split(",")

    @property
    def maps_remote_access(self) -> bool:
        """Return True if a pool of this api-version gets an endpoint for SSH by default."""
        day = _day(self.query.get("api-version", ""))
        return day is not None and day < _NO_SSH_SINCE

    def data_service_id(self) -> dict[str, str]:
        """Return the header with the URL of the changed entity."""
        return {"DataServiceId": f"{self.base_url}{self.path}"}

    def created(self, url: str, etag: int, modified: datetime) -> Reply:
        """Return 201 with the headers of the new entity and no body."""
        headers = entity_headers(etag, modified) | {"Location": url, "DataServiceId": url}
        return Reply(201, None, headers)

    def entity(self, body: Json, headers: dict[str, str]) -> Reply:
        """Return 200 with an entity, reduced by `$select`."""
        names = odata.selected(self.query.get("$select", ""))
        if names is not None:
            body = {name: value for name, value in body.items() if name in names}
        return Reply(200, self._with_metadata(body, "/@Element"), headers)

    async def listing(
        self,
        fields: Mapping[str, FieldRule] | None,
        fetch: odata.Fetch,
        *,
        default: int = odata.MAX_RESULTS,
    ) -> Reply:
        """Return 200 with one page of a list."""
        asked = odata.parse(self.query, fields, default=default)
        url, version = f"{self.base_url}{self.path}", self.query.get("api-version", "")
        body = await odata.page(asked, fetch, url, version)
        if self.expands_stats and "odata.nextLink" in body:
            body["odata.nextLink"] += "&$expand=stats"  # clients follow the link as it is
        return Reply(200, self._with_metadata(body))

    def _with_metadata(self, body: Json, suffix: str = "") -> Json:
        kind = _METADATA.get(self.operation)
        if kind is None:
            steps = self.path.strip("/").partition("(")[0].split("/")
            kind = f"{steps[-2:][0] if suffix else steps[-1]}{suffix}"
        return {"odata.metadata": f"{self.base_url}/$metadata#{kind}", **body}


_ENTITIES = "Microsoft.Azure.Batch.Protocol.Entities"
# `odata.metadata` of the operations whose answers are not the entities of their path. Source:
# recorded answers of 2018 to 2023 (tests of azure-batch and of the SDK for JavaScript), and for
# task counts and added tasks the REST reference.
_METADATA: Mapping[str, str] = {
    "Account_ListPoolNodeCounts": "poolnodecounts",
    "Application_Get": "getapplicationsummaryresponse/@Element",
    "Application_List": "listapplicationsummariesresponses",
    "ComputeNode_GetRemoteLoginSettings": f"{_ENTITIES}.RemoteLoginSettings",
    "ComputeNode_UploadBatchServiceLogs": f"{_ENTITIES}.UploadBatchServiceLogsResult",
    "Job_GetAllLifetimeStatistics": "jobstats/@Element",
    "Job_GetTaskCounts": "taskcountsresult/@Element",
    "Job_ListPreparationAndReleaseTaskStatus": "jobpreparationandreleasetaskstatuslist",
    "Pool_EvaluateAutoScale": f"{_ENTITIES}.AutoScaleRun",
    "Pool_GetAllLifetimeStatistics": "poolstats/@Element",
    "Task_AddCollection": "taskaddresult",
    "Task_ListSubtasks": "subtaskinfo",
}


def entity_headers(etag: int, modified: datetime) -> dict[str, str]:
    """Return ETag (without quotes, as the service sends it) and Last-Modified."""
    return {"ETag": etag_text(etag), "Last-Modified": http_date(modified)}


Handler = Callable[[Call], Reply | Awaitable[Reply]]


class Verdict(Enum):
    """The result of conditional headers; the value is the status, 0 to proceed."""

    PROCEED = 0
    NOT_MODIFIED = 304  # no body
    FAILED = 412  # ConditionNotMet
    UNSUPPORTED = 400  # MultipleConditionHeadersNotSupported
    MALFORMED = -400  # InvalidHeaderValue: not a date


_MATCH = "if-match"
_NONE_MATCH = "if-none-match"
_MODIFIED = "if-modified-since"
_UNMODIFIED = "if-unmodified-since"
# The two pairs that the service accepts together; the first of a pair decides.
_PAIRS = ({_NONE_MATCH, _MODIFIED}, {_MATCH, _UNMODIFIED})


def check(
    headers: Mapping[str, str], etag: str, last_modified: datetime, *, reading: bool
) -> Verdict:
    """Evaluate lower-case headers against the entity; `etag` has no quotes, as in answers."""
    given = {n for n in (_MATCH, _NONE_MATCH, _MODIFIED, _UNMODIFIED) if headers.get(n)}
    if not given:
        return Verdict.PROCEED
    if len(given) > 1 and given not in _PAIRS:
        return Verdict.UNSUPPORTED
    unchanged = Verdict.NOT_MODIFIED if reading else Verdict.FAILED
    for name in (_MATCH, _NONE_MATCH):
        if name in given:
            held = _matches(headers[name], etag) == (name == _MATCH)
            return Verdict.PROCEED if held else (Verdict.FAILED if name == _MATCH else unchanged)
    name = next(iter(given))
    moment = _date(headers[name])
    if moment is None:
        return Verdict.MALFORMED
    # Headers have whole seconds only, so the entity's time is compared in whole seconds.
    held = (last_modified.replace(microsecond=0) > moment) == (name == _MODIFIED)
    return Verdict.PROCEED if held else (unchanged if name == _MODIFIED else Verdict.FAILED)


def _matches(header: str, etag: str) -> bool:
    """Compare entity tags; the SDK quotes tags that the service sends bare, so both forms match."""
    if header.strip() == "*":
        return True
    return any(_bare(one) == _bare(etag) for one in header.split(","))


def _bare(tag: str) -> str:
    return tag.strip().removeprefix("W/").strip('"')


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

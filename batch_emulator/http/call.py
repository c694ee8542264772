"""Requests as handlers see them, and replies: parameters, conditional headers and listings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Job, JobSchedule, Json, Node, Pool, Task, key_of
from batch_emulator.domain.shared_key import parse_date
from batch_emulator.domain.transitions import nodes
from batch_emulator.domain.validation.body_schema import check_body
from batch_emulator.domain.values import etag_text, http_date
from batch_emulator.emulator import Emulator
from batch_emulator.http import bodies, odata, versions
from batch_emulator.http.odata import FieldRule

_Entity = TypeVar("_Entity", Pool, Job, JobSchedule, Task)


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
        """Return the body, checked and coerced, with today's names. Raises Fault.

        Handlers read it before they look for an entity: the service refuses a resize without
        targets also if the pool does not exist (BatchErrorTests of azure-compute-batch, the SDK for
        Java, read 2026-11-30).
        """
        decoded = bodies.parse(self.body, optional=optional)
        checked = check_body(self.operation, self.query.get("api-version", ""), decoded)
        body = versions.to_current_names(checked, self.query)
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
        if verdict is not Verdict.PROCEED:
            raise Fault(verdict.value)
        return headers

    def checked(self, entity: _Entity) -> _Entity:
        """Return the entity if the conditional headers hold. Raises as `check`."""
        self.check(entity.etag, entity.modified)
        return entity

    @property
    def expands_stats(self) -> bool:
        """Return True if `$expand` asks for statistics."""
        return "stats" in self.query.get("$expand", "").split(",")

    @property
    def maps_remote_access(self) -> bool:
        """Return True if a pool of this api-version gets an endpoint for SSH by default."""
        return versions.maps_remote_access(self.query)

    def data_service_id(self) -> dict[str, str]:
        """Return the header with the URL of the changed entity."""
        return {"DataServiceId": f"{self.base_url}{self.path}"}

    def created(self, url: str, etag: int, modified: datetime) -> Reply:
        """Return 201 with the headers of the new entity and no body."""
        headers = entity_headers(etag, modified) | {"Location": url, "DataServiceId": url}
        return Reply(201, None, headers)

    def changed(self, entity: Pool | Job | JobSchedule | Task, status: int) -> Reply:
        """Return the answer to a change, with the headers of the entity and no body."""
        headers = entity_headers(entity.etag, entity.modified) | self.data_service_id()
        return Reply(status, None, headers)

    def entity(self, body: Json, headers: dict[str, str]) -> Reply:
        """Return 200 with an entity, reduced by `$select`."""
        shown = odata.select(body, odata.selected(self.query.get("$select", "")))
        return Reply(200, self._with_metadata(shown, "/@Element"), headers)

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


def transition(
    find: Callable[[Call], _Entity],
    change: Callable[[Account, _Entity, datetime], None],
    status: int,
) -> Handler:
    """Return the handler of a change of state that needs no body."""

    def handler(call: Call) -> Reply:
        entity = call.checked(find(call))
        change(call.emulator.account, entity, call.now)
        return call.changed(entity, status)

    return handler


def deletion(
    find: Callable[[Call], _Entity], delete: Callable[[Account, _Entity, datetime], None]
) -> Handler:
    """Return the handler of a deletion, which the service answers without headers."""

    def handler(call: Call) -> Reply:
        delete(call.emulator.account, call.checked(find(call)), call.now)
        return Reply(202)

    return handler


class Verdict(StrEnum):
    """The result of conditional headers; the value is the code of the error, if it is one."""

    PROCEED = ""
    NOT_MODIFIED = "NotModified"  # answered without a body
    FAILED = "ConditionNotMet"
    UNSUPPORTED = "MultipleConditionHeadersNotSupported"
    MALFORMED = "InvalidHeaderValue"  # not a date


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
    moment = parse_date(headers[name])
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

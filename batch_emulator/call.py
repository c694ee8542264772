"""One request on its way to a route, and the reply on its way back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from batch_emulator import conditions
from batch_emulator.emulator import Emulator
from batch_emulator.faults import Fault
from batch_emulator.model import Job, Json, Node, Pool, key_of
from batch_emulator.odata import FieldRule
from batch_emulator.transitions import nodes
from batch_emulator.values import etag_text, http_date
from batch_emulator.wire import bodies, identities, paging, versions


@dataclass(slots=True)
class Reply:
    """An answer: a JSON entity, a stream of bytes, or nothing but headers."""

    status: int = 200
    body: Json | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    stream: AsyncIterator[bytes] | None = None


class NotModified(Exception):  # noqa: N818 - it is an answer, not an error
    """The reader has the current version; answered 304 without a body."""

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
    stream: AsyncIterator[bytes] | None = None  # the body, of requests that may be large

    def json(self, *, optional: bool = False) -> Json:
        """The body, parsed and coerced. Raises Fault."""
        body = versions.incoming(bodies.parse(self.body, optional=optional), self.query)
        if identities.may_name_identities(self.body):
            identities.check_identities(body, known=self.emulator.identity is not None)
        return body

    def pool(self) -> Pool:
        """The pool of the path. Raises Fault."""
        pool = self.emulator.account.pools.get(key_of(self.params["poolId"]))
        if pool is None:
            raise Fault("PoolNotFound")
        return pool

    def node(self) -> Node:
        """The node of the path. Raises Fault."""
        return nodes.require(self.emulator.account, self.params["poolId"], self.params["nodeId"])

    def job(self) -> Job:
        """The job of the path. Raises Fault."""
        job = self.emulator.account.jobs.get(key_of(self.params["jobId"]))
        of_tasks = self.path.strip("/").split("/")[2:3] == ["tasks"]
        if job is None or (job.erasing and of_tasks):
            raise Fault("JobNotFound")
        return job

    def check(self, etag: int, modified: datetime) -> dict[str, str]:
        """Judge conditional headers; the entity's own headers when it may go on. Raises Fault."""
        reading = self.method in ("GET", "HEAD")
        headers = entity_headers(etag, modified)
        verdict = conditions.check(self.headers, headers["ETag"], modified, reading=reading)
        if verdict is conditions.Verdict.NOT_MODIFIED:
            raise NotModified(headers)
        code = {
            conditions.Verdict.FAILED: "ConditionNotMet",
            conditions.Verdict.UNSUPPORTED: "MultipleConditionHeadersNotSupported",
            conditions.Verdict.MALFORMED: "InvalidHeaderValue",
        }.get(verdict)
        if code is not None:
            raise Fault(code)
        return headers

    @property
    def expands_stats(self) -> bool:
        """Whether statistics are asked for with `$expand`."""
        return "stats" in self.query.get("$expand", "").split(",")

    def data_service_id(self) -> dict[str, str]:
        """The header that names the URL of what was changed."""
        return {"DataServiceId": f"{self.base_url}{self.path}"}

    def created(self, url: str, etag: int, modified: datetime) -> Reply:
        """201 with the headers of the new entity and no body."""
        headers = entity_headers(etag, modified) | {"Location": url, "DataServiceId": url}
        return Reply(201, None, headers)

    def entity(self, body: Json, headers: dict[str, str]) -> Reply:
        """200 with an entity, cut down by `$select`."""
        names = paging.selected(self.query.get("$select", ""))
        if names is not None:
            body = {name: value for name, value in body.items() if name in names}
        return Reply(200, self._with_metadata(body, "@Element"), headers)

    async def listing(
        self,
        fields: Mapping[str, FieldRule] | None,
        fetch: paging.Fetch,
        *,
        default: int = paging.MAX_RESULTS,
    ) -> Reply:
        """200 with one page of a list."""
        asked = paging.parse(self.query, fields, default=default)
        url, version = f"{self.base_url}{self.path}", self.query.get("api-version", "")
        body = await paging.page(asked, fetch, url, version)
        if self.expands_stats and "odata.nextLink" in body:
            body["odata.nextLink"] += "&$expand=stats"  # clients follow the link as it is
        return Reply(200, self._with_metadata(body))

    def _with_metadata(self, body: Json, suffix: str = "") -> Json:
        steps = self.path.strip("/").partition("(")[0].split("/")
        kind = steps[-2:][0] if suffix else steps[-1]
        return {"odata.metadata": f"{self.base_url}/$metadata#{kind}{suffix}", **body}


def entity_headers(etag: int, modified: datetime) -> dict[str, str]:
    """ETag (without quotes, as the service sends it) and Last-Modified."""
    return {"ETag": etag_text(etag), "Last-Modified": http_date(modified)}


Handler = Callable[[Call], Reply | Awaitable[Reply]]

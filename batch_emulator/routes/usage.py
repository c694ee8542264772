"""Pool_ListUsageMetrics."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import quote

from batch_emulator import odata
from batch_emulator.call import Call, Reply
from batch_emulator.faults import Fault, bad_query
from batch_emulator.model import Json
from batch_emulator.scheduling.allocation import cores_of
from batch_emulator.transitions import usage
from batch_emulator.values import parse_time, time_text
from batch_emulator.wire import paging

# docs: startTime is at least two and a half hours ago, endTime at least two
_AGES = {"starttime": timedelta(hours=2, minutes=30), "endtime": timedelta(hours=2)}


async def list_metrics(call: Call) -> Reply:
    """Pool_ListUsageMetrics: of the last interval available when no time is given (docs)."""
    last = usage.interval_of(call.now - _AGES["endtime"])
    end = _moment(call, "endtime") or last
    start = _moment(call, "starttime") or usage.interval_of(end) - usage.INTERVAL
    if end < start:
        raise bad_query("endtime", time_text(end), f"not before startTime {time_text(start)}")
    found = usage.report(call.emulator.account, usage.interval_of(start), min(end, last))
    rendered = sorted((_render(*item) for item in found.items()), key=lambda one: one[0])
    reply = await call.listing(odata.USAGE_FIELDS, paging.from_sorted(rendered))
    if reply.body is not None and "odata.nextLink" in reply.body:
        asked = f"&starttime={quote(time_text(start))}&endtime={quote(time_text(end))}"
        reply.body["odata.nextLink"] += asked  # clients follow the link as it is
    return reply


def _moment(call: Call, name: str) -> datetime | None:
    given = {key.lower(): value for key, value in call.query.items()}
    text = given.get(name)
    if text is None:
        return None
    try:
        moment = parse_time(text)
    except (ValueError, OverflowError) as err:
        raise bad_query(name, text, "an ISO 8601 time is expected") from err
    latest = call.now - _AGES[name]
    if moment > latest:
        values = {
            "QueryParameterName": name,
            "QueryParameterValue": text[:64],
            "Reason": f"not after {time_text(latest)}",
        }
        raise Fault("OutOfRangeQueryParameterValue", values)
    return moment


def _render(key: tuple[str, str, datetime], node_s: float) -> tuple[str, Json]:
    pool_id, vm_size, start = key
    body: Json = {
        "poolId": pool_id,
        "startTime": time_text(start),
        "endTime": time_text(start + usage.INTERVAL),
        "vmSize": vm_size,
        "totalCoreHours": round(node_s / 3600 * cores_of(vm_size), 6),
    }
    # a pool may have had a namesake in other case: pages are found by keys that are all different
    return f"{time_text(start)} {pool_id.lower()} {vm_size.lower()} {pool_id} {vm_size}", body

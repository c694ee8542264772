"""Handlers of pool operations: change, resize, autoscale, node counts, images and usage metrics."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from urllib.parse import quote

from batch_emulator.domain.account import require_pool_quota
from batch_emulator.domain.faults import Fault, bad_query, no_room
from batch_emulator.domain.model import Json, Pool, cores_of, key_of, part, parts
from batch_emulator.domain.transitions import autoscale, metering, pools
from batch_emulator.domain.transitions.states import touch
from batch_emulator.domain.validation import machine_rules, pool_rules
from batch_emulator.domain.validation.machine_rules import SupportedImage
from batch_emulator.domain.validation.pool_rules import check_formula, check_scaling
from batch_emulator.domain.validation.properties import require
from batch_emulator.domain.values import parse_time, time_text
from batch_emulator.http import odata, render
from batch_emulator.http.call import Call, Reply, deletion, transition

# properties that updateproperties clears when they are absent (docs)
_REPLACED = ("startTask", "metadata", "applicationPackageReferences", "certificateReferences")
_PACKAGES = "applicationPackageReferences"
# properties that a PATCH may change while the pool has no nodes (docs, since 2024-07-01)
_FIXED_WITH_NODES = (
    "displayName",
    "vmSize",
    "enableInterNodeCommunication",
    "virtualMachineConfiguration",
    "taskSlotsPerNode",
    "taskSchedulingPolicy",
    "networkConfiguration",
    "userAccounts",
    "mountConfiguration",
    "upgradePolicy",
)
# properties that `check_machine` reads; a pool is checked again only if one of them changes
_MACHINE_PROPERTIES = (
    "vmSize",
    "virtualMachineConfiguration",
    "networkConfiguration",
    "taskSlotsPerNode",
    "userAccounts",
)
_FIXED = (
    "id",
    "targetDedicatedNodes",
    "targetLowPriorityNodes",
    *autoscale.PROPERTIES,
)
NODE_COUNTS_PAGE = 10  # docs: nodecounts, default of maxresults


def add(call: Call) -> Reply:
    """Pool_Add."""
    body = call.json()
    pool_rules.check_pool(body)
    machine_rules.check_machine(body, call.emulator.account.limits.machines)
    call.emulator.account.check_references(body)
    existing = call.emulator.account.pools.get(key_of(body["id"]))
    if existing is not None:
        pools.require_active(existing)
        raise Fault("PoolExists")
    require_pool_quota(call.emulator.account)
    pool = pools.add(call.emulator.account, body, call.now)
    pool.remote_access = call.maps_remote_access
    return call.created(f"{call.base_url}/pools/{pool.id}", pool.etag, pool.modified)


def _render(call: Call, pool: Pool) -> Json:
    body = render.pool(pool, call.base_url)
    if call.expands_stats:
        body["stats"] = render.pool_statistics([pool], body["url"], call.now)
    return body


def lifetime_statistics(call: Call) -> Reply:
    """Pool_GetAllLifetimeStatistics, until 2023-05-01."""
    found, url = call.emulator.account.pools.values(), f"{call.base_url}{call.path}"
    return call.entity(render.pool_statistics(found, url, call.now), {})


async def list_all(call: Call) -> Reply:
    """Pool_List."""
    fetch = odata.from_entities(call.emulator.account.pools, partial(_render, call))
    return await call.listing(odata.POOL_FIELDS, fetch)


def get(call: Call) -> Reply:
    """Pool_Get."""
    pool = call.pool()
    headers = call.check(pool.etag, pool.modified)
    return call.entity(_render(call, pool), headers)


def exists(call: Call) -> Reply:
    """Pool_Exists."""
    pool = call.pool()
    return Reply(200, None, call.check(pool.etag, pool.modified))


def patch(call: Call) -> Reply:
    """Pool_Patch: absent properties stay."""
    body, pool = call.json(), call.checked(call.pool())
    _change(call, pool, {**pool.spec, **body})
    return call.changed(pool, 200)


def update_properties(call: Call) -> Reply:
    """Pool_UpdateProperties: absent properties are cleared, the communication mode is the default.

    The service shows that mode afterwards (recorded in the tests of the SDK for Java, 2024-03-28).
    """
    body, pool = call.json(), call.checked(call.pool())
    kept = {name: value for name, value in pool.spec.items() if name not in _REPLACED}
    _change(call, pool, {**kept, "targetNodeCommunicationMode": "default", **body})
    return call.changed(pool, 204)


def _change(call: Call, pool: Pool, spec: Json) -> None:
    """Change a pool. A new start task reaches nodes when they reboot (docs)."""
    pools.require_active(pool)
    spec = {name: value for name, value in spec.items() if name not in _FIXED}
    spec |= {name: pool.spec[name] for name in _FIXED if name in pool.spec}
    pool_rules.check_pool(spec)
    if any(spec.get(name) != pool.spec.get(name) for name in _MACHINE_PROPERTIES):
        machine_rules.check_machine(spec, call.emulator.account.limits.machines, new=False)
    if spec.get(_PACKAGES) != pool.spec.get(_PACKAGES):
        call.emulator.applications.check(parts(spec, _PACKAGES))
    call.emulator.check_certificates(spec)
    for name in _FIXED_WITH_NODES:
        if pool.nodes and spec.get(name) != pool.spec.get(name):
            reason = "it can be changed only while the pool has no nodes"
            raise Fault("OperationInvalidForCurrentState", {"PropertyName": name, "Reason": reason})
    pool.spec = spec
    pool.slots_per_node = int(spec.get("taskSlotsPerNode", 1))
    pool.pack = part(spec, "taskSchedulingPolicy").get("nodeFillType") == "pack"
    touch(call.emulator.account, pool, call.now)


delete = deletion(Call.pool, pools.delete)


def resize(call: Call) -> Reply:
    """Pool_Resize."""
    body = call.json()
    pool_rules.check_targets(body)
    targets = ("targetDedicatedNodes", "targetLowPriorityNodes")
    if not any(name in body for name in targets):  # the name is the service's
        raise Fault("MissingRequiredProperty", {"PropertyName": " and/or ".join(targets)})
    pool = call.checked(call.pool())
    if pools.grows(pool, body) and (trouble := call.emulator.trouble) is not None:
        raise no_room(trouble)
    pools.resize(call.emulator.account, pool, body, call.now)
    return call.changed(pool, 202)


def remove_nodes(call: Call) -> Reply:
    """Pool_RemoveNodes."""
    body = call.json()
    pool_rules.check_targets(body)
    pool = call.checked(call.pool())
    pools.remove_nodes(call.emulator.account, pool, body, call.now)
    return call.changed(pool, 202)


stop_resize = transition(Call.pool, pools.stop_resize, 202)


async def node_counts(call: Call) -> Reply:
    """Account_ListPoolNodeCounts."""
    fetch = odata.from_entities(call.emulator.account.pools, render.node_counts)
    return await call.listing(odata.NODE_COUNT_FIELDS, fetch, default=NODE_COUNTS_PAGE)


async def supported_images(call: Call) -> Reply:
    """Account_ListSupportedImages: those of an account in Batch service mode."""
    listed = (image for image in machine_rules.supported_images() if image.listed)
    rendered = ((f"{row:04}", _image_view(image)) for row, image in enumerate(listed))
    return await call.listing(odata.IMAGE_FIELDS, odata.from_sorted(rendered))


def _image_view(image: SupportedImage) -> Json:
    body: Json = {
        "imageReference": {
            "publisher": image.publisher,
            "offer": image.offer,
            "sku": image.sku,
            "version": "latest",
        },
        "verificationType": image.verification,
        "nodeAgentSKUId": image.agent,
        "osType": image.os,
    }
    if image.capabilities:
        body["capabilities"] = list(image.capabilities)
    return body


async def node_agent_skus(call: Call) -> Reply:
    """Account_ListNodeAgentSkus, which clients before 2019-06-01 have: verified images by agent."""
    agents: dict[str, list[SupportedImage]] = {}
    for image in machine_rules.supported_images():
        if image.listed and image.verification == "verified":
            agents.setdefault(image.agent, []).append(image)
    rendered = ((agent, _agent_view(agent, found)) for agent, found in sorted(agents.items()))
    return await call.listing(odata.AGENT_FIELDS, odata.from_sorted(rendered))


def _agent_view(agent: str, images: list[SupportedImage]) -> Json:
    return {
        "id": agent,
        "verifiedImageReferences": [_image_view(image)["imageReference"] for image in images],
        "osType": images[0].os,
    }


def enable_autoscale(call: Call) -> Reply:
    """Pool_EnableAutoScale: checks settings before the pool's state, as the service does."""
    body = call.json()
    check_scaling(body)
    pool = call.checked(call.pool())
    autoscale.enable(call.emulator.account, pool, body, call.now)
    return call.changed(pool, 200)


def disable_autoscale(call: Call) -> Reply:
    """Pool_DisableAutoScale."""
    pool = call.pool()
    autoscale.disable(call.emulator.account, pool)
    return call.changed(pool, 200)


def evaluate_autoscale(call: Call) -> Reply:
    """Pool_EvaluateAutoScale: 200 also when the evaluation fails (seen on the service)."""
    body = call.json()
    require(body, "autoScaleFormula")
    pool = call.pool()
    account, text = call.emulator.account, body["autoScaleFormula"]
    check_formula(text)
    run = autoscale.preview(account, pool, text, call.now)
    return call.entity(run, call.data_service_id())  # without an ETag, as recorded


# docs: startTime is at least two and a half hours ago, endTime at least two
_DEFAULT_AGES = {"starttime": timedelta(hours=2, minutes=30), "endtime": timedelta(hours=2)}


async def list_usage_metrics(call: Call) -> Reply:
    """Pool_ListUsageMetrics: without times, of the last interval available (docs)."""
    last = metering.interval_of(call.now - _DEFAULT_AGES["endtime"])
    end = _usage_time(call, "endtime") or last
    start = _usage_time(call, "starttime") or metering.interval_of(end) - metering.INTERVAL
    if end < start:
        raise bad_query("endtime", time_text(end), f"not before startTime {time_text(start)}")
    found = metering.report_usage(
        call.emulator.account, metering.interval_of(start), min(end, last)
    )
    rendered = sorted((_usage_view(*item) for item in found.items()), key=lambda one: one[0])
    reply = await call.listing(odata.USAGE_FIELDS, odata.from_sorted(rendered))
    if reply.body is not None and "odata.nextLink" in reply.body:
        asked = f"&starttime={quote(time_text(start))}&endtime={quote(time_text(end))}"
        reply.body["odata.nextLink"] += asked  # clients follow the link as it is
    return reply


def _usage_time(call: Call, name: str) -> datetime | None:
    given = {key.lower(): value for key, value in call.query.items()}
    text = given.get(name)
    if text is None:
        return None
    try:
        moment = parse_time(text)
    except (ValueError, OverflowError) as err:
        raise bad_query(name, text, "an ISO 8601 time is expected") from err
    latest = call.now - _DEFAULT_AGES[name]
    if moment > latest:
        values = {
            "QueryParameterName": name,
            "QueryParameterValue": text[:64],
            "Reason": f"not after {time_text(latest)}",
        }
        raise Fault("OutOfRangeQueryParameterValue", values)
    return moment


def _usage_view(key: tuple[str, str, datetime], node_s: float) -> tuple[str, Json]:
    pool_id, vm_size, start = key
    body: Json = {
        "poolId": pool_id,
        "startTime": time_text(start),
        "endTime": time_text(start + metering.INTERVAL),
        "vmSize": vm_size.lower(),
        "totalCoreHours": round(node_s / 3600 * cores_of(vm_size), 6),
    }
    # keys must be unique: an earlier pool may have had the same id in another case
    return f"{time_text(start)} {pool_id.lower()} {vm_size.lower()} {pool_id} {vm_size}", body

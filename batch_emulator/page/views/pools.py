"""Pools: the list, and one pool with its formula, errors and nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batch_emulator.domain.model import Json
from batch_emulator.page import actions
from batch_emulator.page.layout import (
    PageRequest,
    PageView,
    buttons,
    choice,
    command,
    empty_state,
    errors,
    facts,
    filters,
    next_page,
    section,
    table,
    tree,
)
from batch_emulator.page.markup import Child, Markup, badge, el, join, moment, url
from batch_emulator.page.views.timeline import timeline_of

POOLS = ("Pools", "/")
_POOLS_OF_A_PAGE = "100"
_MOST_NODES = 500
_NODE_STATES = (
    "creating", "starting", "waitingforstarttask", "starttaskfailed", "idle", "running",
    "rebooting", "reimaging", "offline", "unusable", "unknown", "preempted", "leavingpool",
)  # fmt: skip


async def pools(ask: PageRequest) -> PageView:
    """Return the list of pools, with their nodes by state."""
    query = {"maxresults": _POOLS_OF_A_PAGE, "$skiptoken": ask.query.get("next")}
    answer = await ask.client.read("pools", **query)
    # both lists have the order of the ids, so that they have the same pools after the same link
    counts = await ask.client.read("nodecounts", **query)
    counted = {each["poolId"]: each for each in counts["value"]}
    rows = [
        (
            el("a", pool["id"], href=url("pools", pool["id"])),
            _pool_state(pool),
            str(pool.get("vmSize", "")),
            _of(pool, "Dedicated"),
            _of(pool, "LowPriority"),
            str(pool.get("taskSlotsPerNode", 1)),
            _by_state(counted.get(pool["id"], {})),
            _scaling(pool),
            _trouble(pool),
        )
        for pool in answer["value"]
    ]
    columns = (
        "Pool", "State", "VM size", "Dedicated#", "Spot#", "Slots#", "Nodes", "Scaling", "Errors",
    )  # fmt: skip
    shown = table("Pools", columns, rows, empty=_no_pools(ask))
    return PageView("Pools", join([shown, next_page(answer, "/")]))


def _no_pools(ask: PageRequest) -> Markup:
    settings = ask.emulator.settings
    create = (
        "az batch pool create --id mine --vm-size standard_d2s_v3 --target-dedicated-nodes 1 \\\n"
        "  --image canonical:ubuntu-24_04-lts:server "
        "--node-agent-sku-id 'batch.node.ubuntu 24.04'" + actions.connection(settings)
    )
    client = (
        "from azure.batch import BatchClient\n"
        "from azure.core.credentials import AzureNamedKeyCredential\n\n"
        f'credential = AzureNamedKeyCredential("{settings.account}", '
        'os.environ["BATCH_EMULATOR_KEY"])\n'
        f'client = BatchClient("{settings.url}", credential)'
    )
    return empty_state("There are no pools. Create one, or connect the SDK:", create, client)


def _pool_state(pool: Json) -> Markup:
    allocation = pool.get("allocationState", "steady")
    shown = badge(pool["state"]) if pool["state"] != "active" or allocation == "steady" else None
    return join([shown, badge(allocation) if allocation != "steady" else None])


def _of(pool: Json, kind: str) -> str:
    return f"{pool[f'current{kind}Nodes']} of {pool[f'target{kind}Nodes']}"


def _by_state(counts: Json) -> Child:
    found: Counter[str] = Counter()
    for kind in ("dedicated", "lowPriority"):
        found.update({name: n for name, n in counts.get(kind, {}).items() if name != "total"})
    return [el("span", badge(name), f" {n} ", class_="count") for name, n in found.items() if n]


def _scaling(pool: Json) -> Child:
    if not pool.get("enableAutoScale"):
        return "fixed"
    failed = pool.get("autoScaleRun", {}).get("error")
    return ["formula ", badge("failed", "bad") if failed else None]


def _trouble(pool: Json) -> Child:
    return ", ".join(str(error.get("code")) for error in pool.get("resizeErrors", ()))


async def pool(ask: PageRequest) -> PageView:
    """Return one pool."""
    pool_id = ask.steps[0]
    found = await ask.client.read("pools", pool_id)
    content = [
        _pool_actions(ask, found),
        facts(
            [
                ("State", _pool_state(found)),
                ("VM size", found.get("vmSize")),
                ("Dedicated nodes", _of(found, "Dedicated")),
                ("Spot nodes", _of(found, "LowPriority")),
                ("Slots of a node", str(found.get("taskSlotsPerNode", 1))),
                ("Created", moment(found.get("creationTime"))),
                ("Allocation since", moment(found.get("allocationStateTransitionTime"))),
                ("Name", found.get("displayName")),
            ]
        ),
        section("Resize errors", errors(found["resizeErrors"]))
        if "resizeErrors" in found
        else None,
        _formula(found) if found.get("enableAutoScale") else None,
        await _nodes(ask, found["id"]),
        section("Nodes and time", timeline_of(ask, found["id"])),
        _definition(ask, found),
    ]
    return PageView(f"Pool {found['id']}", join(content), (POOLS,), is_moving=True)


def _pool_actions(ask: PageRequest, pool: Json) -> Markup:
    names = {"pool": pool["id"]}
    scaled = bool(pool.get("enableAutoScale"))
    targets = {
        "targetDedicatedNodes": str(pool["targetDedicatedNodes"]),
        "targetLowPriorityNodes": str(pool["targetLowPriorityNodes"]),
    }
    formula = {"autoScaleFormula": pool.get("autoScaleFormula", "$TargetDedicatedNodes = 1;")}
    return buttons(
        None if scaled else actions.link(ask, "resize", **names, **targets),
        actions.link(ask, "stop-resize", **names)
        if pool.get("allocationState") == "resizing"
        else None,
        actions.link(ask, "enable-autoscale", **names, **formula),
        actions.link(ask, "disable-autoscale", **names) if scaled else None,
        actions.link(ask, "evict-some", **names) if pool["currentLowPriorityNodes"] else None,
        actions.link(ask, "resize-error", **names),
        actions.link(ask, "delete-pool", **names, back="/"),
    )


def _formula(pool: Json) -> Markup:
    run: dict[str, Any] = pool.get("autoScaleRun", {})
    results = [part.partition("=") for part in str(run.get("results", "")).split(";") if part]
    return section(
        "Formula",
        command(str(pool.get("autoScaleFormula", ""))),
        facts(
            [
                ("Evaluated every", pool.get("autoScaleEvaluationInterval")),
                ("Last evaluation", moment(run.get("timestamp"))),
                *((name, value) for name, _, value in results),
            ]
        ),
        errors([run["error"]]) if "error" in run else None,
    )


async def _nodes(ask: PageRequest, pool_id: str) -> Markup:
    state = ask.query.get("state", "")
    only = f"state eq '{state}'" if state in _NODE_STATES else None
    answer = await ask.client.read(
        "pools", pool_id, "nodes", **{"$filter": only, "maxresults": str(_MOST_NODES)}
    )
    listed = await ask.client.read_admin("pools", pool_id, "nodes")
    evictable = {each["nodeId"] for each in listed["value"] if each["evictable"]}
    rows = [
        (
            el("a", node["id"], href=url("nodes", pool_id, node["id"])),
            badge(node["state"]),
            "dedicated" if node.get("isDedicated") else "spot",
            moment(node.get("stateTransitionTime")),
            f"{node.get('runningTasksCount', 0)}",
            f"{node.get('totalTasksRun', 0)}",
            ", ".join(str(error.get("code")) for error in node.get("errors", ())),
            [
                actions.link(ask, "evict", pool=pool_id, node=node["id"])
                if node["id"] in evictable
                else None,
                actions.link(ask, "reboot", pool=pool_id, node=node["id"]),
            ],
        )
        for node in answer["value"]
    ]
    columns = (
        "Node", "State", "Kind", "Since", "Running#", "Tasks so far#", "Errors", "Actions",
    )  # fmt: skip
    states = [("", "every state"), *((each, each) for each in _NODE_STATES)]
    more = "odata.nextLink" in answer
    return section(
        "Nodes",
        filters(url("pools", pool_id), choice("State", "state", states, state)),
        table("Nodes", columns, rows, empty="no nodes" if not only else f"no node is {state}"),
        el("p", f"The first {_MOST_NODES} nodes; choose a state to see others.") if more else None,
    )


def _definition(ask: PageRequest, pool: Json) -> Markup:
    shown = {name: value for name, value in pool.items() if name not in {"odata.metadata", "url"}}
    return el(
        "details",
        el("summary", "Everything that the service returns"),
        tree(ask.masks.document(shown)),
        data_id="definition",
    )

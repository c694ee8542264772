"""`runner pool` and `runner skus`: pools with their nodes, and VM sizes with their prices."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runner.cli.autocomplete import complete_pool
from runner.cli.options import Invocation, StackOption, YesOption, on_target, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption, local_time
from runner.contract import MOVER_POOL
from runner.core.home import runner_home
from runner.core.units import format_count
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runner.core.pricing.prices import Price
    from runner.flows.environment.pools import NodeStatus, PoolStatus
    from runner.flows.environment.skus import SkuRow


app = typer.Typer(help="Show pools and nodes; resize, drain and delete pools.")

_COLUMNS = (
    *("pool", "vm_size", "state", "spot", "dedicated", "slots", "running_tasks"),
    *("price", "usd_per_hour", "autoscale"),
)
_SPARE = ("slots", "state", "price", "dedicated", "vm_size")  # omitted first in a narrow terminal
_NO_TASKS = ("preempted", "unusable", "starttaskfailed", "offline", "unknown")  # states of nodes
_NODE_COLUMNS = ("node", "state", "spot", "running_tasks", "tasks_run", "since", "use", "problem")


PoolArgument = Annotated[
    str, typer.Argument(metavar="POOL", help="ID of the pool.", autocompletion=complete_pool)
]


@app.command("ls")
@on_target
def list_(call: Invocation) -> None:
    """List pools with nodes, tasks, price and current cost."""
    from runner.flows.environment.pools import pool_list
    from runner.views.pools import pool_document

    out = call.out
    as_text = out.as_text
    settings = call.settings()
    found = pool_list(settings)
    rows = [_text_row(each) if as_text else {**pool_document(each)} for each in found]
    out.rows(
        rows,
        _COLUMNS if as_text else tuple(rows[0]) if rows else (),
        empty="no pools",
        spare=_SPARE,
    )
    if as_text and any(each.usd_per_hour is None for each in found):
        out.note("to load unknown prices: runner skus --refresh --region REGION", style="dim")
    by_default = not settings.target.has_stacks and settings.origins["target"] == "built-in"
    if as_text and by_default and Path(f"Pulumi.{settings.stack}.yaml").is_file():
        # The user may have expected the pools of the stack in this folder.
        out.note(
            f"these pools are local; for those of stack {settings.stack!r}: "
            "runner pool ls --target azure"
        )


@app.command()
@on_target
def show(call: Invocation, pool: PoolArgument) -> None:
    """Show a pool: size, nodes, formula and its last evaluation, image, mounts, cost."""
    from runner.flows.environment.pools import pool_status
    from runner.views.pools import pool_document

    out = call.out
    found = pool_status(call.settings(), pool)
    if out.document({**pool_document(found)}):
        return
    view = found.pool
    spot, dedicated = (found.states.get(kind, {}) for kind in (True, False))
    record = {
        **_text_row(found),
        "spot": _nodes(view.spot, view.spot_target, spot, healthy=True),
        "dedicated": _nodes(view.dedicated, view.dedicated_target, dedicated, healthy=True),
        "allocation": view.allocation,
        "image": view.image,
    }
    record |= {"node_agent": view.node_agent, "mounts": ", ".join(view.mounts) or "none"}
    for trouble in view.resize_errors:
        record["resize_error"] = f"{trouble.code}: {trouble.message}"
    out.record(record)
    if view.autoscale is not None:
        from runner.core.units import format_duration

        out.text(f"formula        every {format_duration(view.autoscale.interval_s)}")
        for line in view.autoscale.formula.strip().splitlines():
            out.text(f"  {line}")


@app.command()
@on_target
def nodes(call: Invocation, pool: PoolArgument) -> None:
    """List the nodes of a pool, with the problems of unusable ones."""
    from runner.flows.environment.pools import pool_nodes

    out = call.out
    found = pool_nodes(call.settings(), pool)
    rows = [_node_row(each, as_text=out.as_text) for each in found]
    columns = _NODE_COLUMNS if out.as_text else (*_NODE_COLUMNS, "log")
    if out.as_text and not any(each.use for each in found):
        columns = tuple(name for name in columns if name != "use")
    out.rows(rows, columns, empty="the pool has no nodes", spare=("tasks_run", "since"))
    if out.as_text:
        for each in found:
            if each.log:
                out.note(f"last output of the start task on {each.node.id}:", style="bold")
                for line in each.log:
                    out.note(f"  {line}")


@app.command()
@on_target
def fallback(
    call: Invocation,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION|never",
            help="Let a task of the account do this at an interval, without a client, or end that.",
        ),
    ] = None,
) -> None:
    """Move the runs that are due to their next pools, once or at an interval."""
    from runner.flows.runs.moving.fallback import complete_moves

    out = call.out
    if every is not None:
        _schedule_mover(call, every)
        return
    found = complete_moves(call.settings())
    if not out.document(found.to_json()):
        for line in found.moved:
            out.text(line)
        if not (found.moved or found.blocked or found.moving):
            out.note("no run is due to move")
        for line in (*found.blocked, *(f"still moving: {run}" for run in found.moving)):
            out.note(line)
        for line in found.problems:
            out.warning(line)
    if found.problems:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _schedule_mover(call: Invocation, every: str) -> None:
    from runner.core.units import format_duration, parse_duration_flag
    from runner.flows.runs.moving.mover import start_mover, stop_mover

    out, settings = call.out, call.settings()
    if every == "never":
        ended = stop_mover(settings)
        if not out.document({"every_s": None, "mover": "ended" if ended else "none"}):
            out.note("no task moves runs any more" if ended else "there was no such task")
        return
    interval = parse_duration_flag("every", every, "1m", "24h")
    happened = start_mover(settings, interval)
    if not out.document({"every_s": interval.total_seconds(), "mover": happened}):
        out.note(f"a task in pool {MOVER_POOL} moves runs every {format_duration(interval)}")
        out.note("to end that: runner pool fallback --every never", style="dim")


NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="ID of the node.")]


@app.command()
@on_target
def disable(call: Invocation, pool: PoolArgument, node: NodeArgument) -> None:
    """Disable scheduling on a node: it gets no more tasks, and still costs money."""
    _schedule(call, pool, node, enabled=False)


@app.command()
@on_target
def enable(
    call: Invocation,
    pool: PoolArgument,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="ID of the node.", show_default="all nodes")
    ] = None,
) -> None:
    """Enable scheduling on one or all nodes, and continue the runs that a drain paused."""
    if node is not None:
        _schedule(call, pool, node, enabled=True)
        return
    from runner.flows.sweeps.moves import end_drain

    out = call.out
    jobs, nodes = end_drain(call.connect(), pool)
    if out.document({"pool": pool, "nodes": nodes, "jobs": [each.to_json() for each in jobs]}):
        return
    out.note(f"tasks are assigned again to {format_count(len(nodes), 'node')} of pool {pool}")
    if runs := sum(each.runs for each in jobs):
        out.note(f"continued {format_count(runs, 'paused run')}")


@app.command()
@on_target
def drain(
    call: Invocation,
    pool: PoolArgument,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="POOL",
            help="Move the unfinished runs to this pool.",
            show_default="pause them until the pool is enabled",
        ),
    ] = None,
    running: Annotated[
        Literal["requeue", "wait", "terminate"] | None,
        typer.Option(
            help="Requeue running runs, wait for them, or end them. Requeued ones resume.",
            show_default="requeue with --to, else wait",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also move to a pool that runner has not prepared.")
    ] = False,
) -> None:
    """Disable scheduling on the nodes of a pool, and move or pause its runs."""
    from runner.flows.sweeps.moves import drain_pool, plan_drain

    out = call.out
    connection = call.connect()
    note, jobs, target = plan_drain(connection, pool, to, force=force)
    how = running or ("wait" if target is None else "requeue")
    try:
        with out.stages() as view:
            done = drain_pool(connection, note, jobs, target, how, view.on_progress)
    except KeyboardInterrupt:
        again = f"runner pool drain {note.name}" + (f" --to {note.to}" if note.to else "")
        out.note(f"interrupted; to continue it: {again}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if out.document(
        {
            "pool": note.name,
            "to": note.to or None,
            "jobs": [each.to_json() for each in done.jobs],
            "nodes": list(done.nodes),
            "left_alone": list(done.foreign),
        }
    ):
        return
    runs = sum(each.runs for each in done.jobs)
    what = f"moved to pool {note.to}" if note.to else "paused"
    out.note(
        f"{format_count(runs, 'unfinished run')} {what}; "
        f"disabled scheduling on {format_count(len(done.nodes), 'node')}"
    )
    for job_id in done.foreign:
        out.warning(f"job {job_id} has tasks that are not runs; its queued tasks wait in the pool")
    if call.settings().target.is_billed:
        resize = f"`runner pool resize {note.name} 0`"
        out.note(f"its nodes cost money until its formula removes them, or {resize} does")
    out.note(f"to use it again: runner pool enable {note.name}")


def _schedule(call: Invocation, pool: str, node: str, *, enabled: bool) -> None:
    from runner.flows.environment.pools import schedule_on_node

    out = call.out
    changed = schedule_on_node(call.settings(), pool, node, enabled=enabled)
    if out.document({"pool": pool, "node": node, "enabled": enabled, "changed": changed}):
        return
    done = "takes tasks" if enabled else "gets no more tasks"
    out.note(f"node {node} {done}" + ("" if changed else "; nothing was changed"))
    if not enabled:
        out.note(f"to use it again: runner pool enable {pool} {node}")


@app.command()
@on_target
def resize(
    call: Invocation,
    pool: PoolArgument,
    spot: Annotated[
        int | None,
        typer.Argument(metavar="SPOT", help="Number of spot nodes.", show_default="unchanged"),
    ] = None,
    dedicated: Annotated[
        int | None, typer.Option(help="Number of dedicated nodes.", show_default="unchanged")
    ] = None,
    disable_autoscale: Annotated[
        bool, typer.Option("--disable-autoscale", help="Remove the pool's autoscale formula.")
    ] = False,
) -> None:
    """Set the number of nodes of a pool without a formula. Removed nodes finish their tasks."""
    from runner.flows.environment.pools import resize as resize_flow

    out = call.out
    done = resize_flow(
        call.settings(),
        pool,
        spot=spot,
        dedicated=dedicated,
        without_formula=disable_autoscale,
    )
    before = done.before
    cost = "unknown" if done.usd_per_hour is None else f"{done.usd_per_hour:.3f}"
    if out.document(
        {
            "pool": before.id,
            "spot_target": done.spot,
            "dedicated_target": done.dedicated,
            "spot_target_before": before.spot_target,
            "dedicated_target_before": before.dedicated_target,
            "usd_per_hour": done.usd_per_hour,
            "formula_removed": before.autoscale is not None,
        }
    ):
        return
    out.note(
        f"pool {before.id}: {before.spot_target} to {done.spot} spot, "
        f"{before.dedicated_target} to {done.dedicated} dedicated nodes; USD per hour then: {cost}"
    )
    if before.autoscale is not None:
        restore = "; `runner up` restores it" if call.settings().target.has_stacks else ""
        out.warning(f"removed the formula: the pool no longer scales to zero{restore}")
    out.note(f"to show it: runner pool show {before.id}")


@app.command()
@on_target
def rm(
    call: Invocation,
    pool: PoolArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete a pool that no stack declares, with its nodes.

    Refuses while unfinished runs or schedules need the pool.
    """
    from runner.flows.environment.pools import plan_pool_removal, remove_pool

    out, settings = call.out, call.settings()
    plan = plan_pool_removal(settings, pool)
    view = plan.pool
    nodes = view.spot + view.dedicated
    what = f"pool {view.id} ({view.vm_size}) and its {format_count(nodes, 'node')}"
    if not dry_run:
        again = shlex.join(["runner", "pool", "rm", view.id, *call.target_words, "--yes"])
        out.confirm_deletion(f"Delete {what}?", yes=yes, again=again)
        remove_pool(settings, plan)
    if not out.as_text:
        row = {"pool": view.id, "vm_size": view.vm_size, "nodes": nodes, "deleted": not dry_run}
        out.record({**row, "created_again_by": plan.recreated_by or None})
        return
    out.note(f"dry run: {what} would be deleted" if dry_run else f"deleting {what}")
    if plan.recreated_by:
        out.note(f"{plan.recreated_by} creates it again")


def _text_row(found: PoolStatus) -> dict[str, Any]:
    from runner.views.pools import evaluation_text

    view = found.pool
    cost = found.usd_per_hour
    state = view.state if view.allocation == "steady" else f"{view.state}, {view.allocation}"
    if view.resize_errors:
        state += f", {view.resize_errors[0].code}"
    return {
        "pool": view.id,
        "vm_size": view.vm_size,
        "state": state,
        "spot": _nodes(view.spot, view.spot_target, found.states.get(True, {})),
        "dedicated": _nodes(view.dedicated, view.dedicated_target, found.states.get(False, {})),
        "slots": view.slots,
        "running_tasks": found.running_tasks,
        "price": _price(found),
        "usd_per_hour": "unknown" if cost is None else f"{cost:.3f}",
        "autoscale": evaluation_text(view.autoscale),
    }


def _nodes(current: int, target: int, states: Mapping[str, int], *, healthy: bool = False) -> str:
    """Return `2 of 4`, and counts by state; without `healthy`, only of nodes without tasks."""
    noted = [f", {count} {name}" for name, count in states.items() if healthy or name in _NO_TASKS]
    return f"{current} of {target}{''.join(noted)}"


def _price(found: PoolStatus) -> str:
    """Return the prices of the kinds of nodes that the pool has or targets, else the spot price."""

    if not found.is_billed:
        return "free"
    view = found.pool
    kinds: list[str] = []
    if view.spot + view.spot_target or not view.dedicated + view.dedicated_target:
        kinds.append(f"spot {price_text(found.spot_price)}")
    if view.dedicated + view.dedicated_target:
        kinds.append(f"dedicated {price_text(found.dedicated_price)}")
    return ", ".join(kinds)


def _node_row(found: NodeStatus, *, as_text: bool) -> dict[str, Any]:
    from runner.views.pools import node_document

    row: dict[str, Any] = {**node_document(found)}
    if as_text:
        node = found.node
        since = local_time(node.since) if node.since else ""
        row |= {"spot": "yes" if node.spot else "no", "since": since}
    return row


_SKU_TEXT_COLUMNS = (
    *("vm_size", "gpu", "vcpus", "memory_gib", "region", "spot_usd", "usd", "useful_usd", "as_of"),
    *("quota", "restricted", "score", "evictions", "retired"),
)
_LIVE_COLUMNS = ("quota", "restricted", "score", "evictions")
_SKU_SPARE = ("retired", "memory_gib", "vcpus", "as_of", "usd", "gpu", *_LIVE_COLUMNS)
_SKU_COLUMNS = (
    *("vm_size", "gpu", "gpus", "gpu_memory_gib", "vcpus", "memory_gib", "driver", "family"),
    *("region", "spot_usd_per_hour", "spot_as_of", "usd_per_hour", "as_of"),
    *("useful_usd_per_hour", "quota_cores", "restriction", "placement_score"),
    *("evictions_percent_per_hour", "retired", "note"),
)


def skus(
    gpu: Annotated[str | None, typer.Option(help="Only sizes with this GPU: T4, A10, ...")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices.")] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Load current prices from Azure.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Ask Azure for quota, restrictions and spot capacity.")
    ] = False,
    subscription: Annotated[str | None, typer.Option(help="Azure subscription for --live.")] = None,
    all_: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help="Include retired sizes; with --refresh, load all regions."
        ),
    ] = False,
    pick: Annotated[
        bool,
        typer.Option("--pick", help="Write the cheapest size that is allowed into the stack."),
    ] = False,
    pool: Annotated[
        str | None, typer.Option(help="Pool of the stack for --pick.", show_default="the only pool")
    ] = None,
    stack: StackOption = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List VM sizes with GPU, prices and spot capacity, by the expected cost of useful work.

    Prices are for one Linux node per hour in USD. --refresh loads current prices of --region, or
    of all regions with --all, from the Azure Retail Prices API and stores them. --live needs a
    sign-in to Azure. --pick chooses a size for the spot nodes of a pool, by price, quota and
    restrictions in the region of the stack, and changes Pulumi.STACK.yaml after a confirmation.
    """
    from runner.core.pricing.machines import region_name
    from runner.flows.environment.skus import list_skus, load_facts, refresh_region

    out = Output(output)
    home, today = runner_home(os.environ), datetime.now(UTC).date()
    place = region_name(region) if region else None
    if refresh and all_ and place is None:
        _refresh_all(out, home, today)
    elif refresh:
        if place is not None:
            out.note(f"loading the prices of {place} from the Azure Retail Prices API", style="dim")
        count = refresh_region(home, place, os.environ, today=today)
        out.note(f"{count} prices of {place} from {today}")
    if pool is not None and not pick:
        raise RunnerError(
            "R-FLAG-VALUE",
            "--pool requires --pick",
            why="without it, no pool is concerned",
            fix=f"runner skus --pick --pool {shlex.quote(pool)}",
        )
    if pick:
        _pick(out, stack, pool, place, gpu=gpu, subscription=subscription, yes=yes)
        return
    retired = all_ and not (refresh and place is None)
    rows = list_skus(home, gpu=gpu, region=place, include_retired=retired, today=today)
    if live:
        rows, problems = load_facts(rows, subscription, os.environ)
        for problem in problems:
            out.warning(f"unknown {problem}")
    as_text = output is OutputFormat.TABLE
    shown = [_sku_text_row(row) if as_text else _sku_row(row) for row in rows]
    if not as_text:
        out.rows(shown, _SKU_COLUMNS)
        return
    names = [name for name in _SKU_TEXT_COLUMNS if live or name not in _LIVE_COLUMNS]
    columns = tuple(name for name in names if any(row[name] for row in shown))
    out.rows(shown, columns, spare=_SKU_SPARE, empty="no VM size matches")
    out.note("USD per node and hour, Linux; * older than 90 days", style="dim")
    out.note("AS OF: the date of the spot price; without one, of the other price", style="dim")
    out.note(
        "USEFUL USD: the cheaper of a dedicated node and a spot node with its evictions",
        style="dim",
    )
    for text, sizes in _noted_sizes(rows).items():
        out.note(f"{text}: {', '.join(sizes)}", style="dim")
    unknown = sum(row.spot is None for row in rows if row.machine.gpu)
    if unknown:
        out.note(
            f"unknown spot prices: {unknown}; to load those of all regions: "
            "runner skus --refresh --all",
            style="dim",
        )


def _noted_sizes(rows: Sequence[SkuRow]) -> dict[str, list[str]]:
    """Return the sizes of each note, once each."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.machine.note:
            sizes = found.setdefault(row.machine.note, [])
            sizes += [] if row.machine.vm_size in sizes else [row.machine.vm_size]
    return found


def _refresh_all(out: Output, home: Path, today: date) -> None:
    """Load the prices of all regions, with a line for each."""
    from runner.core.pricing.machines import REGIONS
    from runner.flows.environment.skus import refresh_all

    out.note("loading the prices of all regions from the Azure Retail Prices API", style="dim")
    prices = regions = 0
    for number, each in enumerate(refresh_all(home, os.environ, today=today), 1):
        if each.problem is not None:
            what = f"not loaded: {each.problem.why}"
        elif not each.prices:
            what = "no prices"
        else:
            earlier = "" if each.is_new else ", loaded earlier today"
            what = f"{format_count(each.prices, 'price')}{earlier}"
        out.note(f"{number:>3} of {len(REGIONS)}  {each.name}: {what}", style="dim")
        prices += each.prices
        regions += each.prices > 0
    out.note(f"{format_count(prices, 'price')} of {format_count(regions, 'region')} from {today}")


def _pick(
    out: Output,
    stack: str | None,
    pool: str | None,
    place: str | None,
    *,
    gpu: str | None,
    subscription: str | None,
    yes: bool,
) -> None:
    """Show the cheapest size that is allowed, and write it after a confirmation."""
    from runner.flows.environment.size_choice import choose_size, refused_lines, write_choice

    settings, today = open_settings("azure", stack), datetime.now(UTC).date()
    choice = choose_size(
        settings,
        pool,
        cwd=Path.cwd(),
        env=os.environ,
        today=today,
        gpu=gpu,
        region=place,
        subscription_id=subscription,
    )
    row = choice.row
    for problem in choice.problems:
        out.warning(f"unknown {problem}")
    for line in refused_lines(choice):
        out.note(f"not allowed: {line}", style="dim")
    changed = choice.before != choice.after
    name = f"{choice.file.name}, line {choice.line}"
    if out.as_text:
        price = row.spot
        usd = f"{price.usd_per_hour:.3f} USD on {price.as_of}" if price else "unknown"
        nodes = f"{choice.quota_nodes} of {choice.max_spot} spot nodes"
        out.text(f"{row.machine.vm_size} in {row.region}: spot {usd}, the quota allows {nodes}")
        if changed:
            out.text(f"{name}, pool {choice.pool_id}:")
            out.text(f"- vm_size: {choice.old_size}")
            out.text(f"+ vm_size: {row.machine.vm_size}")
        else:
            out.text(f"{name}, pool {choice.pool_id} has this size already")
    if choice.quota_nodes < choice.max_spot:
        out.warning(
            f"max_spot of pool {choice.pool_id} is {choice.max_spot}, and the quota of "
            f"{row.facts.quota_cores} cores allows {choice.quota_nodes}"
        )
    if changed:
        out.require(
            f"Write {choice.file.name}?", "R-NOT-CONFIRMED", "the file was not changed", yes=yes,
            fix="runner skus --pick --yes",
        )  # fmt: skip
        write_choice(choice, os.environ)
        out.note("written; to deploy it: runner up")
    if not out.as_text:
        record = {"file": str(choice.file), "pool": choice.pool_id, "changed": changed}
        out.record(
            record
            | {"replaced": choice.old_size, "quota_nodes": choice.quota_nodes}
            | _sku_row(row)
        )


def _sku_row(row: SkuRow) -> dict[str, Any]:
    found = row.machine
    return {
        "vm_size": found.vm_size,
        "gpu": found.gpu,
        "gpus": found.gpus,
        "gpu_memory_gib": found.gpu_memory_gib,
        "vcpus": found.vcpus,
        "memory_gib": found.memory_gib,
        "driver": found.driver,
        "family": found.family or None,
        "region": row.region,
        "spot_usd_per_hour": row.spot.usd_per_hour if row.spot else None,
        "spot_as_of": row.spot.as_of.isoformat() if row.spot else None,
        "spot_source": row.spot.source if row.spot else None,
        "usd_per_hour": row.dedicated.usd_per_hour if row.dedicated else None,
        "as_of": row.dedicated.as_of.isoformat() if row.dedicated else None,
        "source": row.dedicated.source if row.dedicated else None,
        "useful_usd_per_hour": row.useful_usd_per_hour,
        "quota_cores": row.facts.quota_cores,
        "restriction": row.facts.restriction,
        "placement_score": row.facts.score,
        "evictions_percent_per_hour": row.facts.evictions,
        "spot_price_history": [
            {"since": since, "usd_per_hour": usd} for since, usd in row.facts.history
        ],
        "retired": found.retired.isoformat() if found.retired else None,
        "successor": found.successor,
        "note": found.note or None,
    }


def _sku_text_row(row: SkuRow) -> dict[str, Any]:
    found = row.machine
    useful = row.useful_usd_per_hour
    gpu = f"{found.gpus} x {found.gpu} {found.gpu_memory_gib:g} GiB" if found.gpu else ""
    dated = row.spot or row.dedicated
    return {
        "vm_size": found.vm_size,
        "gpu": gpu,
        "vcpus": found.vcpus,
        "memory_gib": f"{found.memory_gib:g}",
        "region": row.region or "",
        "as_of": dated.as_of.isoformat() if dated else "",
        "spot_usd": price_text(row.spot),
        "usd": price_text(row.dedicated),
        "useful_usd": "unknown" if useful is None else f"{useful:.3f}",
        "quota": _text_or_unknown(row.facts.quota_cores),
        "restricted": _text_or_unknown(row.facts.restriction) or "no",
        "score": _text_or_unknown(row.facts.score),
        "evictions": _text_or_unknown(row.facts.evictions and f"{row.facts.evictions} %"),
        "retired": found.retired.isoformat() if found.retired else "",
    }


def _text_or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def price_text(price: Price | None) -> str:
    """Return `0.209`, with a star if the price is older than 90 days, or `unknown`."""
    if price is None:
        return "unknown"
    old = (datetime.now(UTC).date() - price.as_of).days > 90
    return f"{price.usd_per_hour:.3f}{'*' if old else ''}"

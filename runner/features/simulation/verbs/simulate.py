"""`runner pool autoscale simulate`: cost, waiting times, evictions and idle nodes of formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import Invocation, on_target
from runner.core.units import format_count, format_duration
from runner.features.simulation.verbs.options import (
    FormulasArgument,
    IntervalOption,
    ScenarioOptions,
    price_line,
    seconds,
    show_problems,
    span,
    with_scenario,
)
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.cli.ui.output import Output
    from runner.features.simulation.formulas import AssumedPool, Candidate
    from runner.features.simulation.result import SimulationResult
    from runner.features.simulation.scenario import Scenario


@on_target
@with_scenario("runner pool autoscale simulate")
def simulate(
    call: Invocation,
    given: ScenarioOptions,
    formulas: FormulasArgument = None,
    interval: IntervalOption = None,
    vm_size: Annotated[str | None, typer.Option(help="VM size, which decides the price.")] = None,
) -> None:
    """Simulate a pool with formulas: cost, waiting times, evictions and idle nodes.

    Nothing is created. The simulation follows the rules of the emulator, with the delays of Batch's
    samples; the same seed gives the same result. Each formula gets the same tasks.
    """
    from runner.features.simulation.formulas import simulate_all

    out = call.out
    assumed = given.assume(call, formulas, interval, vm_size)
    scenario = given.scenario(given.mtbf_s)
    results = simulate_all(assumed, scenario)
    if out.as_text:
        _show_simulation(out, assumed, scenario, results)
    else:
        rows = [_document(each, result, assumed) for each, result in results]
        out.rows(rows, tuple(rows[0]))
    given.draw(out, "Simulation of a pool", [(each.name, found) for each, found in results])


def _document(
    candidate: Candidate, result: SimulationResult, assumed: AssumedPool
) -> dict[str, Any]:
    cost = result.cost_micro(assumed.spot_usd, assumed.dedicated_usd)
    spot_ms, dedicated_ms = result.node_ms
    return {
        "formula": candidate.name,
        "cost_micro_usd": sum(cost.values()) if cost else None,
        "makespan_s": seconds(result.makespan_ms),
        **{f"wait_p{p}_s": seconds(result.wait_ms(p)) for p in (50, 90, 99)},
        "finished": result.finished,
        "unfinished": result.unfinished,
        "terminated": result.terminated,
        "evictions": result.evictions,
        "repeated": result.repeated,
        "spot_node_s": spot_ms / 1000,
        "dedicated_node_s": dedicated_ms / 1000,
        "left_nodes": result.left_nodes,
        "most_nodes": max((each.spot + each.dedicated for each in result.timeline), default=0),
        "spent": {
            name: {
                "node_s": sum(times) / result.slots_per_node / 1000,
                "cost_micro_usd": cost[name] if cost else None,
            }
            for name, times in result.spent_ms.items()
        },
        "evaluations": result.evaluations,
        "problems": [
            {"at_s": each.time_ms / 1000, "message": each.message, "count": each.count}
            for each in result.problems
        ],
    }


_SIMULATED = (
    *("formula", "cost", "makespan", "wait_p50", "wait_p90", "most_nodes", "node_hours"),
    *("useful", "lost", "idle", "boot", "setup", "evictions"),
)


def _show_simulation(
    out: Output,
    assumed: AssumedPool,
    scenario: Scenario,
    results: Sequence[tuple[Candidate, SimulationResult]],
) -> None:
    work = scenario.workload
    slots = format_count(assumed.slots, "slot")
    tasks = format_count(len(work), "task")
    out.note(
        f"{tasks}, {format_duration(work.slot_ms / 1000)} of work in all; {slots} per node; "
        f"evaluated every {format_duration(assumed.interval_s)}; {price_line(assumed)}",
        style="dim",
    )
    rows = [_text_row(each, result, assumed) for each, result in results]
    more = ("unfinished",) if any(result.unfinished for _, result in results) else ()
    out.rows(
        rows, (*_SIMULATED, *more), spare=("setup", "boot", "wait_p90", "node_hours", "most_nodes")
    )
    for candidate, result in results:
        if result.unfinished:
            out.warning(
                f"{candidate.name}: tasks that had not ended: {result.unfinished}, after "
                f"{span(result.ended_ms)}"
            )
        if result.terminated:
            out.warning(f"{candidate.name}: {result.terminated} tasks were ended with their node")
        if result.left_nodes and not result.unfinished:
            out.warning(
                f"{candidate.name}: nodes that were still there a day after the last task: "
                f"{result.left_nodes}"
            )
        show_problems(out, candidate.name, result.problems[:3])


def _text_row(
    candidate: Candidate, result: SimulationResult, assumed: AssumedPool
) -> dict[str, Any]:
    cost = result.cost_micro(assumed.spot_usd, assumed.dedicated_usd)
    total = sum(map(sum, result.spent_ms.values()))

    makespan = f"> {span(result.ended_ms)}" if result.unfinished else span(result.makespan_ms)

    shares = {
        name: f"{100 * sum(result.spent_ms[name]) / total:.1f} %" if total else "0 %"
        for name in ("useful", "lost", "idle", "boot", "setup")
    }
    return {
        "formula": candidate.name,
        "cost": format_usd(None if cost is None else sum(cost.values())),
        "makespan": makespan,
        "wait_p50": span(result.wait_ms(50)),
        "wait_p90": span(result.wait_ms(90)),
        "most_nodes": max((each.spot + each.dedicated for each in result.timeline), default=0),
        "node_hours": f"{sum(result.node_ms) / 3_600_000:.1f}",
        **shares,
        "evictions": result.evictions,
        "unfinished": result.unfinished,
    }

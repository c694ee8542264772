"""`runner cost whatif`: the costs of tasks with other formulas, VM sizes and policies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runner.cli.options import Invocation, on_target
from runner.core.units import format_duration
from runner.features.simulation.verbs.options import (
    ScenarioOptions,
    price_line,
    seconds,
    show_problems,
    span,
    to_ms,
    to_seconds,
    with_scenario,
)
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.cli.ui.output import Output
    from runner.features.simulation.what_if import (
        CheckpointInterval,
        Measured,
        Option,
        OptionComparison,
        PoolKind,
    )
    from runner.views.costs import OptionDocument, WhatIfDocument

Lifetime = Literal["exponential", "bathtub"]


@on_target
@with_scenario("runner cost whatif")
def whatif(
    call: Invocation,
    given: ScenarioOptions,
    formulas: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FORMULA|FILE",
            help="Formulas, or files with one each.",
            show_default="policies only",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Use the save time and the evictions of this run.")
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum number of nodes of a policy.")
    ] = 10,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Deadline of all tasks.",
            show_default="twice the time on dedicated nodes",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Number of simulations per option.")
    ] = 3,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Time between two decisions, at least 5m.")
    ] = "5m",
    lifetime: Annotated[
        Lifetime, typer.Option(help="Distribution of the time until an eviction, with --mtbf.")
    ] = "exponential",
    save: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time for which a checkpoint stops a task.",
            show_default="that of --run",
        ),
    ] = None,
    vm_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE[=SPEED]",
            help="VM size, which decides the price; SPEED is its relative speed; can be repeated.",
        ),
    ] = None,
) -> None:
    """Compare the costs and deadlines of tasks with formulas, VM sizes and policies.

    Nothing is created. The policies are on-demand (dedicated nodes), spot (spot nodes only),
    fallback (dedicated nodes for missing spot nodes), greedy (spot nodes as long as the deadline
    allows), uniform (Uniform Progress of "Can't Be Late", NSDI 2024) and forecast (dedicated nodes
    for the expected shortfall of spot nodes). REGRET is the cost above the offline optimum: the
    lowest cost by the deadline if all evictions were known before.
    """
    from runner.features.simulation.what_if import PoolKind, compare, recommend_interval

    out = call.out
    kinds: list[PoolKind] = []
    for name, speed in [_size(text) for text in vm_size or ()] or [(None, 1.0)]:
        assumed = given.assume(call, formulas, interval, name, formula_required=False)
        kinds.append(PoolKind(assumed, name or assumed.vm_size or "pool", speed))
    measured = _measured(call, run)
    save_s = to_seconds("save", save, "0s", "1d") if save else measured and measured.save_s
    mtbf_s = given.mtbf_s or (measured and measured.mtbf_s)
    best = recommend_interval(save_s, mtbf_s)
    scenario = given.scenario(mtbf_s, save_s or 0.0)
    limit_ms = to_ms("deadline", deadline, "1m", "365d") if deadline else None
    found = compare(
        kinds, scenario, nodes=nodes, deadline_ms=limit_ms, seeds=seeds, lifetime=lifetime
    )
    if out.as_text:
        _show(out, found, kinds, seeds)
        _show_interval(out, best, measured, given.checkpoint)
    else:
        out.record(_document(found, best, measured))
    drawn = [each for each in found.options if each.size == kinds[0].name]
    given.draw(out, "Simulation of pools", [(each.name, each.results[0]) for each in drawn])


def _size(text: str) -> tuple[str, float]:
    name, equals, factor = text.partition("=")
    try:
        speed = float(factor) if equals else 1.0
    except ValueError:
        speed = 0.0
    if not name or not 0.001 <= speed <= 1000:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"invalid --vm-size {text!r}",
            why="expected a speed from 0.001 to 1000",
            fix="--vm-size Standard_NC24ads_A100_v4=8",
        )
    return name, speed


def _measured(call: Invocation, run: str | None) -> Measured | None:
    from runner.features.simulation.what_if import measure_run
    from runner.flows.runs.documents import find_run

    if run is None:
        return None
    connection = call.connect()
    return measure_run(connection, find_run(connection, run))


def _title(option: Option, kinds: Sequence[PoolKind]) -> str:
    return f"{option.size} {option.name}" if len(kinds) > 1 else option.name


def _show(out: Output, found: OptionComparison, kinds: Sequence[PoolKind], seeds: int) -> None:
    for kind in kinds:
        out.note(price_line(kind.assumed), style="dim")
    rows = [
        {
            "size": each.size,
            "option": each.name,
            "cost": format_usd(each.cost_micro),
            "makespan": span(each.makespan_ms),
            "deadline": _late(each, seeds),
            "wait_p50": span(each.wait_ms(50)),
            "wait_p90": span(each.wait_ms(90)),
            "regret": _regret(each),
            "evictions": f"{each.evictions:.0f}",
            "waste": f"{100 * each.waste:.1f} %",
        }
        for each in found.options
    ]
    size = ("size",) if len(kinds) > 1 else ()
    columns = (*size, "option", "cost", "regret", "makespan", "deadline")
    more = ("wait_p50", "wait_p90", "evictions", "waste")
    out.rows(rows, (*columns, *more), spare=("wait_p50", "wait_p90"))
    for each in found.options:
        if not each.is_policy:
            show_problems(out, _title(each, kinds), each.results[0].problems[:2])
    out.text()
    out.text(f"cost by deadline{f' on {kinds[0].name}' if len(kinds) > 1 else ''}")
    frontier = [
        {"deadline": span(deadline_ms)}
        | {name.replace("-", "_"): _cell(option, seeds) for name, option in options.items()}
        | {"optimum": format_usd(next(iter(options.values())).optimum_micro)}
        for deadline_ms, options in found.frontier.items()
    ]
    out.rows(frontier, tuple(frontier[0]), spare=("on_demand", "spot", "fallback"))
    best = found.best
    out.text()
    if best is not None:
        out.text(
            f"cheapest by {span(found.deadline_ms)}: {_title(best, kinds)}, "
            f"{format_usd(best.cost_micro)}"
        )
        if best.regret is not None:
            out.text(
                f"that is {100 * best.regret:.0f} % above the offline optimum of "
                f"{format_usd(best.optimum_micro)}"
            )
    else:
        out.text(f"no option with a known price ends all tasks by {span(found.deadline_ms)}")


def _regret(option: Option) -> str:
    return "-" if option.regret is None else f"{100 * option.regret:.0f} %"


def _late(option: Option, seeds: int) -> str:
    if not option.late:
        return "met"
    return "missed" if seeds == 1 else f"missed {option.late} of {seeds}"


def _cell(option: Option, seeds: int) -> str:
    if option.late == seeds:
        return "late"
    late = f", late {option.late} of {seeds}" if option.late else ""
    return f"{format_usd(option.cost_micro)}{late}"


def _show_interval(
    out: Output, best: CheckpointInterval | None, measured: Measured | None, checkpoint: str | None
) -> None:
    if best is not None:
        now = f" instead of {checkpoint}" if checkpoint else ""
        out.text(
            f"checkpoint every {format_duration(best.daly_s)}{now} (Daly; "
            f"{format_duration(best.young_s)} by Young): a checkpoint takes "
            f"{format_duration(best.save_s)}, a node is evicted every "
            f"{format_duration(best.mtbf_s)}"
        )
    elif measured is not None:
        missing = (
            "was not evicted: set --mtbf" if measured.save_s else "saved no checkpoint: set --save"
        )
        out.note(f"no checkpoint interval is recommended: the run {missing}")


def _document(
    found: OptionComparison, best: CheckpointInterval | None, measured: Measured | None
) -> WhatIfDocument:
    return {
        "deadline_s": found.deadline_ms / 1000,
        "options": [_option(each) for each in found.options],
        "frontier": [
            {
                "deadline_s": deadline_ms / 1000,
                **{name: _option(option) for name, option in options.items()},
            }
            for deadline_ms, options in found.frontier.items()
        ],
        "cheapest": found.best and {"size": found.best.size, "option": found.best.name},
        "checkpoint": best and dataclasses.asdict(best),
        "measured": measured and dataclasses.asdict(measured),
    }


def _option(option: Option) -> OptionDocument:
    return {
        "size": option.size,
        "option": option.name,
        "policy": option.is_policy,
        "cost_micro_usd": option.cost_micro,
        "optimum_micro_usd": option.optimum_micro,
        "regret": option.regret,
        "makespan_s": [seconds(each.makespan_ms) for each in option.results],
        "late": option.late,
        "wait_p50_s": seconds(option.wait_ms(50)),
        "wait_p90_s": seconds(option.wait_ms(90)),
        "wait_p99_s": seconds(option.wait_ms(99)),
        "evictions": option.evictions,
        "waste": option.waste,
        "unfinished": [each.unfinished for each in option.results],
        "problems": [each.message for each in option.results[0].problems],
    }

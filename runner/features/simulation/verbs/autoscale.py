"""`runner pool autoscale`: evaluate formulas on a pool, simulate them, and check them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_pool
from runner.cli.options import ChartOption, Invocation, PlotOption, YesOption, on_target
from runner.cli.ui.charts import chart_kind, show_charts, write_chart
from runner.core.units import format_count
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.azure.batch.pools import PoolAutoscale, PoolView
    from runner.cli.ui.output import Output
    from runner.core.curves import Curve
    from runner.features.simulation.formula_lint import Finding
    from runner.features.simulation.formulas import AssumedPool, Candidate, FormulaChange
    from runner.features.simulation.result import SimulationResult
    from runner.features.simulation.scenario import CapacityChange, Scenario, Workload

app = typer.Typer(no_args_is_help=True, help="Check, simulate and apply autoscale formulas.")
ScaledPoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="Pool of the formula and its samples.",
        show_default="the only pool with a formula",
        autocompletion=complete_pool,
    ),
]


@app.command("evaluate")
@on_target
def evaluate(
    call: Invocation,
    formula: Annotated[
        str, typer.Argument(metavar="FORMULA|FILE", help="Formula, or a file with one.")
    ],
    pool: ScaledPoolOption = None,
) -> None:
    """Evaluate a formula on a pool with its current samples; the pool does not change."""
    from runner.features.simulation.formulas import evaluate as evaluate_flow

    out = call.out
    found, run = evaluate_flow(call.settings(), pool, formula)
    problem = run.error
    document: dict[str, Any] = {
        "pool": found.id,
        "evaluated": run.evaluated.isoformat() if run.evaluated else None,
        "spot": _nodes(run, "$TargetLowPriorityNodes"),
        "dedicated": _nodes(run, "$TargetDedicatedNodes"),
        "spot_target": found.spot_target,
        "dedicated_target": found.dedicated_target,
        "results": dict(run.results),
        "error": _error_document(run),
    }
    if out.as_text:
        _show_evaluation(out, found, run)
    else:
        out.record(document)
    if problem is not None:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _nodes(run: PoolAutoscale, name: str) -> int | None:
    """Return the target that a formula sets; None if it failed or does not set the target."""
    value = run.results.get(name)
    return None if run.error is not None or value is None else int(float(value))


def _error_document(run: PoolAutoscale) -> dict[str, str] | None:
    return {"code": run.error.code, "message": run.error.message} if run.error else None


def _show_evaluation(out: Output, pool: PoolView, run: PoolAutoscale) -> None:
    targets = {
        "spot": ("$TargetLowPriorityNodes", pool.spot_target),
        "dedicated": ("$TargetDedicatedNodes", pool.dedicated_target),
    }
    if run.error is None:
        shown = {
            kind: f"stays {current}"
            if (nodes := _nodes(run, name)) is None
            else f"{format_count(nodes, 'node')}, now {current}"
            for kind, (name, current) in targets.items()
        }
        out.record({"pool": pool.id, **shown})
        out.text()
    elif run.results:
        out.text("values when the formula failed; the targets of the pool stay:")
    if run.results:
        rows = [{"variable": name, "value": value} for name, value in run.results.items()]
        out.rows(rows, ("variable", "value"))
    if run.error is not None:
        out.note(f"{run.error.code}: {run.error.message}", style="red")
        for line in _position(run.formula, run.error.message):
            out.note(f"  {line}")


@app.command("last")
@on_target
def last(call: Invocation, pool: ScaledPoolOption = None) -> None:
    """Show the last evaluation of a pool's formula: its time, and its result or error."""
    from runner.core.units import format_duration
    from runner.features.simulation.formulas import last_evaluation

    out = call.out
    found = last_evaluation(call.settings(), pool)
    run, view = found.run, found.pool
    if not out.as_text:
        out.record(
            {
                "pool": view.id,
                "evaluated": run.evaluated.isoformat() if run.evaluated else None,
                "interval_s": run.interval_s,
                "overdue": found.overdue,
                "results": dict(run.results),
                "error": _error_document(run),
                "allocation": view.allocation,
            }
        )
    elif run.evaluated is None or found.age_s is None:
        out.note(f"pool {view.id}: the formula was not evaluated yet")
    else:
        ago = f"{format_duration(found.age_s)} ago"
        every = f"every {format_duration(run.interval_s)}"
        when = f"{run.evaluated:%Y-%m-%d %H:%M:%S} UTC, {ago}, {every}"
        out.note(f"evaluated {when}", style="dim")
        _show_evaluation(out, view, run)
        if found.overdue:
            out.warning(
                "the evaluation is overdue: "
                + (
                    "the service waits for the end of a resize"
                    if view.allocation != "steady"
                    else "the values do not describe the present pool"
                )
            )
    if run.error is not None:
        raise typer.Exit(ExitCode.RUN_FAILED)


@app.command("apply")
@on_target
def apply(
    call: Invocation,
    formula: Annotated[
        str, typer.Argument(metavar="FORMULA|FILE", help="Formula, or a file with one.")
    ],
    pool: ScaledPoolOption = None,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="TIME",
            help="Time between two evaluations, at least 5m.",
            show_default="unchanged",
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Check and evaluate a formula, and set it on a pool.

    Shows the change and asks for confirmation. The formula of a pool that a stack declares is
    changed in the stack's file instead.
    """
    from runner.features.simulation.formulas import apply_formula, plan_formula

    out, settings = call.out, call.settings()
    every = to_seconds("interval", interval, "5m", "7d") if interval else None
    change = plan_formula(settings, pool, formula, every)
    view = change.pool
    if out.as_text:
        _show_change(out, change)
    if not yes and not out.confirm(f"Apply the formula to pool {view.id}?"):
        from runner.cli.ui.output import why_declined

        raise RunnerError(
            "R-NOT-CONFIRMED",
            "not confirmed: the pool keeps its formula" if view.autoscale else "not confirmed",
            why=why_declined(),
            fix="run the command again with --yes",
        )
    apply_formula(settings, change)
    if not out.as_text:
        run = change.evaluation
        out.record(
            {
                "pool": view.id,
                "formula": change.formula,
                "replaced": view.autoscale.formula if view.autoscale else None,
                "interval_s": change.interval_s
                or (view.autoscale.interval_s if view.autoscale else 900.0),
                "results": dict(run.results) if run else {},
                "warnings": [each.rule for each in change.findings],
            }
        )
        return
    out.note(f"applied; to see its next evaluation: runner pool autoscale last --pool {view.id}")


def _show_change(out: Output, change: FormulaChange) -> None:
    import difflib

    old = change.pool.autoscale.formula.splitlines() if change.pool.autoscale else []
    lines = [*difflib.ndiff(old, change.formula.splitlines())]
    for line in lines:
        if not line.startswith("?"):
            out.text(line.rstrip())
    from runner.features.simulation.formulas import Candidate

    candidate = Candidate("formula", change.formula)
    if change.findings:
        _show_findings(out, [(candidate, list(change.findings))])
    if change.evaluation is None:
        out.note(
            f"pool {change.pool.id} has no formula now ({change.pool.spot_target} spot, "
            f"{change.pool.dedicated_target} dedicated nodes), so this one cannot be evaluated "
            "before it is applied"
        )
    else:
        _show_evaluation(out, change.pool, change.evaluation)


def _position(formula: str, message: str) -> list[str]:
    """Return the line of the formula that an error names, and a mark below its column."""
    named = re.search(r"Line (\d{1,6}), Col (\d{1,6})", message)
    lines = formula.splitlines()
    if named is None or not 0 < int(named[1]) <= len(lines):
        return []
    line = lines[int(named[1]) - 1]
    return [line.replace("\t", " "), f"{' ' * (min(int(named[2]), len(line) + 1) - 1)}^"]


FormulasArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FORMULA|FILE",
        help="Formulas, or files with one each.",
        show_default="the formula of --pool",
    ),
]
NamedPoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="Use formula, interval, slots and VM size of this pool.",
        show_default=False,
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", min=1, max=256, help="Task slots of a node.", show_default="1"),
]
IntervalOption = Annotated[
    str | None,
    typer.Option(
        "--interval",
        metavar="TIME",
        help="Time between two evaluations, at least 5m.",
        show_default="15m",
    ),
]
BootOption = Annotated[
    str,
    typer.Option(
        "--boot",
        metavar="TIME",
        help="Time until a new node takes tasks, including its start task.",
    ),
]


@app.command("lint")
@on_target
def lint(
    call: Invocation,
    formulas: FormulasArgument = None,
    pool: NamedPoolOption = None,
    slots: SlotsOption = None,
    interval: IntervalOption = None,
    boot: BootOption = "4m",
    spot: Annotated[
        bool,
        typer.Option("--spot/--dedicated", help="Kind of nodes that the pool should have."),
    ] = True,
) -> None:
    """Find mistakes in formulas that Batch accepts, such as a missing upper bound."""
    from runner.features.simulation.formulas import lint_all

    out = call.out
    assumed = to_assumed(call, formulas, pool, slots, interval)
    found = lint_all(assumed, boot_s=to_seconds("boot", boot, "0s", "1d"), spot=spot)
    rows = [_finding_row(each, finding) for each, findings in found for finding in findings]
    if out.as_text:
        _show_findings(out, found)
    else:
        out.rows(rows, ("formula", "line", "level", "rule", "what", "better"))
    if any(row["level"] == "error" for row in rows):
        raise typer.Exit(ExitCode.RUN_FAILED)


def _finding_row(candidate: Candidate, finding: Finding) -> dict[str, Any]:
    return {
        "formula": candidate.name,
        "line": finding.line,
        "level": finding.level,
        "rule": finding.rule,
        "what": finding.what,
        "better": finding.better,
    }


def _show_findings(out: Output, found: Sequence[tuple[Candidate, list[Finding]]]) -> None:
    for candidate, findings in found:
        if not findings:
            out.text(f"{candidate.name}: no problem found")
        lines = candidate.formula.splitlines()
        for finding in findings:
            place = candidate.name if finding.line is None else f"{candidate.name}:{finding.line}"
            out.text(f"{place}: {finding.level}: {finding.what} [{finding.rule}]")
            if finding.line is not None and finding.line <= len(lines):
                out.text(f"    {lines[finding.line - 1].strip()}")
            out.text(f"  better: {finding.better}")


TasksOption = Annotated[int, typer.Option("--tasks", min=1, max=1_000_000, help="Number of tasks.")]
DurationOption = Annotated[
    str,
    typer.Option(
        "--duration",
        metavar="DURATION",
        help="Duration of a task: 30m, 20m-1h, exponential(30m) or lognormal(30m, 0.5).",
    ),
]
OverOption = Annotated[
    str,
    typer.Option(
        "--over", metavar="TIME", help="Period in which the tasks arrive at random times."
    ),
]
TaskSlotsOption = Annotated[
    int, typer.Option("--task-slots", min=1, max=256, help="Slots that a task needs.")
]
WorkloadOption = Annotated[
    Path | None,
    typer.Option(
        "--workload",
        help="File with tasks, instead of --tasks: JSON lines or CSV of arrival, duration, slots.",
        show_default=False,
    ),
]
SetupOption = Annotated[
    str,
    typer.Option("--setup", metavar="TIME", help="Setup time of each attempt of a task."),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="TIME",
        help="Time between two checkpoints.",
        show_default="no checkpoints",
    ),
]
MtbfOption = Annotated[
    str | None,
    typer.Option(
        "--mtbf",
        metavar="TIME",
        help="Mean time until a spot node is evicted.",
        show_default="no evictions",
    ),
]
AwayOption = Annotated[
    str, typer.Option("--away", metavar="TIME", help="Mean time until an evicted node returns.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="File with evictions and spot capacity by time.",
        show_default=False,
    ),
]
SpotQuotaOption = Annotated[
    int | None, typer.Option("--spot-quota", min=0, help="Maximum number of spot nodes.")
]
DedicatedQuotaOption = Annotated[
    int | None, typer.Option("--dedicated-quota", min=0, help="Maximum number of dedicated nodes.")
]
VmSizeOption = Annotated[
    str | None,
    typer.Option("--vm-size", help="VM size, which decides the price.", show_default=False),
]
PriceRegionOption = Annotated[
    str | None, typer.Option("--region", help="Region of the prices.", show_default=False)
]
SpotPriceOption = Annotated[
    float | None,
    typer.Option(
        "--spot-price",
        metavar="USD",
        min=0,
        max=10_000,
        help="Price of a spot node per hour in USD.",
        show_default="of --vm-size in --region",
    ),
]
DedicatedPriceOption = Annotated[
    float | None,
    typer.Option(
        "--dedicated-price",
        metavar="USD",
        min=0,
        max=10_000,
        help="Price of a dedicated node per hour in USD.",
        show_default="of --vm-size in --region",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random numbers.")]


@app.command("simulate")
@on_target
def simulate(
    call: Invocation,
    formulas: FormulasArgument = None,
    pool: NamedPoolOption = None,
    tasks: TasksOption = 100,
    duration: DurationOption = "30m",
    over: OverOption = "0s",
    task_slots: TaskSlotsOption = 1,
    workload: WorkloadOption = None,
    slots: SlotsOption = None,
    interval: IntervalOption = None,
    boot: BootOption = "4m",
    setup: SetupOption = "0s",
    checkpoint: CheckpointOption = None,
    mtbf: MtbfOption = None,
    away: AwayOption = "0s",
    trace: TraceOption = None,
    most_spot: SpotQuotaOption = None,
    most_dedicated: DedicatedQuotaOption = None,
    vm_size: VmSizeOption = None,
    region: PriceRegionOption = None,
    spot_price: SpotPriceOption = None,
    dedicated_price: DedicatedPriceOption = None,
    seed: SeedOption = 0,
    plot: PlotOption = None,
    chart: ChartOption = None,
) -> None:
    """Simulate a pool with formulas: cost, waiting times, evictions and idle nodes.

    Nothing is created. The simulation follows the rules of the emulator, with the delays of Batch's
    samples; the same seed gives the same result. Each formula gets the same tasks.
    """
    from runner.features.simulation.formulas import simulate_all
    from runner.features.simulation.scenario import Scenario

    out = call.out
    kind = chart_kind(plot)
    assumed = to_assumed(
        call, formulas, pool, slots, interval, region=region,
        vm_size=vm_size, spot_usd=spot_price, dedicated_usd=dedicated_price,
    )  # fmt: skip
    work, changes = load_tasks(
        workload, trace, tasks=tasks, over=over, duration=duration, slots=task_slots, seed=seed
    )
    mean_s = to_seconds("mtbf", mtbf, "1s", "3650d") if mtbf is not None else None
    scenario = Scenario(
        work,
        boot_ms=to_ms("boot", boot, "0s", "1d"),
        setup_ms=to_ms("setup", setup, "0s", "1d"),
        checkpoint_ms=to_ms("checkpoint", checkpoint, "1s", "365d") if checkpoint else None,
        evictions_per_hour=3600 / mean_s if mean_s else 0.0,
        away_ms=to_ms("away", away, "0s", "365d"),
        changes=changes,
        most_spot=most_spot,
        most_dedicated=most_dedicated,
        seed=seed,
        pool=(pool or "pool").lower(),
    )
    results = simulate_all(assumed, scenario)
    if plot is not None:
        write_chart(
            plot,
            kind,
            "Simulation of a pool",
            to_curves([(each.name, result) for each, result in results]),
        )
    if out.as_text:
        _show_simulation(out, assumed, scenario, results, chart=chart)
    else:
        rows = [_document(each, result, assumed) for each, result in results]
        out.rows(rows, tuple(rows[0]))
    if plot is not None:
        out.note(f"wrote {plot}")


def load_tasks(
    workload: Path | None,
    trace: Path | None,
    *,
    tasks: int,
    over: str,
    duration: str,
    slots: int,
    seed: int,
) -> tuple[Workload, Sequence[CapacityChange]]:
    """Return the tasks of a file, or random ones, and the changes of a trace.

    Raises:
        RunnerError: R-SCENARIO, a file or the text of a distribution is invalid.
    """
    from runner.features.simulation import scenario

    try:
        if workload is not None:
            work = scenario.load_workload(workload)
        else:
            over_ms = to_ms("over", over, "0s", "365d")
            spread = scenario.parse_spread(duration)
            work = scenario.generate(tasks, over_ms, spread, slots, seed)
        return work, scenario.load_changes(trace) if trace is not None else ()
    except scenario.ScenarioError as err:
        raise RunnerError(
            "R-SCENARIO",
            "invalid scenario",
            why=str(err),
            fix="runner pool autoscale simulate --help",
            exit_code=ExitCode.USAGE,
        ) from err


def to_assumed(
    call: Invocation,
    formulas: Sequence[str] | None,
    pool: str | None,
    slots: int | None,
    interval: str | None,
    *,
    region: str | None = None,
    formula_required: bool = True,
    **given: Any,
) -> AssumedPool:
    """Return the pool to simulate; see `assume`."""
    from runner.core.home import runner_home
    from runner.core.pricing.machines import region_name
    from runner.features.simulation.formulas import PoolSetting, assume

    setting = PoolSetting(
        pool=pool,
        slots=slots,
        interval_s=to_seconds("interval", interval, "5m", "7d") if interval else None,
        region=region_name(region) if region else None,
        **given,
    )
    home = runner_home(os.environ)
    return assume(call.settings(), formulas or (), setting, home, formula_required=formula_required)


def to_seconds(flag: str, text: str, least: str, most: str) -> float:
    """Return the seconds of a duration option. Raise R-FLAG-VALUE."""
    from runner.core.units import parse_duration_flag

    return parse_duration_flag(flag, text, least, most).total_seconds()


def to_ms(flag: str, text: str, least: str, most: str) -> int:
    """Return the milliseconds of a duration option. Raise R-FLAG-VALUE."""
    return round(to_seconds(flag, text, least, most) * 1000)


def _document(
    candidate: Candidate, result: SimulationResult, assumed: AssumedPool
) -> dict[str, Any]:
    cost = result.cost_micro(assumed.spot_usd, assumed.dedicated_usd)
    spot_ms, dedicated_ms = result.node_ms
    return {
        "formula": candidate.name,
        "cost_micro_usd": sum(cost.values()) if cost else None,
        "makespan_s": None if result.makespan_ms is None else result.makespan_ms / 1000,
        **{f"wait_p{p}_s": _wait(result, p) for p in (50, 90, 99)},
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


def _wait(result: SimulationResult, percentile: int) -> float | None:
    found = result.wait_ms(percentile)
    return None if found is None else found / 1000


_SIMULATED = (
    *("formula", "cost", "makespan", "wait_p50", "wait_p90", "most_nodes", "node_hours"),
    *("useful", "lost", "idle", "boot", "setup", "evictions"),
)


def _show_simulation(
    out: Output,
    assumed: AssumedPool,
    scenario: Scenario,
    results: Sequence[tuple[Candidate, SimulationResult]],
    *,
    chart: bool | None,
) -> None:
    from runner.core.units import format_duration

    work = scenario.workload
    slots = format_count(assumed.slots, "slot")
    tasks = format_count(len(work), "task")
    out.note(
        f"{tasks}, {format_duration(work.slot_ms / 1000)} of work in all; {slots} per node; "
        f"evaluated every {format_duration(assumed.interval_s)}; {price_line(assumed)}",
        style="dim",
    )
    rows = [_text_row(each, result, assumed) for each, result in results]
    if any(result.unfinished for _, result in results):
        rows = [
            {**row, "unfinished": each.unfinished}
            for row, (_, each) in zip(rows, results, strict=True)
        ]
    columns = _SIMULATED if "unfinished" not in rows[0] else (*_SIMULATED, "unfinished")
    out.rows(rows, columns, spare=("setup", "boot", "wait_p90", "node_hours", "most_nodes"))
    for candidate, result in results:
        if result.unfinished:
            out.warning(
                f"{candidate.name}: tasks that had not ended: {result.unfinished}, after "
                f"{format_duration(result.ended_ms / 1000)}"
            )
        if result.terminated:
            out.warning(f"{candidate.name}: {result.terminated} tasks were ended with their node")
        if result.left_nodes and not result.unfinished:
            out.warning(
                f"{candidate.name}: nodes that were still there a day after the last task: "
                f"{result.left_nodes}"
            )
        for each in result.problems[:3]:
            times = f", {each.count} times in a row" if each.count > 1 else ""
            at = format_duration(each.time_ms / 1000)
            out.note(f"{candidate.name}: after {at}: {each.message}{times}")
    if sys.stdout.isatty() if chart is None else chart:
        show_charts(
            out,
            to_curves([(each.name, result) for each, result in results]),
            [candidate.name for candidate, _ in results],
        )


def price_line(assumed: AssumedPool) -> str:
    """Return the prices as text, or why they are unknown."""
    if assumed.spot_usd is None and assumed.dedicated_usd is None:
        if assumed.vm_size is not None and assumed.region is not None:
            return f"no price for {assumed.vm_size} in {assumed.region}; see `runner skus`"
        return "no price: set --vm-size and --region, or --spot-price"
    spot, dedicated = (
        "unknown" if usd is None else f"{usd:.3f}"
        for usd in (assumed.spot_usd, assumed.dedicated_usd)
    )
    where = f"{assumed.vm_size} in {assumed.region}: " if assumed.vm_size else ""
    return f"{where}spot {spot}, dedicated {dedicated} USD per hour"


def _text_row(
    candidate: Candidate, result: SimulationResult, assumed: AssumedPool
) -> dict[str, Any]:
    from runner.core.units import format_duration

    cost = result.cost_micro(assumed.spot_usd, assumed.dedicated_usd)
    total = sum(map(sum, result.spent_ms.values()))

    def span(ms: float | None) -> str:
        return "none" if ms is None else format_duration(ms / 1000)

    makespan = f"> {span(result.ended_ms)}" if result.unfinished else span(result.makespan_ms)

    shares = {
        name: f"{100 * sum(result.spent_ms[name]) / total:.1f} %" if total else "0 %"
        for name in ("useful", "lost", "idle", "boot", "setup")
    }
    return {
        "formula": candidate.name,
        "cost": "unknown" if cost is None else f"{sum(cost.values()) / 1e6:.2f} USD",
        "makespan": makespan,
        "wait_p50": span(result.wait_ms(50)),
        "wait_p90": span(result.wait_ms(90)),
        "most_nodes": max((each.spot + each.dedicated for each in result.timeline), default=0),
        "node_hours": f"{sum(result.node_ms) / 3_600_000:.1f}",
        **shares,
        "evictions": result.evictions,
    }


def to_curves(results: Sequence[tuple[str, SimulationResult]]) -> dict[str, list[Curve]]:
    """Return nodes and waiting tasks by minute, one curve for each formula."""
    from runner.core.curves import Curve

    panels: dict[str, list[Curve]] = {"nodes by minute": [], "waiting tasks by minute": []}
    nodes, waiting = panels.values()
    for name, result in results:
        by_minute = {each.time_ms // 60_000: each for each in result.timeline}.items()
        held = tuple((minute, float(each.spot + each.dedicated)) for minute, each in by_minute)
        queued = tuple((minute, float(each.waiting)) for minute, each in by_minute)
        nodes.append(Curve(name, "nodes", held))
        waiting.append(Curve(name, "waiting tasks", queued))
    return panels

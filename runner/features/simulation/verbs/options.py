"""Options that commands about simulated pools share, and the scenario that they describe."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import ChartOption, Invocation, PlotOption, with_parameters
from runner.cli.ui.charts import chart_kind, show_charts, write_chart
from runner.core.units import format_duration, parse_duration_flag
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.cli.ui.output import Output
    from runner.core.curves import Curve
    from runner.features.simulation.formulas import AssumedPool
    from runner.features.simulation.result import SimulationProblem, SimulationResult
    from runner.features.simulation.scenario import Scenario, TraceEntry, Workload

FormulasArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FORMULA|FILE",
        help="Formulas, or files with one each.",
        show_default="the formula of --pool",
    ),
]
NamedPoolOption = Annotated[
    str | None, typer.Option(help="Use formula, interval, slots and VM size of this pool.")
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


def _time(flag: str, help: str, **more: Any) -> Any:
    return typer.Option(f"--{flag}", metavar="TIME", help=help, **more)


def _price(kind: str) -> Any:
    return typer.Option(
        f"--{kind}-price",
        metavar="USD",
        min=0,
        max=10_000,
        help=f"Price of a {kind} node per hour in USD.",
        show_default="of --vm-size in --region",
    )


def _quota(kind: str) -> Any:
    return typer.Option(f"--{kind}-quota", min=0, help=f"Maximum number of {kind} nodes.")


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Tasks, nodes, evictions and prices of a simulation, as they were typed."""

    pool: NamedPoolOption = None
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, max=1_000_000, help="Number of tasks.")
    ] = 100
    duration: Annotated[
        str,
        typer.Option(
            "--duration",
            metavar="DURATION",
            help="Duration of a task: 30m, 20m-1h, exponential(30m) or lognormal(30m, 0.5).",
        ),
    ] = "30m"
    over: Annotated[str, _time("over", "Period in which the tasks arrive at random times.")] = "0s"
    task_slots: Annotated[
        int, typer.Option("--task-slots", min=1, max=256, help="Slots that a task needs.")
    ] = 1
    workload: Annotated[
        Path | None,
        typer.Option(
            "--workload",
            help="File with tasks, instead of --tasks: JSON lines or CSV of arrival, duration, "
            "slots.",
        ),
    ] = None
    slots: SlotsOption = None
    boot: BootOption = "4m"
    setup: Annotated[str, _time("setup", "Setup time of each attempt of a task.")] = "0s"
    checkpoint: Annotated[
        str | None,
        _time("checkpoint", "Time between two checkpoints.", show_default="no checkpoints"),
    ] = None
    mtbf: Annotated[
        str | None,
        _time("mtbf", "Mean time until a spot node is evicted.", show_default="no evictions"),
    ] = None
    away: Annotated[str, _time("away", "Mean time until an evicted node returns.")] = "0s"
    trace: Annotated[
        Path | None, typer.Option("--trace", help="File with evictions and spot capacity by time.")
    ] = None
    spot_quota: Annotated[int | None, _quota("spot")] = None
    dedicated_quota: Annotated[int | None, _quota("dedicated")] = None
    region: Annotated[str | None, typer.Option("--region", help="Region of the prices.")] = None
    spot_price: Annotated[float | None, _price("spot")] = None
    dedicated_price: Annotated[float | None, _price("dedicated")] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random numbers.")] = 0
    plot: PlotOption = None
    chart: ChartOption = None

    def assume(
        self,
        call: Invocation,
        formulas: Sequence[str] | None,
        interval: str | None,
        vm_size: str | None,
        *,
        formula_required: bool = True,
    ) -> AssumedPool:
        """Return the pool to simulate, with its formulas and prices."""
        from runner.core.pricing.machines import region_name
        from runner.features.simulation.formulas import PoolSetting, assume

        setting = PoolSetting(
            pool=self.pool,
            slots=self.slots,
            interval_s=to_interval_s(interval),
            vm_size=vm_size,
            region=region_name(self.region) if self.region else None,
            spot_usd=self.spot_price,
            dedicated_usd=self.dedicated_price,
        )
        return assume(call.settings(), formulas or (), setting, formula_required=formula_required)

    @property
    def mtbf_s(self) -> float | None:
        """The mean time until an eviction, in seconds."""
        return to_seconds("mtbf", self.mtbf, "1s", "3650d") if self.mtbf is not None else None

    def scenario(self, mtbf_s: float | None, save_s: float = 0.0) -> Scenario:
        """Return the scenario, without a formula.

        Raises:
            ScenarioError: a file or the text of a distribution is invalid.
            RunnerError: R-FLAG-VALUE.
        """
        from runner.features.simulation.scenario import Scenario

        work, changes = self._load_tasks()
        every = self.checkpoint
        return Scenario(
            work,
            boot_ms=to_ms("boot", self.boot, "0s", "1d"),
            setup_ms=to_ms("setup", self.setup, "0s", "1d"),
            checkpoint_ms=to_ms("checkpoint", every, "1s", "365d") if every else None,
            save_ms=round(1000 * save_s),
            evictions_per_hour=3600 / mtbf_s if mtbf_s else 0.0,
            away_ms=to_ms("away", self.away, "0s", "365d"),
            changes=changes,
            most_spot=self.spot_quota,
            most_dedicated=self.dedicated_quota,
            seed=self.seed,
            pool=(self.pool or "pool").lower(),
        )

    def _load_tasks(self) -> tuple[Workload, Sequence[TraceEntry]]:
        from runner.features.simulation import scenario

        if self.workload is not None:
            work = scenario.load_workload(self.workload)
        else:
            over_ms = to_ms("over", self.over, "0s", "365d")
            spread = scenario.parse_spread(self.duration)
            work = scenario.generate(self.tasks, over_ms, spread, self.task_slots, self.seed)
        return work, scenario.load_changes(self.trace) if self.trace is not None else ()

    def draw(
        self, out: Output, title: str, results: Sequence[tuple[str, SimulationResult]]
    ) -> None:
        """Write the chart, and draw it in text."""
        curves = _to_curves(results)
        if self.plot is not None:
            write_chart(self.plot, chart_kind(self.plot), title, curves, "minute")
            out.note(f"wrote {self.plot}")
        if out.as_text and (sys.stdout.isatty() if self.chart is None else self.chart):
            show_charts(out, curves, [name for name, _ in results])


def with_scenario(path: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a scenario to a command, which gets them as `given`.

    An invalid scenario is the error R-SCENARIO, which names the help of the command.

    Args:
        path: the words that call the command.
    """
    names = [each.name for each in fields(ScenarioOptions)]

    def add(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def command(call: Invocation, **options: Any) -> None:
            from runner.features.simulation.scenario import ScenarioError

            given = ScenarioOptions(**{name: options.pop(name) for name in names})
            chart_kind(given.plot)  # report a wrong name before the simulation
            try:
                verb(call, given, **options)
            except ScenarioError as err:
                why, fix = str(err), f"{path} --help"
                raise RunnerError("R-SCENARIO", "invalid scenario", why=why, fix=fix) from err

        own = inspect.signature(verb, eval_str=True).parameters.values()
        shared = inspect.signature(ScenarioOptions, eval_str=True).parameters.values()
        return with_parameters(command, [*(each for each in own if each.name != "given"), *shared])

    return add


def to_interval_s(text: str | None) -> float | None:
    """Return the seconds of `--interval`. Raise R-FLAG-VALUE."""
    return to_seconds("interval", text, "5m", "7d") if text else None


def to_seconds(flag: str, text: str, least: str, most: str) -> float:
    """Return the seconds of a duration option. Raise R-FLAG-VALUE."""
    return parse_duration_flag(flag, text, least, most).total_seconds()


def to_ms(flag: str, text: str, least: str, most: str) -> int:
    """Return the milliseconds of a duration option. Raise R-FLAG-VALUE."""
    return round(to_seconds(flag, text, least, most) * 1000)


def seconds(ms: float | None) -> float | None:
    """Return seconds, for documents."""
    return None if ms is None else ms / 1000


def span(ms: float | None) -> str:
    """Return a duration as text."""
    return "none" if ms is None else format_duration(ms / 1000)


def show_problems(out: Output, name: str, problems: Sequence[SimulationProblem]) -> None:
    """Print problems of a simulation, each with its time."""
    for each in problems:
        times = f", {each.count} times in a row" if each.count > 1 else ""
        out.note(f"{name}: after {span(each.time_ms)}: {each.message}{times}")


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


def _to_curves(results: Sequence[tuple[str, SimulationResult]]) -> dict[str, list[Curve]]:
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

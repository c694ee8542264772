"""`runner cost`: the costs of runs, by purpose of their node time."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from runner.cli.autocomplete import complete_run_or_group
from runner.cli.commands.runs.ps import SinceOption
from runner.cli.options import ChartOption, Invocation, on_target
from runner.cli.ui.output import Output
from runner.core.features import load_feature
from runner.core.units import parse_since
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.pricing.ledger import NodeCosts
    from runner.flows.costs.report import CostKey, CostReport, CostRow

_DEFAULT = "show"


class _ShowByDefault(TyperGroup):
    """Run `show` unless the first word is a command or `--help`: `runner cost RUN`."""

    def with_default(self, words: Sequence[str]) -> list[str]:
        """Return the words after `cost`, with the default command if there is none."""
        is_named = bool(words) and words[0] in (*self.commands, "--help", "-h")
        return [*words] if is_named else [_DEFAULT, *words]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.with_default(args))


app = typer.Typer(
    cls=_ShowByDefault,
    help="Show what runs cost. `runner cost RUN` is short for `runner cost show RUN`.",
)

_COLUMNS = (
    "runs", "cost", "node_hours", "useful", "boot", "setup", "lost", "evicted", "failed", "idle",
)  # fmt: skip
_SPARE = ("setup", "boot", "failed", "idle", "runs")
_AT_MOST = "<= "
_MAX_BARS = 20  # maximum number of bars
_MARKERS: dict[str, str] = {
    "useful": "#", "boot": "b", "setup": "s", "lost": "x", "evicted": "e", "failed": "f",
    "idle": ".",
}  # fmt: skip


VmSizeOption = Annotated[
    str | None,
    typer.Option(
        "--vm-size", help="VM size, which decides the price.", show_default="that of the pool"
    ),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", help="Region of the prices.", show_default="that of the target"),
]
SpotPriceOption = Annotated[
    float | None,
    typer.Option("--spot-price", min=0, help="Price of a spot node per hour in USD."),
]
DedicatedPriceOption = Annotated[
    float | None,
    typer.Option("--dedicated-price", min=0, help="Price of a dedicated node per hour in USD."),
]


@app.command(_DEFAULT)
@on_target
def show(
    call: Invocation,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run, sweep, group or experiment: ID, unique prefix, @last, or name.",
            show_default="all runs",
            autocompletion=complete_run_or_group,
        ),
    ] = None,
    by: Annotated[
        Literal["run", "recipe", "experiment", "sweep", "pool"] | None,
        typer.Option(help="Group the costs by this.", show_default="experiment"),
    ] = None,
    since: SinceOption = None,
    vm_size: VmSizeOption = None,
    region: RegionOption = None,
    spot_price: SpotPriceOption = None,
    dedicated_price: DedicatedPriceOption = None,
    reconcile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare the recorded node time with a cost export of Azure, by pool: a file, or "
            "`azure` for those that the stack stores.",
        ),
    ] = None,
    chart: ChartOption = None,
) -> None:
    """Show the costs of runs: useful work, boot, evictions and idle nodes.

    Those of a sweep, a group or an experiment are one row; --by run lists its runs.
    """
    from runner.flows.costs.report import CostQuery, report_costs

    settings, connection = call.open()
    run_ids, own_key = (None, "experiment") if run is None else _chosen(connection, run)
    moment = None if since is None else parse_since(since, datetime.now(UTC))
    query = CostQuery(
        by=by or own_key,
        run_ids=run_ids,
        since=moment if reconcile is None else None,  # a bill has the nodes of all runs
        vm_size=vm_size,
        region=region,
        spot_usd=spot_price,
        dedicated_usd=dedicated_price,
    )
    if reconcile is not None and run_ids is not None:
        raise RunnerError(
            "R-COST-RECONCILE",
            "--reconcile compares pools, not a run",
            why="Azure bills nodes, which runs share",
            fix=f"runner cost --reconcile {reconcile}",
        )
    report = report_costs(connection, query, settings.home)
    out = call.out
    if reconcile is not None:
        verbs = load_feature("reconcile.verbs")
        verbs.reconcile(out, report, reconcile, connection, moment)
        return
    if not out.as_text:
        _print_document(out, report)
        return
    rows: list[dict[str, Any]] = [
        {report.by: row.name, "runs": len(row.runs), **_texts(report, row.spent)}
        for row in report.rows
    ]
    if len(rows) > 1:
        rows.append({report.by: "total", **_texts(report, report.total)})
        rows[-1]["runs"] = sum(len(row.runs) for row in report.rows)
    columns = (report.by, *(n for n in _COLUMNS if any(row.get(n) for row in rows)))
    out.rows(
        rows, columns, empty="no run has used a node; to list runs: runner ps -a", spare=_SPARE
    )
    if rows:
        print_cost_notes(out, report)
        if sys.stdout.isatty() if chart is None else chart:
            _draw(out, report)


def _chosen(connection: Connection, reference: str) -> tuple[frozenset[str], CostKey]:
    """Return the runs of a reference, and by what their costs are grouped."""
    from runner.flows.sweeps.groups import RunSet, find_run_or_set

    found = find_run_or_set(connection, reference)
    if not isinstance(found, RunSet):
        return frozenset([found.run_id]), "run"
    return frozenset(found.run_ids), "sweep" if found.group else "experiment"


def _print_document(out: Output, report: CostReport) -> None:
    if out.format.value == "tsv":
        rows = [_flat(report, row) for row in report.rows]
        out.rows(rows, tuple(rows[0]) if rows else (report.by,))
        return
    from runner.views.costs import cost_document

    out.record(cost_document(report))


def _flat(report: CostReport, row: CostRow) -> dict[str, Any]:
    spent = row.spent
    return {
        report.by: row.name,
        "runs": len(row.runs),
        "micro_usd": spent.total_micro,
        "node_ms": spent.total_ms,
        **{f"{part}_micro_usd": micro for part, micro in spent.micro.items()},
        **{f"{part}_ms": ms for part, ms in spent.ms.items()},
        "bound_ms": sum(spent.bound_ms.values()),
    }


def _texts(report: CostReport, spent: NodeCosts) -> dict[str, Any]:
    total = spent.total_ms
    shares = {
        part: f"{_AT_MOST if spent.bound_ms[part] else ''}{100 * ms / total:.1f} %" if ms else ""
        for part, ms in spent.ms.items()
    }
    at_most = _AT_MOST if spent.is_bound else ""
    cost = "free" if report.is_free else format_usd(spent.total_micro)
    return {
        "cost": cost if spent.total_micro is None or report.is_free else f"{at_most}{cost}",
        "node_hours": f"{at_most}{total / 3_600_000:.2f}",
        **shares,
    }


def print_cost_notes(out: Output, report: CostReport) -> None:
    """Print what a report does not include, its prices, and what evictions cost."""
    from runner.views.costs import GAPS

    for cause, count in sorted(Counter(gap.cause for gap in report.gaps).items()):
        out.note(f"not on record: {GAPS[cause]}: {count}", style="yellow")
    if report.gaps:
        out.note("to list them: runner cost -o json", style="dim")
    if report.total.is_bound:
        from runner.core.units import format_duration

        most_s = sum(report.total.bound_ms.values()) / 1000
        out.note(
            "<= means at most: the end of an attempt on a lost node is not on record; up to "
            f"{format_duration(most_s)} of the node time is after its last sign of life",
            style="yellow",
        )
    if report.is_free:
        out.note(
            "nodes on this machine are free; for the price on Azure, add --vm-size and --region",
            style="dim",
        )
        return
    for each in report.prices:
        kind = "spot" if each.spot else "dedicated"
        price = "unknown" if each.usd_per_hour is None else f"{each.usd_per_hour:g} USD per hour"
        when = f", as of {each.as_of}" if each.as_of else f", {each.source}" if each.source else ""
        extras = f", {each.extras}" if each.extras else ""
        out.note(f"{kind} {each.vm_size} in {report.region}: {price}{when}{extras}", style="dim")
    if report.total.unpriced_ms:
        from runner.contract import LOCAL_VM_SIZE
        from runner.core.azure.clouds import cloud_of_region

        known = sum(report.total.micro.values())
        hours = report.total.unpriced_ms / 3_600_000
        load = f"to load prices: runner skus --refresh --region {report.region}"
        if all(each.vm_size == LOCAL_VM_SIZE for each in report.prices):
            load = "nodes on this machine have no VM size: add --vm-size"
        out.warning(
            f"the price of {hours:.2f} node hours is unknown; the others cost {format_usd(known)}; "
            + (cloud_of_region(report.region).prices or load)
        )
    at_most = "at most " if report.total.is_bound else ""
    if (even := report.total.break_even) is not None:
        out.note(
            f"spot {format_usd(even.spot_micro)}, dedicated {format_usd(even.dedicated_micro)} "
            f"for the same work; evictions cost {at_most}{100 * even.repeated:.1f} % of the spot "
            "node time, and "
            + (
                f"above {100 * even.limit:.1f} %, dedicated nodes would cost less"
                if even.limit > 0
                else "dedicated nodes are always cheaper"
            )
        )


def _draw(out: Output, report: CostReport) -> None:
    """Draw a bar of the parts of each row, in USD, or in node time without known prices."""
    from runner.core.pricing.ledger import PARTS

    is_priced = any(row.spent.total_micro for row in report.rows)
    rows = [
        (row.name, row.spent.micro if is_priced else row.spent.ms)
        for row in report.rows[:_MAX_BARS]
    ]
    most = max(sum(parts.values()) for _, parts in rows) or 1
    wide = max(len(name) for name, _ in rows)
    room = max(shutil.get_terminal_size().columns - wide - 3, 20)
    out.text()
    for name, parts in rows:
        bar, drawn, position = "", 0, 0
        for part in PARTS:
            position += parts[part]
            until = round(room * position / most)
            bar += _MARKERS[part] * (until - drawn)
            drawn = until
        out.text(f"{name:<{wide}}  {bar}".rstrip())
    seen = [part for part in PARTS if any(parts[part] for _, parts in rows)]
    legend = "  ".join(f"{_MARKERS[part]} {part}" for part in seen)
    out.text(f"{legend}  ({'cost' if is_priced else 'node time'})")

"""`runner qualify`: measure a pool against the criteria of Microsoft's capacity guide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.autocomplete import complete_pool
from runner.cli.options import Invocation, YesOption, on_target
from runner.cli.ui.output import OutputFormat
from runner.core.units import format_count
from runner.protocol.errors import ExitCode
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.cli.ui.output import Output
    from runner.core.progress import OnProgress
    from runner.core.settings import Settings
    from runner.features.qualify.measure import QualificationRequest
    from runner.features.qualify.places import Place
    from runner.features.qualify.report import QualificationReport

_COLUMNS = ("criterion", "result", "measured", "bound")
# Nodes of this machine have no price, so that of the smallest machine with a GPU stands for it.
_LIKE = ("Standard_NC4as_T4_v3", "southeastasia")


@on_target
def qualify(
    call: Invocation,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Pool of the stack to measure.",
            show_default="that of the settings, else the first",
            autocompletion=complete_pool,
        ),
    ] = None,
    second_pool: Annotated[
        str | None,
        typer.Option(
            help="Pool that a run falls over to; without it, the fallback is not measured.",
            autocompletion=complete_pool,
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=1000, help="Nodes that production needs at once.")
    ] = 2,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Limit of a figure: capacity, cold, warm, recovery, lost, fallback (10m, 90s), "
            "cost (USD of a job) or estimate (times the estimate); can be repeated.",
        ),
    ] = None,
    vm_size: Annotated[
        str | None,
        typer.Option(
            help="VM size whose price applies.",
            show_default=f"that of the pool; on this machine {_LIKE[0]}",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            help="Region of the price.",
            show_default=f"that of the stack; on this machine {_LIKE[1]}",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a page, too.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Measure a pool before production: capacity, start, recovery, fallback, cost and logs.

    It submits short runs, takes the node of one of them, and removes everything at the end.
    """
    from runner.core.pricing.prices import load_price_table
    from runner.features.qualify.criteria import AZURE_BOUNDS, LOCAL_BOUNDS, with_bounds
    from runner.features.qualify.measure import QualificationRequest
    from runner.features.qualify.qualification import run_qualification
    from runner.features.qualify.report import QualificationReport, refuse_path

    settings, out = call.settings(pool=pool), call.out
    here = settings.target.runs_here
    if here:
        vm_size, region = vm_size or _LIKE[0], region or _LIKE[1]
    if vm_size is not None:
        load_price_table(settings.home).check_size(vm_size)
    bounds = with_bounds(LOCAL_BOUNDS if here else AZURE_BOUNDS, bound or ())
    if html is not None:
        refuse_path(html)
    request = QualificationRequest(nodes, bounds, vm_size, region)
    report = QualificationReport(settings.target.name, nodes, bounds)
    with out.stages() as view:
        place = _open(call, settings, request, second_pool, view.on_progress, yes=yes)
        run_qualification(place, settings, request, report, view.on_progress)
    if html is not None:
        report.write_html(html)
    _show(out, report, html)
    if report.problem:
        raise report.problem
    if not report.passed:
        raise typer.Exit(ExitCode.RUN_FAILED)


def _open(
    call: Invocation,
    settings: Settings,
    request: QualificationRequest,
    second_pool: str | None,
    on_progress: OnProgress,
    *,
    yes: bool,
) -> Place:
    """Return the pools to measure. Where nodes are billed, ask before."""
    from runner.azure.auth.credentials import connect
    from runner.features.qualify.places import open_place, refuse_nodes, refuse_pools_here
    from runner.features.qualify.qualification import bound_usd
    from runner.flows.submit.pipeline import open_services

    refuse_pools_here(settings, second_pool)
    if settings.target.runs_here:
        return open_place(open_services(settings, on_progress)[0], settings, None)
    place = open_place(connect(settings), settings, second_pool)
    refuse_nodes(place, request.nodes)
    most = bound_usd(place, settings, request)
    cost = "an unknown amount" if most is None else f"at most {format_usd(1e6 * most)}"
    second = f" and 1 of pool {place.second.id}" if place.second else ""
    nodes = format_count(request.nodes, "node")
    call.out.note(f"{nodes} of pool {place.first.id}{second} cost {cost}")
    question = "Measure them, and restart the node of a run, with all tasks on it?"
    call.out.require(question, "R-QUALIFY-DECLINED", "nothing was started", yes=yes)
    return place


def _show(out: Output, report: QualificationReport, html: Path | None) -> None:
    if out.format is OutputFormat.JSON:
        out.record(report.to_json())
        return
    rows = [
        {
            "criterion": row.name,
            "result": row.state if row.state == "passed" else row.state.upper(),
            "measured": "; ".join(text for text in (row.figure, row.why) if text),
            "bound": row.bound,
        }
        for row in report.rows
    ]
    out.rows(rows, _COLUMNS)
    pairs = report.facts()
    if html is not None:
        pairs["page"] = str(html)
    out.panel(report.summary, pairs)
    for line in report.left:
        out.warning(f"not removed: {line}")

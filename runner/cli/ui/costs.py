"""The costs of a submission as text, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.cli.ui.output import Output
from runner.core.progress import ignore_progress
from runner.core.units import format_count, format_duration

if TYPE_CHECKING:
    from runner.core.planning.plan import CheckedRun
    from runner.core.pricing.cost import KindCost, ScheduleCost, SubmissionCost
    from runner.core.settings import Settings
    from runner.flows.submit.group import CheckedFile
    from runner.flows.submit.pipeline import SubmissionPlan

_WHY_MORE = {  # by whether the pool has two kinds of nodes
    False: "a task may get a new node while that of the task before it still leaves",
    True: "dedicated nodes may start while spot nodes are missing, or nodes still leave",
}
_NO_LIMIT = {
    True: "no limit, because evicted tasks start again",
    False: "no limit without `timeout`",
}


def cost_lines(cost: SubmissionCost | None) -> dict[str, str]:
    """Return the lines of a plan about its costs, by label; empty for nodes on this machine."""
    from runner.protocol.host import format_usd

    if cost is None:
        return {}
    by_kind = {"spot": cost.spot, "dedicated": cost.dedicated}
    lines = {
        f"costs on {kind}": _kind_text(found, spot=kind == "spot")
        for kind, found in by_kind.items()
        if kind in cost.kinds
    }
    if (cap := cost.cap) is not None:
        nodes = format_count(cap.nodes, "node")
        why = f", because {_WHY_MORE[len(cost.kinds) > 1]}" if cap.nodes > cost.wanted else ""
        lines["cost cap"] = (
            f"{format_usd(cap.cap_micros)}: at most {nodes}{why}, and the job ends after "
            f"{format_duration(cap.job_s)}"
        )
        if cap.rate_limit_micros is not None:
            lines["cost cap"] += (
                f"; it holds while a spot node costs at most {format_usd(cap.rate_limit_micros)} "
                "per hour"
            )
    return lines


def _kind_text(cost: KindCost, *, spot: bool) -> str:
    from runner.protocol.host import format_usd

    if cost.price is None:
        kind = "spot" if spot else "dedicated"
        return f"unknown, because the price table has no {kind} price of the VM size"
    known = cost.expected_micros is not None
    expected = f"{format_usd(cost.expected_micros)} expected" if known else "no `estimate`"
    most = (
        _NO_LIMIT[spot] if cost.worst_micros is None else f"at most {format_usd(cost.worst_micros)}"
    )
    price = cost.price
    extras = f" {price.extras}" if price.extras.startswith("with ") else ""
    per_hour = f"{price.usd_per_hour:g} USD per node and hour{extras}, {price.as_of}"
    return f"{expected}, {most} ({per_hour})"


def cost_summary(cost: SubmissionCost) -> str:
    """Return one line about the costs on the kind of nodes that the pool starts first."""
    lines = cost_lines(cost)
    kind = "spot" if cost.uses_spot else "dedicated"
    cap = f"; cost cap {lines['cost cap']}" if cost.cap else ""
    return f"costs on {kind} nodes: {lines[f'costs on {kind}']}{cap}"


def schedule_cost_lines(cost: ScheduleCost | None, cap_micros: int | None) -> dict[str, str]:
    """Return the lines about the costs of a month, by label; empty for nodes on this machine."""
    from runner.protocol.host import format_usd

    if cost is None:
        return {}
    known = cost.expected_month_micros is not None
    expected = f"{format_usd(cost.expected_month_micros)} expected" if known else "no `estimate`"
    worst = cost.worst_month_micros
    most = "no limit" if worst is None else f"at most {format_usd(worst)}"
    runs = f"{cost.runs:.1f}".removesuffix(".0")
    skipped = ""
    if starts := round(cost.skipped):
        skipped = (
            f", and {starts} starts of a node without a run, {format_usd(cost.skip_micros)} each"
        )
    lines = {"costs per month": f"{expected}, {most}: {runs} runs{skipped}"}
    if cap_micros is not None:
        lines["schedule cap"] = f"{format_usd(cap_micros)}: it ends before its runs cost more"
    return lines


def plan_dry_run(
    out: Output,
    checked: CheckedRun | CheckedFile,
    settings: Settings,
    *,
    run_checks: bool,
    plan: Callable[..., SubmissionPlan] | None = None,
) -> SubmissionPlan:
    """Plan a submission, start nothing, and print the warnings; `plan` replaces the usual plan."""
    from runner.flows.submit.pipeline import dry_run_services, plan_submission

    services = dry_run_services(settings, runs_code=run_checks)
    found = (plan or plan_submission)(checked, services=services, on_progress=ignore_progress)
    for text in found.warnings:
        out.warning(text)
    return found


def group_document(plan: SubmissionPlan, **more: object) -> dict[str, Any]:
    """Return the plan of a group as data."""
    return {
        **plan.run_group.to_json(),
        "priority": plan.job.priority,
        "cost": plan.cost.to_json() if plan.cost else None,
        "not_looked_up": plan.unanswered_json(),
        **more,
        "runs": plan.documents(),
    }

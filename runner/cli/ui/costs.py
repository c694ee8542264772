"""The costs of a submission as text, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.cli.ui.output import Output
from runner.core.progress import ignore_progress
from runner.core.units import format_count, format_duration

if TYPE_CHECKING:
    from runner.core.planning.plan import CheckedRun
    from runner.core.pricing.cost import KindCost, SubmissionCost
    from runner.core.settings import Settings
    from runner.flows.submit.group import CheckedFile
    from runner.flows.submit.pipeline import SubmissionPlan

_NO_LIMIT = {
    True: "no limit, because evicted tasks start again",
    False: "no limit without `timeout`",
}


def cost_lines(cost: SubmissionCost | None) -> dict[str, str]:
    """Return the lines of a plan about its costs, by label; empty for nodes on this machine."""
    from runner.core.pricing.cost import usd_text

    if cost is None:
        return {}
    lines = {
        "costs on spot": _kind_text(cost.spot, spot=True),
        "costs on dedicated": _kind_text(cost.dedicated, spot=False),
    }
    if cost.cap is not None:
        nodes = format_count(cost.cap.nodes, "node")
        lines["cost cap"] = (
            f"{usd_text(cost.cap.cap_micros)}: at most {nodes}, and the job ends after "
            f"{format_duration(cost.cap.job_s)}"
        )
    return lines


def _kind_text(cost: KindCost, *, spot: bool) -> str:
    from runner.core.pricing.cost import usd_text

    if cost.price is None:
        kind = "spot" if spot else "dedicated"
        return f"unknown, because the price table has no {kind} price of the VM size"
    known = cost.expected_micros is not None
    expected = f"{usd_text(cost.expected_micros)} expected" if known else "no `estimate`"
    most = (
        _NO_LIMIT[spot] if cost.worst_micros is None else f"at most {usd_text(cost.worst_micros)}"
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

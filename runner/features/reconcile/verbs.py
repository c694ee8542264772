"""`runner cost --reconcile FILE`: the costs of pools in Azure's bill beside the recorded ones."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from datetime import datetime

    from runner.azure.auth.credentials import Connection
    from runner.cli.ui.output import Output
    from runner.features.reconcile.bill import Bill
    from runner.flows.costs.report import CostReport


def reconcile(
    out: Output, report: CostReport, path: Path, connection: Connection, since: datetime | None
) -> None:
    """Print the costs of pools in Azure's bill next to the recorded costs.

    `path` is a file, or STORED for the exports in the container of the stack.
    """
    from runner.features.reconcile.bill import compare_bills, load_export, total
    from runner.features.reconcile.stored import STORED, load_stored

    account = connection.outputs.batch_account
    stored = str(path) == STORED and not path.exists()
    export = load_stored(connection) if stored else load_export(path, account)
    bills = compare_bills(export, report.ledger.lives)
    bills = tuple(bill for bill in bills if since is None or bill.day >= since.date())
    if report.is_free:
        for bill in bills:
            bill.recorded_micro = None
    if not out.as_text:
        out.rows([_bill(bill) for bill in bills], _BILL_COLUMNS)
        return
    rows: list[dict[str, Any]] = []
    by_pool = sorted(bills, key=lambda bill: (bill.pool, bill.day))
    for pool, found in groupby(by_pool, key=lambda bill: bill.pool):
        days: list[Bill] = list(found)
        summed = total(days)
        hours = summed.billed_hours
        rows.append(
            {
                "pool": pool or f"all of {account}",
                "days": len(days),
                "billed": format_usd(summed.billed_micro),
                "on_record": format_usd(summed.recorded_micro),
                "difference": format_usd(summed.difference_micro),
                "hours_billed": "unknown" if hours is None else f"{hours:.2f}",
                "hours_on_record": f"{summed.recorded_ms / 3_600_000:.2f}",
                "other": format_usd(summed.other_micro),
            }
        )
    columns = tuple(rows[0]) if rows else ("pool",)
    out.rows(rows, columns, empty=f"{path} has no rows about Batch account {account}")
    out.note(
        f"{path}: {export.since} to {export.until}, in UTC; {export.others} rows of other resources"
    )
    if export.currencies:
        named = ", ".join(sorted(export.currencies))
        out.warning(
            f"costs in {named} are not compared, because their value in USD is unknown; hours are"
        )
    if report.is_free:
        out.note("nodes on this machine are free; add --vm-size and --region for a price")
    elif rows:
        out.note(
            "billed and not on record: idle nodes after their last run, nodes without a run, start "
            "and end of nodes, and prices that changed; to see the days: -o json",
            style="dim",
        )


_BILL_COLUMNS = (
    *("day", "pool", "billed_micro_usd", "recorded_micro_usd", "difference_micro_usd"),
    *("billed_hours", "recorded_hours", "other_micro_usd"),
)


def _bill(bill: Bill) -> dict[str, Any]:
    return {
        "day": bill.day.isoformat(),
        "pool": bill.pool or None,
        "billed_micro_usd": bill.billed_micro,
        "recorded_micro_usd": bill.recorded_micro,
        "difference_micro_usd": bill.difference_micro,
        "billed_hours": None if bill.billed_hours is None else float(bill.billed_hours),
        "recorded_hours": bill.recorded_ms / 3_600_000,
        "other_micro_usd": bill.other_micro,
    }

"""A monthly budget for the resource group, with notifications.

A budget notifies but does not stop spending. The node caps of pools and scale to zero limit it.
https://learn.microsoft.com/azure/cost-management-billing/costs/tutorial-acm-create-budgets
(2020-05-27, read 2026-11-21).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import pulumi
from pulumi_azure_native import consumption

from runner_infra.components.context import StackContext
from runner_infra.components.observability import action_group
from runner_infra.config.stack import BudgetConfig


class MonthlyBudget(pulumi.ComponentResource):
    """A budget that notifies at each threshold, and when the forecast exceeds the amount."""

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: BudgetConfig,
        today: date,
    ) -> None:
        super().__init__("runner:infra:MonthlyBudget", name)
        child = pulumi.ResourceOptions(parent=self)
        # A notification needs an e-mail address or an action group; a role is not enough
        # (docs of Notification.contactEmails, azure-native 3.29).
        groups = (
            []
            if config.emails
            else [
                action_group("budget-receivers", context.names.of("ag-cost"), context, (), child).id
            ]
        )
        notifications = {
            f"actual-{percent}": _notification(
                config, groups, percent, consumption.ThresholdType.ACTUAL
            )
            for percent in config.thresholds_percent
        }
        notifications["forecast-100"] = _notification(
            config, groups, 100, consumption.ThresholdType.FORECASTED
        )
        consumption.Budget(
            "budget",
            budget_name=context.names.of("budget"),
            scope=context.resource_group_id,
            category=consumption.CategoryType.COST,
            amount=config.usd_per_month,
            time_grain=consumption.TimeGrainType.MONTHLY,
            # A budget must start in the current month or later. A later deployment keeps its start.
            time_period=consumption.BudgetTimePeriodArgs(start_date=f"{today:%Y-%m}-01T00:00:00Z"),
            notifications=notifications,
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["timePeriod"]),
        )
        self.register_outputs({})


def _notification(
    config: BudgetConfig,
    groups: Sequence[pulumi.Input[str]],
    percent: int,
    kind: consumption.ThresholdType,
) -> consumption.NotificationArgs:
    return consumption.NotificationArgs(
        enabled=True,
        operator=consumption.OperatorType.GREATER_THAN_OR_EQUAL_TO,
        threshold=percent,
        threshold_type=kind,
        contact_emails=list(config.emails),  # required, even if empty
        contact_groups=list(groups) or None,
    )

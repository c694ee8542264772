"""Diagnostics of the Batch account in Log Analytics, and alerts on failed nodes and tasks.

Metric and log names: https://learn.microsoft.com/azure/batch/monitor-batch-reference (2026-08-05,
read 2026-11-21) and the list of Azure Monitor's metrics that it includes.
Node counts are averaged and events are counted; neither is summed:
https://learn.microsoft.com/azure/batch/batch-diagnostics (read 2026-11-21).
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_azure_native import monitor, operationalinsights

from runner_infra.components.batch_account import BatchAccountComponent
from runner_infra.components.context import StackContext
from runner_infra.config.stack import ObservabilityConfig

_OWNER_ROLE = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
_WINDOW_SIZE = "PT15M"
_EVALUATION_FREQUENCY = "PT5M"


class Observability(pulumi.ComponentResource):
    """A workspace for the account's logs and metrics, and two alerts.

    Alerts go to `emails`, or to the owners of the subscription if there are none.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        account: BatchAccountComponent,
        config: ObservabilityConfig,
        adopted_workspace: str | None = None,
    ) -> None:
        super().__init__("runner:infra:Observability", name)
        self._context = context
        self._account = account
        self._child = pulumi.ResourceOptions(parent=self)
        # An adopted workspace may be in another subscription, so that it is not read.
        self.workspace_id: pulumi.Input[str] = adopted_workspace or self._workspace(config).id
        monitor.DiagnosticSetting(
            "diagnostics",
            name=context.names.of("diag"),
            resource_uri=account.account_id,
            workspace_id=self.workspace_id,
            logs=[monitor.DiagnosticsLogSettingsArgs(category_group="allLogs", enabled=True)],
            metrics=[monitor.DiagnosticsMetricSettingsArgs(category="AllMetrics", enabled=True)],
            opts=self._child,
        )
        group = action_group(
            "alert-receivers", context.names.of("ag"), context, config.emails, self._child
        )
        self._alert(
            "unusable-nodes",
            "nodes that could not run their start task",
            group,
            metric="UnusableNodeCount",
            aggregation=monitor.AggregationTypeEnum.AVERAGE,
        )
        self._alert(
            "failed-tasks",
            "tasks that ended with a failure",
            group,
            metric="TaskFailEvent",
            aggregation=monitor.AggregationTypeEnum.COUNT,
        )
        self.register_outputs({"workspace": self.workspace_id})

    def _workspace(self, config: ObservabilityConfig) -> operationalinsights.Workspace:
        context = self._context
        sku = operationalinsights.WorkspaceSkuNameEnum.PER_GB2018
        return operationalinsights.Workspace(
            "logs",
            workspace_name=context.names.of("log"),
            **context.placed,
            sku=operationalinsights.WorkspaceSkuArgs(name=sku),
            retention_in_days=config.retention_days,
            opts=self._child,
        )

    def _alert(
        self,
        name: str,
        description: str,
        group: monitor.ActionGroup,
        *,
        metric: str,
        aggregation: monitor.AggregationTypeEnum,
    ) -> None:
        context = self._context
        above_zero = monitor.MetricCriteriaArgs(
            name=name,
            criterion_type="StaticThresholdCriterion",
            metric_name=metric,
            metric_namespace="Microsoft.Batch/batchAccounts",
            operator=monitor.Operator.GREATER_THAN,
            threshold=0,
            time_aggregation=aggregation,
        )
        monitor.MetricAlert(
            f"alert-{name}",
            rule_name=context.names.of(name),
            description=f"{description} in the last 15 minutes",
            resource_group_name=context.resource_group_name,
            location="global",
            enabled=True,
            auto_mitigate=True,
            severity=2,
            scopes=[self._account.account_id],
            evaluation_frequency=_EVALUATION_FREQUENCY,
            window_size=_WINDOW_SIZE,
            criteria=monitor.MetricAlertSingleResourceMultipleMetricCriteriaArgs(
                odata_type="Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria",
                all_of=[above_zero],
            ),
            actions=[monitor.MetricAlertActionArgs(action_group_id=group.id)],
            tags=dict(context.tags),
            opts=self._child,
        )


def action_group(
    name: str,
    azure_name: str,
    context: StackContext,
    emails: Sequence[str],
    opts: pulumi.ResourceOptions,
) -> monitor.ActionGroup:
    """Return an action group of the addresses, or else of the subscription's owners.

    Args:
        name: the resource's name in Pulumi.
        azure_name: its name in Azure.
        context: the stack.
        emails: the receivers.
        opts: the options of the resource.
    """
    owners = monitor.ArmRoleReceiverArgs(
        name="owners", role_id=_OWNER_ROLE, use_common_alert_schema=True
    )
    return monitor.ActionGroup(
        name,
        action_group_name=azure_name,
        group_short_name="runner",
        resource_group_name=context.resource_group_name,
        location="Global",
        enabled=True,
        email_receivers=[
            monitor.MicrosoftCommonEmailReceiverArgs(
                name=f"email-{number}", email_address=email, use_common_alert_schema=True
            )
            for number, email in enumerate(emails)
        ]
        or None,
        arm_role_receivers=None if emails else [owners],
        tags=dict(context.tags),
        opts=opts,
    )

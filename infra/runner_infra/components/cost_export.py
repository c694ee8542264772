"""A daily export of the costs of the stack, which `runner cost --reconcile azure` reads."""

from __future__ import annotations

from datetime import date, timedelta

import pulumi
from pulumi_azure_native import costmanagement

from runner_infra.components.context import StackContext, assign_role
from runner_infra.components.data_store import DataStore
from runner_infra.components.identity import BLOB_DATA_CONTRIBUTOR

FOLDER = "costs"
_YEARS = 10  # a schedule needs an end


class DailyCosts(pulumi.ComponentResource):
    """The costs of the current month of the stack's group, as CSV, written again every day.

    Cost Management signs in with an identity of the export, so that it needs no account key, and
    reaches the account through its firewall as a trusted service:
    https://learn.microsoft.com/azure/cost-management-billing/costs/tutorial-improved-exports
    (read 2026-11-29).
    """

    def __init__(self, name: str, context: StackContext, store: DataStore, today: date) -> None:
        super().__init__("runner:infra:DailyCosts", name)
        container = store.containers["costs"]
        start = f"{today + timedelta(days=1)}T00:00:00Z"
        end = f"{today.year + _YEARS}-12-31T00:00:00Z"
        self.export = costmanagement.Export(
            "cost-export",
            export_name=context.names.of("costs"),
            scope=context.resource_group_id,
            location=context.location,
            identity=costmanagement.SystemAssignedServiceIdentityArgs(
                type=costmanagement.SystemAssignedServiceIdentityType.SYSTEM_ASSIGNED
            ),
            format=costmanagement.FormatType.CSV,
            partition_data=True,
            definition=costmanagement.ExportDefinitionArgs(
                type=costmanagement.ExportType.ACTUAL_COST,
                timeframe=costmanagement.TimeframeType.MONTH_TO_DATE,
                data_set=costmanagement.ExportDatasetArgs(
                    granularity=costmanagement.GranularityType.DAILY
                ),
            ),
            delivery_info=costmanagement.ExportDeliveryInfoArgs(
                destination=costmanagement.ExportDeliveryDestinationArgs(
                    resource_id=store.account_id,
                    container=container.name,
                    root_folder_path=FOLDER,
                )
            ),
            schedule=costmanagement.ExportScheduleArgs(
                status=costmanagement.StatusType.ACTIVE,
                recurrence=costmanagement.RecurrenceType.DAILY,
                recurrence_period=costmanagement.ExportRecurrencePeriodArgs(from_=start, to=end),
            ),
            # A schedule must begin in the future of its creation. A later deployment keeps it.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["schedule.recurrencePeriod"]),
        )
        assign_role(
            "costs-write-exports",
            context,
            BLOB_DATA_CONTRIBUTOR,
            principal_id=self.export.identity.apply(_principal),
            scope=container.id,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


def _principal(
    identity: costmanagement.outputs.SystemAssignedServiceIdentityResponse | None,
) -> str:
    if identity is None:
        raise ValueError("Azure created the cost export without an identity")
    return identity.principal_id

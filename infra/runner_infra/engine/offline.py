"""A preview of the first deployment, without Azure, the Pulumi CLI or a sign-in.

The program runs with Pulumi's mock monitor in preview mode. Values that Azure computes stay
unknown, as in a preview of the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pulumi
from pulumi.runtime import mocks
from pulumi.runtime.rpc import UNKNOWN
from pulumi_azure_native import authorization

from runner.core.pricing.prices import PriceTable
from runner_infra.components.deployer import Deployer
from runner_infra.components.identity import Operator
from runner_infra.config.stack import StackConfig
from runner_infra.planning.warnings import access_warning
from runner_infra.program import declare

# Replaces the signed-in principal, which is in no output.
_PLACEHOLDER_DEPLOYER = Deployer(
    Operator("00000000-0000-0000-0000-000000000000", authorization.PrincipalType.USER),
    address="192.0.2.1",
)
# Inputs that name a resource and do not follow from its type, the most specific first.
_NAME_KEYS = (
    "galleryImageName",
    "imageTemplateName",
    "containerName",
    "shareName",
    "blobServicesName",
    "managementPolicyName",
    "ruleName",
    "accountName",
    "resourceName",
    "name",
)


@dataclass(frozen=True, slots=True)
class PreviewedResource:
    """A resource that a deployment creates; `azure_name` is empty if Azure decides it."""

    type: str
    name: str
    azure_name: str
    component: str
    protect: bool


def preview_resources(
    config: StackConfig, now: datetime, prices: PriceTable
) -> tuple[list[PreviewedResource], list[str]]:
    """Return every resource of the stack, grouped by component, and the program's warnings.

    Args:
        config: the stack's configuration.
        now: the time of the deployment, aware.
        prices: the prices for spend caps.

    Raises:
        RunnerError: a pool cannot be planned.
    """
    monitor, log = _Monitor(), _WarningLog()

    @mocks.test  # pyright: ignore[reportUnknownMemberType]
    def run() -> pulumi.Output[Any]:
        exports = dict(declare(config, _PLACEHOLDER_DEPLOYER, now, prices))
        return pulumi.Output.from_input(exports)

    with asyncio.Runner() as loop:
        loop.get_loop()  # Pulumi uses the event loop of the thread, and there may be none
        mocks.set_mocks(monitor.mocks, "runner", config.stack, True, log, monitor)
        run()
    components = list(dict.fromkeys(found.component for found in monitor.found))
    if found := access_warning(config, None):
        log.warnings.append(str(found))
    return sorted(monitor.found, key=lambda each: components.index(each.component)), log.warnings


class _WarningLog(logging.Logger):
    """Collects the warnings of the program instead of printing them."""

    def __init__(self) -> None:
        super().__init__("pulumi", logging.WARNING)
        self.warnings: list[str] = []

    def handle(self, record: logging.LogRecord) -> None:
        """Keep the message of a record."""
        self.warnings.append(record.getMessage())


class _Mocks(mocks.Mocks):
    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        del args  # outputs stay unknown
        return None, {}

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]]]:
        if args.token.endswith(":listStorageAccountKeys"):
            return {"keys": [{"keyName": "key1", "permissions": "FULL", "value": ""}]}, []
        arguments = cast("Mapping[str, Any]", args.args)  # pyright: ignore[reportUnknownMemberType]
        return _adopted(arguments), []


def _adopted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of an adopted account or group, of which only the name is known."""
    name = arguments.get("accountName") or arguments.get("resourceGroupName")
    if not name:
        return {}
    hosts = {"blob": "https://unknown", "file": "https://unknown"}
    return {"id": name, "name": name, "accountEndpoint": "unknown", "primaryEndpoints": hosts}


class _Monitor(mocks.MockMonitor):
    def __init__(self) -> None:
        super().__init__(_Mocks())
        self.found: list[PreviewedResource] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  name in the protocol
        if request.custom:
            component = request.parent.rpartition("::")[2] if request.parent else ""
            self.found.append(
                PreviewedResource(
                    type=request.type,
                    name=request.name,
                    azure_name=_azure_name(request.type.rpartition(":")[2], request.object.fields),
                    component=component,
                    protect=request.protect,
                )
            )
        return super().RegisterResource(request)  # pyright: ignore[reportUnknownMemberType]


def _azure_name(kind: str, inputs: Mapping[str, Any]) -> str:
    """Return the input that names the resource, such as `poolName` of a Pool.

    It is empty for role assignments, whose names are GUIDs.
    """
    if kind == "RoleAssignment":
        return ""
    own = f"{kind[0].lower()}{kind[1:]}Name"
    for key in (own, *_NAME_KEYS):
        if key in inputs and (name := inputs[key].string_value) not in ("", UNKNOWN):
            return name
    return ""

"""The versions of a VM image whose definition is to go: they go first, or Azure keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runner.azure.management import Management, arm_endpoint
from runner.core.progress import OnProgress, Progress
from runner.flows.image_versions import delete_versions, find_versions

if TYPE_CHECKING:
    from infra.engine import Change, Deployed, Environment

_IMAGE = "azure-native:compute:GalleryImage"
_GOING = ("delete", "replace")


def image_goes(changes: Sequence[Change]) -> bool:
    """Whether a deployment would delete the definition, for good or to make another."""
    return any(change.type == _IMAGE and change.op in _GOING for change in changes)


def going(
    environment: Environment, changes: Sequence[Change], env: Mapping[str, str]
) -> tuple[Sequence[Deployed], Sequence[str]]:
    """What is deployed and its versions, where a deployment would take their definition away."""
    if not image_goes(changes):
        return (), ()
    from infra.engine import deployed  # noqa: PLC0415  pulumi

    resources = deployed(environment)
    return resources, versions_of(resources, env)


def versions_of(resources: Sequence[Deployed], env: Mapping[str, str]) -> list[str]:
    """The versions of the images among what is deployed."""
    return [name for each in _images(resources) for name in find_versions(*at(each, env))]


def delete_versions_of(
    resources: Sequence[Deployed], env: Mapping[str, str], on_progress: OnProgress
) -> None:
    """Delete them, and wait until the last is gone."""

    def report(left: Sequence[str]) -> None:
        on_progress(Progress("image", "progress", f"deleting version {', '.join(left)}"))

    for definition in _images(resources):
        management, path = at(definition, env)
        on_progress(Progress("image", "start", "looking for versions"))
        delete_versions(management, path, report)
        on_progress(Progress("image", "end", "no version is left"))


def at(resource_id: str, env: Mapping[str, str]) -> tuple[Management, str]:
    """Resource Manager for the subscription of a resource, and the resource."""
    subscription = resource_id.split("/")[2]
    return Management(subscription, endpoint=arm_endpoint(env)), resource_id


def _images(resources: Sequence[Deployed]) -> list[str]:
    return [found.id for found in resources if found.type == _IMAGE]

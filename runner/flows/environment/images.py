"""Build the VM image of a stack; list and delete its versions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from runner.azure.arm.client import ArmClient, open_arm
from runner.azure.arm.subscription import list_batch_accounts
from runner.azure.faults import SIGN_IN
from runner.contract import StackOutputs
from runner.core.azure.arm_faults import DENIED
from runner.core.progress import OnProgress, Progress
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner_infra.engine.automation import Deployed, PulumiStack
    from runner_infra.engine.steps import Change


def container_registry_host(outputs: StackOutputs, stack: str) -> str:
    """Return the host of the container registry. Raise RunnerError if the stack has none."""
    if outputs.registry_server:
        return outputs.registry_server
    raise RunnerError(
        "R-REGISTRY-NONE",
        f"stack {stack!r} has no container registry",
        why="`runner:registry` is off, or was not deployed yet",
        fix=f"set runner:registry: true in Pulumi.{stack}.yaml, then run "
        f"`runner up --stack {stack}`",
    )


_BUILDER = "2024-02-01"
_GALLERIES = "2023-07-03"
_BATCH = "2025-06-01"
POLL_S = 15.0
# The service sometimes answers a GET of a running template with an internal error, but the build
# continues (github.com/danielsollondon/azvmimagebuilder#129, 2022-08).
_MAX_FAILURES = 10
_BEGINS_WITHIN_S = 900
_DEFINITION = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)"
    r"/providers/Microsoft\.Compute/galleries/(?P<gallery>[^/]+)/images/(?P<image>[^/]+)",
    re.IGNORECASE,
)
_ENDED = frozenset({"Succeeded", "PartiallySucceeded", "Failed", "Canceled"})


@dataclass(frozen=True, slots=True)
class ImageHome:
    """The ID of the stack's image definition with its parts, and the Batch account."""

    definition: str
    subscription: str
    group: str
    batch_account: str

    @property
    def group_path(self) -> str:
        """The common prefix of the IDs of all resources in the stack's resource group."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """The last run of a template. `state` is empty before the first; times are Azure's text."""

    state: str
    sub_state: str
    message: str
    started: str
    ended: str
    staging_group: str

    @property
    def over(self) -> bool:
        """True if the run has ended, successfully or not."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class ImageVersion:
    """A version in the gallery. `pools` boot from it, by its number or as `latest`."""

    version: str
    created: datetime | None
    state: str
    regions: tuple[str, ...]
    node_agent: str
    end_of_life: str
    pools: tuple[str, ...]


def locate_image(outputs: StackOutputs) -> ImageHome:
    """Return the location of the stack's image. Raise R-IMAGE-NONE if it has none."""
    found = _DEFINITION.fullmatch(outputs.image_definition or "")
    if found is None:
        raise RunnerError(
            "R-IMAGE-NONE",
            "this stack has no custom VM image",
            why="the pools boot a marketplace image"
            if outputs.image_definition is None
            else f"{outputs.image_definition!r} is not the ID of an image definition",
            fix="set runner:image: {} in Pulumi.<stack>.yaml, then run `runner up`",
        )
    parts = found.groupdict()
    return ImageHome(found[0], parts["subscription"], parts["group"], outputs.batch_account)


def find_template(management: ArmClient, home: ImageHome) -> str:
    """Return the path of the newest template that builds versions of the definition."""
    listed = f"{home.group_path}/providers/Microsoft.VirtualMachineImages/imageTemplates"
    found = [
        (str(_dict(document, "systemData").get("createdAt", "")), str(document["name"]))
        for document in management.pages(listed, _BUILDER)
        if _builds_versions_of(document, home.definition)
    ]
    if not found:
        raise RunnerError(
            "R-IMAGE-TEMPLATE",
            "the image template of the stack's VM image is missing",
            why=f"no template in resource group {home.group} distributes to {home.definition}",
            fix="run `runner up`, which creates it again",
        )
    return f"{listed}/{max(found)[1]}"


def load_status(management: ArmClient, template: str) -> BuildStatus:
    """Return the status of the template's last run."""
    properties = _dict(management.get(template, _BUILDER), "properties")
    run = _dict(properties, "lastRunStatus")
    names = ("runState", "runSubState", "message", "startTime", "endTime")
    state, sub_state, message, started, ended = (str(run.get(name) or "") for name in names)
    staging = str(properties.get("exactStagingResourceGroup") or "").rpartition("/")[2]
    return BuildStatus(state, sub_state, message, started, ended, staging)


def start_build(management: ArmClient, template: str) -> BuildStatus:
    """Start a run unless one is active. Return the status before."""
    before = load_status(management, template)
    if before.state not in {"Running", "Canceling"}:
        management.send("POST", f"{template}/run", _BUILDER)
    return before


def watch_build(management: ArmClient, template: str, before: BuildStatus) -> Iterator[BuildStatus]:
    """Yield the status of the run that `start_build` returned, at each poll, until it ends."""
    begin, failures = time.monotonic(), 0
    while True:
        try:
            now, failures = load_status(management, template), 0
        except RunnerError as err:
            failures += 1
            if failures > _MAX_FAILURES or err.code in (SIGN_IN, DENIED, "R-AZURE-MISSING"):
                raise
            time.sleep(POLL_S)
            continue
        # Right after the start, the status is missing or that of the previous run.
        old = now.over and now.started == before.started and before.over
        if now.state and not old:
            yield now
            if now.over:
                return
        elif time.monotonic() - begin > _BEGINS_WITHIN_S:
            name = template.rpartition("/")[2]
            why = f"template {name} accepted the request, but no run started within 15 minutes"
            raise _failed(why, "run `runner image build` again")
        time.sleep(POLL_S)


def built_version(management: ArmClient, template: str) -> str:
    """Return the version that the last run created. Raise R-IMAGE-BUILD if there is none."""
    output = management.find(f"{template}/runOutputs/gallery", _BUILDER)
    artifact = str(_dict(output or {}, "properties").get("artifactId") or "")
    _, versions, version = artifact.rpartition("/versions/")
    if not versions:
        raise _failed("the build succeeded without a version", "run `runner image ls`")
    return version


def build_failure(status: BuildStatus) -> RunnerError:
    """Return the error of a run that failed, or did not replicate to all regions."""
    said = " ".join(status.message.split())[:300] or f"its state is {status.state}"
    place = (
        f"resource group {status.staging_group}" if status.staging_group else "the staging group"
    )
    log = f"customization.log, in container packerlogs of the storage account of {place}"
    return _failed(said, f"read {log}; its last lines name the step that failed")


def list_versions(management: ArmClient, home: ImageHome) -> list[ImageVersion]:
    """Return all versions, newest first, with the pools that boot them."""
    definition = _dict(management.get(home.definition, _GALLERIES), "properties")
    life = str(definition.get("endOfLifeDate") or "")[:10]
    found = [
        _version(document, life)
        for document in management.pages(f"{home.definition}/versions", _GALLERIES)
    ]
    found.sort(key=lambda v: _numbers(v.version), reverse=True)
    users = _pools_by_version(management, home)
    ready = [v.version for v in found if v.state == "Succeeded"]
    if ready:
        of_latest = [f"{pool} (latest)" for pool in users.get("", ())]
        users.setdefault(ready[0], []).extend(of_latest)
    return [replace(each, pools=tuple(users.get(each.version, ()))) for each in found]


def _pools_by_version(management: ArmClient, home: ImageHome) -> dict[str, list[str]]:
    """Return pool names by version; the empty version stands for `latest`."""
    # An adopted account may be in another group than the image.
    part = f"/providers/Microsoft.Batch/batchAccounts/{home.batch_account}"
    listed = (each.id for each in list_batch_accounts(management))
    accounts = [each for each in listed if each.lower().endswith(part.lower())]
    users: dict[str, list[str]] = {}
    pools = (
        pool
        for account in accounts or [f"{home.group_path}{part}"]
        for pool in management.pages(f"{account}/pools", _BATCH)
    )
    for pool in pools:
        deployment = _dict(_dict(pool, "properties"), "deploymentConfiguration")
        machine = _dict(deployment, "virtualMachineConfiguration")
        image = str(_dict(machine, "imageReference").get("id") or "")
        start, _, version = image.partition("/versions/")
        if start.lower() == home.definition.lower():
            users.setdefault(version, []).append(str(pool.get("name")))
    return users


def _version(document: Mapping[str, Any], life: str) -> ImageVersion:
    properties, tags = _dict(document, "properties"), _dict(document, "tags")
    publishing = _dict(properties, "publishingProfile")
    published = str(publishing.get("publishedDate") or "")
    regions = cast("list[dict[str, Any]]", publishing.get("targetRegions") or [])
    own_life = str(publishing.get("endOfLifeDate") or "")[:10]
    return ImageVersion(
        version=str(document["name"]),
        created=datetime.fromisoformat(published) if published else None,
        state=str(properties.get("provisioningState") or ""),
        regions=tuple(str(region["name"]) for region in regions),
        node_agent=str(tags.get("runner-node-agent") or ""),
        end_of_life=own_life or str(tags.get("runner-os-end-of-life") or life),
        pools=(),
    )


def _builds_versions_of(template: Mapping[str, Any], definition: str) -> bool:
    given = _dict(template, "properties").get("distribute")
    distribute = cast("list[dict[str, Any]]", given or [])
    return any(
        str(each.get("galleryImageId") or "").lower() == definition.lower() for each in distribute
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in version.split("."))


def _dict(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: Any = document.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _failed(why: str, fix: str) -> RunnerError:
    return RunnerError("R-IMAGE-BUILD", "the image was not built", why=why, fix=fix)


DELETE_POLL_S = 5.0
_DELETE_TIMEOUT_S = 1800


def find_versions(management: ArmClient, definition: str) -> list[str]:
    """Return the names of the versions; empty if the definition is gone."""
    if management.find(definition, _GALLERIES) is None:
        return []
    listed = management.pages(f"{definition}/versions", _GALLERIES)
    return [str(document["name"]) for document in listed]


def delete_versions(
    management: ArmClient, definition: str, on_left: Callable[[Sequence[str]], None]
) -> None:
    """Delete all versions, and wait. `on_left` is called with the remaining ones at each poll."""
    begin, asked = time.monotonic(), set[str]()
    while left := find_versions(management, definition):
        on_left(left)
        for version in left:
            if version not in asked:  # a deletion takes minutes, and a second request gets 409
                management.send("DELETE", f"{definition}/versions/{version}", _GALLERIES)
                asked.add(version)
        if time.monotonic() - begin > _DELETE_TIMEOUT_S:
            raise RunnerError(
                "R-IMAGE-DELETE",
                "the versions of the VM image are not deleted yet",
                why=f"after 30 minutes Azure still lists {', '.join(left)} of {definition}",
                fix="run the same command again; the portal shows the state of each version",
            )
        time.sleep(DELETE_POLL_S)


_IMAGE = "azure-native:compute:GalleryImage"
_DELETING_OPS = ("delete", "replace")


def deleted_images(
    stack: PulumiStack, changes: Sequence[Change], env: Mapping[str, str]
) -> tuple[Sequence[Deployed], Sequence[str]]:
    """Return deployed resources and image versions if a deployment deletes the definition."""
    if not any(change.type == _IMAGE and change.op in _DELETING_OPS for change in changes):
        return (), ()
    from runner_infra.engine.automation import deployed  # noqa: PLC0415  pulumi

    resources = deployed(stack)
    return resources, versions_of(resources, stack.in_cloud(env))


def versions_of(resources: Sequence[Deployed], env: Mapping[str, str]) -> list[str]:
    """Return the names of all versions of the deployed image definitions."""
    return [name for each in _images(resources) for name in find_versions(*image_at(each, env))]


def delete_versions_of(
    resources: Sequence[Deployed], env: Mapping[str, str], on_progress: OnProgress
) -> None:
    """Delete all versions of the deployed image definitions, and wait for the end."""

    def report(left: Sequence[str]) -> None:
        on_progress(Progress("image", "progress", f"deleting version {', '.join(left)}"))

    for definition in _images(resources):
        management, path = image_at(definition, env)
        on_progress(Progress("image", "start", "looking for versions"))
        delete_versions(management, path, report)
        on_progress(Progress("image", "end", "all versions are deleted"))


def image_at(resource_id: str, env: Mapping[str, str]) -> tuple[ArmClient, str]:
    """Return a client for the subscription of a resource, and the resource's ID."""
    subscription = resource_id.split("/")[2]
    return open_arm(subscription, env), resource_id


def has_image(resources: Sequence[Deployed]) -> bool:
    """Return True if an image definition is deployed."""
    return bool(_images(resources))


def _images(resources: Sequence[Deployed]) -> list[str]:
    return [found.id for found in resources if found.type == _IMAGE]

"""Contradictions between keys of a stack's file."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from runner.contract import MOVER_POOL, SHARED_TEAM
from runner.core.azure.clouds import cloud_of_region
from runner.core.pricing.machines import region_name
from runner.core.yaml_files import FieldPath, FieldProblem
from runner_infra.config.adopt_contradictions import (
    adopt_contradictions,
    network_contradictions,
)
from runner_infra.config.pool import BlobMount, FilesMount, OfficeHours, PoolConfig
from runner_infra.config.stack import BUDGET_TAG, CONTAINERS, ID_TAG, OUTPUTS_TAG, StackConfig
from runner_infra.config.vm_sizes import size_problems

# 3 to 24 lower-case letters and digits.
# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
# (read 2026-11-21)
_ACCOUNT_NAME = re.compile(r"[a-z0-9]{3,24}")
# Tag names have no <>%&\\?/ and no prefix that Azure reserves. A resource may have 50 tags, of
# which we set up to 8 (image versions). The limit of 128 characters is that of storage accounts.
# https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources
# (2022-03-15, read 2026-11-21)
_TAG_NAME = re.compile(r"(?!microsoft|azure|windows)[^<>%&\\?/]{1,128}", re.IGNORECASE)
_MAX_TAGS = 40
_RUNNER_TAGS = ("app", "stack")
_RESERVED_TAGS = (*_RUNNER_TAGS, BUDGET_TAG, ID_TAG, OUTPUTS_TAG)
# Our choice. The script is an environment variable in base64, which adds a third; Linux allows
# 128 KiB.
_MAX_SCRIPT_BYTES = 32 * 1024
_PRIVATE_RANGES = tuple(
    map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
)
# `shared` selects the shared part; `runs-runner-runner-dev` is a name of stack `runner-dev`, too.
_RESERVED_TEAMS = (SHARED_TEAM, "runner")
_Problem = tuple[tuple[int | str, ...], str, str]  # place, what, fix


def contradictions(config: StackConfig, folder: Path) -> Iterator[FieldProblem]:
    """Yield problems that would let the deployment or a node fail.

    Args:
        config: the stack's configuration, whose single values are valid.
        folder: folder of the scripts that pools name.
    """
    seen: set[FieldPath] = set()
    for place, what, fix in (*_contradictions(config), *_script_problems(config.pools, folder)):
        if place not in seen:  # only one problem per field
            yield FieldProblem(place, what, "", fix)
        seen.add(place)


def _script_problems(pools: Sequence[PoolConfig], folder: Path) -> Iterator[_Problem]:
    for number, pool in enumerate(pools):
        if pool.start_script is not None and (found := _check_script(folder / pool.start_script)):
            yield ("pools", number, "start_script"), *found


def _check_script(file: Path) -> tuple[str, str] | None:
    try:
        content = file.read_bytes()
    except OSError as err:
        return f"cannot read {file}: {err.strerror}", "use a path relative to the stack's file"
    if not content.startswith(b"#!"):
        return f"{file.name} does not begin with #!", "begin the script with #!/bin/bash"
    if len(content) > _MAX_SCRIPT_BYTES:
        what = f"{file.name} has {len(content)} bytes; the limit of a start script is 32 KiB"
        return what, "add large files to the image, or download them in the script"
    return None


def _cloud_contradictions(config: StackConfig) -> Iterator[_Problem]:
    home = cloud_of_region(region_name(config.location))
    if home.name != config.cloud:
        what = f"region {config.location!r} is in cloud {home.name!r}, not in {config.cloud!r}"
        fix = f"set runner:cloud: {home.name}, or use a region of cloud {config.cloud!r}"
        yield ("location",), what, fix


def _ci_contradictions(config: StackConfig) -> Iterator[_Problem]:
    if config.ci is not None and config.storage.file_share_gib is not None:
        what = "a plan of a pull request would need the account key, which the file share needs"
        yield ("ci",), what, "remove runner:ci, or storage.file_share_gib"
    network = config.network
    own = network is not None and not network.private and not config.adopted.storage_account
    if config.ci is not None and own and network and network.storage_from is None:
        what = (
            "the address from which a workflow deploys is unknown, so its deployments would let "
            "the firewall of the storage account exclude people"
        )
        fix = "add storage_from: the ranges that need access, such as [203.0.113.0/24], or all"
        yield ("network",), what, fix


def _contradictions(config: StackConfig) -> Iterator[_Problem]:
    storage = config.storage
    yield from _cloud_contradictions(config)
    yield from _ci_contradictions(config)
    yield from adopt_contradictions(config)
    if storage.account_name is not None and not _ACCOUNT_NAME.fullmatch(storage.account_name):
        yield (
            ("storage", "account_name"),
            f"invalid storage account name {storage.account_name!r}",
            "use 3 to 24 lower-case letters and digits, or remove the key",
        )
    if storage.file_share_gib is not None and storage.shared_keys is False:
        yield (
            ("storage", "file_share_gib"),
            "a file share needs account keys, but shared_keys is false",
            "remove file_share_gib or shared_keys",
        )
    if storage.file_share_gib is None and storage.shared_keys:
        yield (
            ("storage", "shared_keys"),
            "account keys are enabled only with a file share, but there is none",
            "remove shared_keys, or set file_share_gib",
        )
    thresholds = config.budget.thresholds_percent if config.budget is not None else ()
    if len(set(thresholds)) < len(thresholds):
        yield ("budget", "thresholds_percent"), "duplicate threshold", "list each threshold once"
    yield from _operator_contradictions(config)
    yield from network_contradictions(config)
    yield from _firewall_contradictions(config)
    for number, (key, what, fix) in size_problems(config.vm_sizes).items():
        yield ("vm_sizes", number, key), what, fix
    yield from _team_contradictions(config)
    yield from _tag_contradictions(("tags",), config.tags, _RUNNER_TAGS)
    if not config.pools:
        yield ("pools",), "no pool", "add a pool: - id: t4"
    seen: dict[str, str] = {}
    for number, pool in enumerate(config.pools):
        where = ("pools", number)
        if pool.id.lower() == MOVER_POOL:
            what = f"the id {pool.id!r} is reserved for the pool of the mover"
            yield (*where, "id"), what, "use another id"
        if (first := seen.setdefault(pool.id.lower(), pool.id)) is not pool.id:
            what = f"two pools have the id {first!r} (case is ignored)"
            yield (*where, "id"), what, "give each pool a unique id"
        yield from _tag_contradictions((*where, "tags"), pool.tags, (*_RUNNER_TAGS, *config.tags))
        problems = (_pool_contradictions(pool), _missing_parts(config, pool))
        for key, what, fix in chain(*problems, _ssh_contradictions(config, pool)):
            yield (*where, key), f"pool {pool.id!r}: {what}", fix


def _operator_contradictions(config: StackConfig) -> Iterator[_Problem]:
    seen: set[str] = set()
    for number, operator in enumerate(config.operators):
        place = ("operators", number)
        if operator.id is None and operator.name is None:
            yield place, "an operator has no id and no name", "add id: OBJECT_ID"
        elif operator.id is None and operator.kind != "user":
            what = f"only users have names, and {operator.name!r} is a {operator.kind}"
            yield (*place, "kind"), what, "use id: OBJECT_ID"
        given = str(operator.id or operator.name).lower()
        if given in seen:
            yield place, f"duplicate operator {given!r}", "list each operator once"
        seen.add(given)


def _firewall_contradictions(config: StackConfig) -> Iterator[_Problem]:
    if config.network is None:
        return
    if config.adopted.storage_account and config.network.storage_from is not None:
        what = "the firewall of an adopted storage account is not changed"
        yield ("network", "storage_from"), what, "remove it"
    if isinstance(config.network.storage_from, tuple):
        for number, text in enumerate(config.network.storage_from):
            yield from _storage_range_problem(number, text)


def _team_contradictions(config: StackConfig) -> Iterator[_Problem]:
    """Yield what would let the nodes of one team use the identity or the data of another."""
    if not config.teams:
        return
    apart = "use a stack for each team"
    if config.nodes_add_tasks:
        what = (
            "nodes could add tasks to the pools of every team, because Azure has no narrower role"
        )
        yield ("nodes_add_tasks",), what, f"remove it, or {apart}"
    for number, pool in enumerate(config.pools):
        if pool.team in _RESERVED_TEAMS:
            what = f"pool {pool.id!r}: the name {pool.team!r} is reserved"
            yield ("pools", number, "team"), what, "use another name, or remove team"
        if any(isinstance(mount, FilesMount) for mount in pool.mounts):
            what = f"pool {pool.id!r} mounts the file share with the account key"
            yield (
                ("pools", number, "mounts"),
                f"{what}, which opens the containers of every team",
                f"mount a container with kind: blob, or {apart}",
            )


def _storage_range_problem(number: int, text: str) -> Iterator[_Problem]:
    place = ("network", "storage_from", number)
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as err:
        yield place, str(err), "use a range such as 203.0.113.0/24"
        return
    # https://learn.microsoft.com/azure/storage/common/storage-network-security-ip-address-range
    # (read 2026-11-22)
    if any(network.overlaps(private) for private in _PRIVATE_RANGES) and network.prefixlen:
        what = (
            f"{network} is private, but the firewall of a storage account requires public addresses"
        )
        yield place, what, "use the public address of your network"


def _tag_contradictions(
    where: tuple[int | str, ...], tags: Mapping[str, str], taken: Collection[str]
) -> Iterator[_Problem]:
    """Yield the problems of tags; names are compared without case."""
    exact = set(taken) - set(_RUNNER_TAGS)
    others = Counter(name.lower() for name in {*tags, *taken})
    for name, value in tags.items():
        if not _TAG_NAME.fullmatch(name) or len(value) > 256:
            what = f"Azure refuses tag {name[:40]!r} with a value of {len(value)} characters"
            yield where, what, "use up to 128 characters without <>%&\\?/, and 256 for values"
        elif name.lower() in _RESERVED_TAGS or (others[name.lower()] > 1 and name not in exact):
            yield where, f"duplicate tag {name!r} (case is ignored)", "rename one"
    if tags and len({*tags, *taken}) > _MAX_TAGS:
        yield where, f"{len({*tags, *taken})} tags", f"use at most {_MAX_TAGS} tags per resource"


def _pool_contradictions(pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    if pool.max_spot + pool.max_dedicated < 1:
        yield "max_spot", "the pool can have no nodes", "set max_spot or max_dedicated to 1 or more"
    for key in ("formula", "office_hours"):
        if (pool.scenario == key) != (getattr(pool, key) is not None):
            what = f"scenario {key!r} requires the key {key}, and vice versa"
            yield "scenario", what, "set both or neither"
    if pool.office_hours is not None and (what := _clock_problem(pool.office_hours)):
        yield (
            "office_hours",
            what,
            "use values such as start: '08:00', end: '18:00', utc_offset_hours: 1",
        )
    both = pool.max_spot > 0 and pool.max_dedicated > 0
    if pool.scenario == "spot_first_with_dedicated_fallback" and not both:
        fix = "set max_spot and max_dedicated to 1 or more"
        yield "scenario", "the scenario with a fallback requires spot and dedicated nodes", fix
    if pool.scenario in ("scale_to_zero", "office_hours") and both:
        fix = "set one of the two to 0, or use spot_first_with_dedicated_fallback"
        yield "max_dedicated", f"{pool.scenario} uses either spot or dedicated nodes", fix
    if pool.inter_node_communication and pool.max_spot + pool.max_dedicated > 100:
        # https://learn.microsoft.com/azure/batch/batch-quota-limit (read 2026-11-21)
        fix = "lower max_spot or max_dedicated, or declare two pools"
        yield "max_spot", "a pool with inter_node_communication has at most 100 nodes", fix
    if pool.image.source == "gallery" and "sku" in pool.image.model_fields_set:
        what = "image.sku applies to marketplace images, but the image is in the gallery"
        yield "image", what, "remove image.sku"
    if pool.container_images and not pool.containers:
        fix = "set containers: true, or remove container_images"
        yield "container_images", "container_images require containers: true", fix
    paths = [mount.path.lower() for mount in pool.mounts]
    if len(set(paths)) < len(paths):
        yield "mounts", "two mounts have the same path", "give each mount a unique path"


def _ssh_contradictions(config: StackConfig, pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    for text in pool.ssh_from:
        try:
            ipaddress.IPv4Network(text)
        except ValueError as err:
            yield "ssh_from", str(err), "use an address such as 203.0.113.7/32"
    if pool.ssh_from and (config.network is not None or config.adopted.subnet is not None):
        what = "nodes in a network have no public address"
        yield "ssh_from", what, "remove the key, and use `runner ssh` through a VPN"


def _clock_problem(hours: OfficeHours) -> str | None:
    if hours.start == hours.end:
        return "start and end are the same time"
    moments = (hours.start, hours.end)
    if any(moment.tzinfo or moment.second or moment.microsecond for moment in moments):
        return "start and end must be hours and minutes, without seconds and time zone"
    return None


def _missing_parts(config: StackConfig, pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    if (
        pool.image.source == "gallery"
        and 0 < (pool.os_disk.size_gib or 0 if pool.os_disk else 0) < 64
    ):
        yield "os_disk", "the stack's own image needs 64 GiB", "set os_disk.size_gib to 64 or more"
    if pool.image.source == "gallery" and config.image is None:
        yield (
            "image",
            "the image is in the gallery, but the stack has no gallery",
            "add runner:image: {}, or set image.source to marketplace",
        )
    for mount in pool.mounts:
        if isinstance(mount, FilesMount) and config.storage.file_share_gib is None:
            yield (
                "mounts",
                "the pool mounts the file share, but the stack has none",
                "set storage.file_share_gib, or mount a container with kind: blob",
            )
        if isinstance(mount, BlobMount) and mount.container not in CONTAINERS:
            what = f"unknown container {mount.container!r}"
            yield "mounts", what, f"use one of {', '.join(CONTAINERS)}"

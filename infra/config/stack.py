"""`Pulumi.<stack>.yaml` as typed values, with the start scripts that its pools name."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from infra.config.pool import BlobMount, FilesMount, OfficeHours, PoolConfig, Section
from runner.core.yaml_files import Document, TextField, check_document, field_error, read_document
from runner.protocol.errors import ExitCode, RunnerError

# Our choice. The script is one environment variable, base64 adds a third, and Linux allows 128 KiB.
_MAX_SCRIPT_BYTES = 32 * 1024
_ScriptProblem = tuple[tuple[int | str, ...], str, str]  # where, what, fix


def script_problems(pools: Sequence[PoolConfig], folder: Path) -> Iterator[_ScriptProblem]:
    """Yield the problems of the pools' scripts: location, problem and fix."""
    for number, pool in enumerate(pools):
        if pool.start_script is not None and (found := _script_problem(folder / pool.start_script)):
            yield ("pools", number, "start_script"), *found


def with_scripts(pools: Sequence[PoolConfig], folder: Path) -> tuple[PoolConfig, ...]:
    """Return the pools with absolute paths of their scripts."""
    return tuple(
        pool.model_copy(update={"start_script": str(folder.absolute() / pool.start_script)})
        if pool.start_script is not None
        else pool
        for pool in pools
    )


def _script_problem(file: Path) -> tuple[str, str] | None:
    try:
        content = file.read_bytes()
    except OSError as err:
        return f"cannot read {file}: {err.strerror}", "use a path relative to the stack's file"
    if not content.startswith(b"#!"):
        return f"{file.name} does not start with #!", "start it with #!/bin/bash"
    if len(content) > _MAX_SCRIPT_BYTES:
        what = f"{file.name} has {len(content)} bytes; a start script may have 32 KiB"
        return what, "add large files to the image, or download them in the script"
    return None


_CODE = "R-STACK-CONFIG"
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
_OUR_TAGS = ("app", "stack")
CONTAINERS = ("runs", "models", "data")
_Email = Annotated[
    str,
    TextField(
        r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
        "an e-mail address",
        "one @, and a dot after it",
        "team@company.example",
    ),
]
_Uuid = Annotated[
    str,
    TextField(
        r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        "an id of Azure",
        "32 hexadecimal digits in five groups; az account show and az ad user show print some",
        "00000000-1111-2222-3333-444444444444",
    ),
]
_StackName = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        "the name of a stack",
        "letters, digits, dots, _ and -, 100 at most, and begins with a letter or digit",
        "dev",
    ),
]
_Location = Annotated[
    str,
    TextField(
        r"^[a-z0-9]+$",
        "the name of a region",
        "small letters and digits; az account list-locations prints all",
        "westeurope",
    ),
]


class StorageConfig(Section):
    """The storage account. Account keys are enabled only with a file share, which needs them.

    `shared_keys` must agree with that; `false` makes sure that no file share is added.
    """

    account_name: str | None = None
    file_share_gib: int | None = Field(default=None, ge=1, le=102400)
    shared_keys: bool | None = None
    keep_runs_days: int | None = Field(default=None, ge=1)
    cool_models_days: int = Field(default=30, ge=1)


class NetworkConfig(Section):
    """A virtual network for the pools, with a NAT gateway for outbound traffic."""

    address_space: str = "10.20.0.0/16"
    pool_subnet: str = "10.20.0.0/20"


class ImageConfig(Section):
    """The stack's own VM image. It is verified on a GPU, so `build_vm_size` must have one."""

    build_vm_size: str = "Standard_NC4as_T4_v3"
    replicate_to: tuple[str, ...] = Field(default=(), strict=False)


class BudgetConfig(Section):
    """A monthly budget. It notifies but does not stop spending.

    Azure allows five notifications with thresholds from 0 to 1000 (docs of Budget, azure-native
    3.29); one is used for the forecast.
    """

    usd_per_month: float = Field(default=100, gt=0, strict=False)
    emails: tuple[_Email, ...] = Field(default=(), max_length=50, strict=False)
    thresholds_percent: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = Field(
        default=(50, 80, 100), min_length=1, max_length=4, strict=False
    )


class ObservabilityConfig(Section):
    """Diagnostics in Log Analytics, and alerts to `emails`."""

    retention_days: int = Field(default=30, ge=30, le=730)
    emails: tuple[_Email, ...] = Field(default=(), strict=False)


class OperatorConfig(Section):
    """An Entra principal that may submit runs; `id` is its object id."""

    id: _Uuid
    kind: Literal["user", "group", "service_principal"] = "user"


class StackConfig(Section):
    """The configuration of a stack. `operators` may submit runs, as may whoever deploys.

    `nodes_add_tasks` lets nodes add tasks to jobs, which schedules of several tasks need.
    """

    stack: _StackName
    subscription_id: _Uuid
    location: _Location
    tags: dict[str, str] = Field(default_factory=dict)
    operators: tuple[OperatorConfig, ...] = Field(default=(), strict=False)
    storage: StorageConfig = StorageConfig.model_construct()
    network: NetworkConfig | None = None
    image: ImageConfig | None = None
    registry: bool = False
    nodes_add_tasks: bool = False
    budget: BudgetConfig = BudgetConfig.model_construct()
    observability: ObservabilityConfig | None = ObservabilityConfig.model_construct()
    pools: tuple[PoolConfig, ...] = Field(strict=False)


def parse_stack_config(values: Mapping[str, Any], *, stack: str, file: Path) -> StackConfig:
    """Return the checked configuration of a stack.

    Args:
        values: the `runner:` keys without prefix, `location` and `subscription_id`.
        stack: the name of the stack.
        file: the file that the values came from, for errors.

    Raises:
        RunnerError: a value is missing or invalid; it names the file, the field and, if the file
            can be read, the line.
    """
    return _checked(values, stack, file)


def load_stack_config(file: Path, *, environment: Mapping[str, str]) -> StackConfig:
    """Return the checked configuration of `Pulumi.<stack>.yaml`, read without Pulumi.

    Args:
        file: the stack's file.
        environment: ARM_LOCATION and ARM_SUBSCRIPTION_ID are used if the file has neither.

    Raises:
        RunnerError: the file cannot be read, or a value is missing or invalid.
    """
    raw: object = read_document(file, code=_CODE).data.get("config", {})
    config = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    named = ((str(key).partition(":"), value) for key, value in config.items())
    values = {name: value for (whose, _, name), value in named if whose == "runner"}
    values["location"] = config.get("azure-native:location") or environment.get("ARM_LOCATION")
    values["subscription_id"] = config.get("azure-native:subscriptionId") or environment.get(
        "ARM_SUBSCRIPTION_ID"
    )
    stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
    return _checked(values, stack, file)


def _checked(values: Mapping[str, Any], stack: str, file: Path) -> StackConfig:
    document = Document(file, {**values, "stack": stack}, lambda: _runner_tree(file))
    for key, setting in (("location", "location"), ("subscription_id", "subscriptionId")):
        if not values.get(key):
            raise RunnerError(
                f"{_CODE}-MISSING",
                f"{file.name} does not set the {key.replace('_id', '')}",
                why=f"azure-native:{setting} is not set for stack {stack!r}",
                fix=f"add azure-native:{setting}: VALUE under config: in {file.name} "
                f"(or run `pulumi config set azure-native:{setting} VALUE --stack {stack}`)",
                exit_code=ExitCode.PREFLIGHT,
            )
    config = check_document(document, StackConfig, code=_CODE)
    scripts = script_problems(config.pools, file.parent)
    for location, problem, fix in (*_contradictions(config), *scripts):
        raise field_error(document, location, problem, code=_CODE, fix=fix)
    return config.model_copy(update={"pools": with_scripts(config.pools, file.parent)})


def _runner_tree(file: Path) -> Any:
    """Return the file's YAML tree with our keys, so that errors can name lines.

    None if it cannot be read, because the values may come from Pulumi.
    """
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415  only for errors

    try:
        found = read_document(file, code=_CODE).find_tree().get("config")
    except RunnerError:
        return None
    if not isinstance(found, CommentedMap):
        return None
    tree = CommentedMap()
    lines = cast("dict[str, Any]", cast("Any", found).lc.data)
    for key, value in cast("Mapping[str, Any]", found).items():
        if str(key).startswith("runner:"):
            name = key.split(":", 1)[1]
            tree[name] = value
            cast("Any", tree).lc.add_kv_line_col(name, lines[key])
    return tree


_Problem = tuple[tuple[int | str, ...], str, str]  # where, what, fix


def _contradictions(config: StackConfig) -> Iterator[_Problem]:
    storage = config.storage
    if storage.account_name is not None and not _ACCOUNT_NAME.fullmatch(storage.account_name):
        yield (
            ("storage", "account_name"),
            f"invalid storage account name {storage.account_name!r}",
            "use 3 to 24 lower-case letters and digits, or remove it",
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
            "account keys are enabled only with a file share, and there is none",
            "remove it, or set file_share_gib",
        )
    thresholds = config.budget.thresholds_percent
    if len(set(thresholds)) < len(thresholds):
        yield ("budget", "thresholds_percent"), "duplicate threshold", "list each threshold once"
    yield from _network_contradictions(config)
    yield from _tag_contradictions(("tags",), config.tags, _OUR_TAGS)
    if not config.pools:
        yield ("pools",), "no pool", "add one: - id: t4"
    seen: dict[str, str] = {}
    for number, pool in enumerate(config.pools):
        where = ("pools", number)
        if (first := seen.setdefault(pool.id.lower(), pool.id)) is not pool.id:
            what = f"two pools have the id {first!r} (case is ignored)"
            yield (*where, "id"), what, "give each pool a unique id"
        yield from _tag_contradictions((*where, "tags"), pool.tags, (*_OUR_TAGS, *config.tags))
        problems = (_pool_contradictions(pool), _missing_parts(config, pool))
        for key, what, fix in chain(*problems, _ssh_contradictions(config, pool)):
            yield (*where, key), f"pool {pool.id!r}: {what}", fix


def _network_contradictions(config: StackConfig) -> Iterator[_Problem]:
    if config.network is None:
        return
    found: dict[str, ipaddress.IPv4Network] = {}
    for key, text in config.network.model_dump().items():
        try:
            found[key] = ipaddress.IPv4Network(text)
        except ValueError as err:
            yield ("network", key), f"{err}", "write it as 10.20.0.0/16"
            return
    space, subnet = found["address_space"], found["pool_subnet"]
    if not subnet.subnet_of(space):
        what = f"{subnet} is not inside address_space {space}"
        yield ("network", "pool_subnet"), what, "use a part of the address space"
    # Azure reserves five addresses of a subnet, and a node needs one.
    # https://learn.microsoft.com/azure/virtual-network/virtual-networks-faq (read 2026-11-21)
    if subnet.prefixlen > 29:
        what = f"{subnet} has no address for a node"
        yield ("network", "pool_subnet"), what, "use /29 or larger"


def _tag_contradictions(
    where: tuple[int | str, ...], tags: Mapping[str, str], taken: Collection[str]
) -> Iterator[_Problem]:
    """Yield the problems of tags, whose names are compared without case."""
    exact = set(taken) - set(_OUR_TAGS)
    others = Counter(name.lower() for name in {*tags, *taken})
    for name, value in tags.items():
        if not _TAG_NAME.fullmatch(name) or len(value) > 256:
            what = f"Azure refuses tag {name[:40]!r} with a value of {len(value)} characters"
            yield where, what, "use up to 128 characters without <>%&\\?/, and 256 for values"
        elif name.lower() in _OUR_TAGS or (others[name.lower()] > 1 and name not in exact):
            yield where, f"duplicate tag {name!r} (case is ignored)", "rename one"
    if len({*tags, *taken}) > _MAX_TAGS:
        yield where, f"{len({*tags, *taken})} tags", f"use at most {_MAX_TAGS} tags a resource"


def _pool_contradictions(pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    if pool.max_spot + pool.max_dedicated < 1:
        yield "max_spot", "it can have no node", "set max_spot or max_dedicated to 1 or more"
    if (pool.scenario == "formula") != (pool.formula is not None):
        yield (
            "scenario",
            "scenario 'formula' and the key formula go together",
            "set both or neither",
        )
    if (pool.scenario == "office_hours") != (pool.office_hours is not None):
        yield "scenario", "scenario and key office_hours go together", "set both or neither"
    if pool.office_hours is not None and (what := _clock_problem(pool.office_hours)):
        yield (
            "office_hours",
            what,
            "use for example start: '08:00', end: '18:00', utc_offset_hours: 1",
        )
    both = pool.max_spot > 0 and pool.max_dedicated > 0
    if pool.scenario == "spot_first_with_dedicated_fallback" and not both:
        fix = "set max_spot and max_dedicated to 1 or more"
        yield "scenario", "a fallback needs spot and dedicated nodes", fix
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
        yield "container_images", "they need containers: true", fix
    paths = [mount.path.lower() for mount in pool.mounts]
    if len(set(paths)) < len(paths):
        yield "mounts", "two mounts have the same path", "give each mount a unique path"


def _ssh_contradictions(config: StackConfig, pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    for text in pool.ssh_from:
        try:
            ipaddress.IPv4Network(text)
        except ValueError as err:
            yield "ssh_from", str(err), "write addresses as 203.0.113.7/32"
    if pool.ssh_from and config.network is not None:
        what = "nodes in the stack's network have no public address"
        yield "ssh_from", what, "remove it; use `runner ssh` through a VPN"


def _clock_problem(hours: OfficeHours) -> str | None:
    if hours.start == hours.end:
        return "start and end are the same time"
    moments = (hours.start, hours.end)
    if any(moment.tzinfo or moment.second or moment.microsecond for moment in moments):
        return "start and end must be hours and minutes, without seconds or time zone"
    return None


def _missing_parts(config: StackConfig, pool: PoolConfig) -> Iterator[tuple[str, str, str]]:
    if pool.image.source == "gallery" and config.image is None:
        yield (
            "image",
            "its image is in the gallery, but the stack has no gallery",
            "add runner:image: {}, or set image.source to marketplace",
        )
    for mount in pool.mounts:
        if isinstance(mount, FilesMount) and config.storage.file_share_gib is None:
            yield (
                "mounts",
                "it mounts the file share, but the stack has none",
                "set storage.file_share_gib, or mount a container with kind: blob",
            )
        if isinstance(mount, BlobMount) and mount.container not in CONTAINERS:
            what = f"unknown container {mount.container!r}"
            yield "mounts", what, f"use one of {', '.join(CONTAINERS)}"

"""Check the machines of a pool: VM size, image, node agent, network and disks.

The tables are files in the folder of this module, each with its source. Codes and names of
properties come from recorded answers (among them the tests of the SDK for Java, `test-recordings`
of microsoft-azure-batch, github.com/Azure/azure-sdk-for-java, read 2026-11-23); where no answer was
recorded, the reasons are ours [S].
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, known_cores, part, parts
from batch_emulator.domain.validation.properties import MAX_SLOTS, require, require_range

_FOLDER = files("batch_emulator.domain.validation")
_OTHER_MODE = "UserSubscriptionOnly"
_UNLISTED = "unlisted"


@dataclass(frozen=True, slots=True)
class SupportedImage:
    """A row of the table of images.

    `support` is empty if the service lists the image, and `unlisted` if it never listed it.
    """

    publisher: str
    offer: str
    sku: str
    agent: str
    os: str
    verification: str
    capabilities: tuple[str, ...]
    support: str

    @property
    def listed(self) -> bool:
        """Return True if the service lists the image for accounts in Batch service mode."""
        return not self.support and _OTHER_MODE not in self.capabilities

    @property
    def retired(self) -> bool:
        """Return True if the support of the service for the image has ended."""
        return self.support not in ("", _UNLISTED)


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """Which machines pools may have.

    `sizes` are VM sizes in addition to the table. With `any_machine`, size and image are not
    checked. With `strict`, images whose support has ended are refused, and so are pools that the
    service refuses to create for a client that signs with the account's key.
    """

    sizes: tuple[str, ...] = ()
    any_machine: bool = False
    strict: bool = False


@cache
def supported_images() -> tuple[SupportedImage, ...]:
    """Return the table of images, listed ones first."""
    text = (_FOLDER / "supported_images.csv").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows: list[SupportedImage] = []
    for row in csv.DictReader(lines):
        capabilities = tuple(filter(None, row.pop("capabilities").split(";")))
        rows.append(SupportedImage(**row, capabilities=capabilities))
    return tuple(rows)


@cache
def _images() -> Mapping[tuple[str, str, str], SupportedImage]:
    return {(one.publisher, one.offer, one.sku): one for one in supported_images()}


@cache
def vm_sizes() -> frozenset[str]:
    """Return the known VM sizes, in lower case."""
    lines = (_FOLDER / "vm_sizes.txt").read_text("utf-8").split("\n")
    found = (name for line in lines if not line.startswith("#") for name in _expanded(line))
    return frozenset(name.lower() for name in found if name)


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for: `a{b,c}` stands for ab and ac."""
    before, brace, rest = pattern.strip().partition("{")
    if not brace:
        yield before
        return
    choices, _, after = rest.partition("}")
    for choice in choices.split(","):
        for end in _expanded(after):
            yield f"{before}{choice}{end}"


def check_machine(pool: Json, choice: MachineChoice, *, new: bool = True) -> None:
    """Refuse a pool whose nodes the service would not create. Raises Fault.

    A change of a pool (`new` is false) may add users of the other operating system, without effect
    (recorded, 2025-09).
    """
    if pool.get("cloudServiceConfiguration"):
        return  # check_pool refuses it
    require(pool, "virtualMachineConfiguration")
    machine = part(pool, "virtualMachineConfiguration")
    require(machine, "imageReference", "nodeAgentSKUId")
    if not choice.any_machine:
        _check_size(str(pool["vmSize"]), choice)
        _check_slots(pool)
        if new:  # before the image (recorded 2023-05-23)
            _check_users(pool, windows=_is_windows(machine))
        _check_image_id(machine)
    if choice.strict:  # before the node agent: what the SDK for JavaScript tests
        _check_shared_key(pool)
    if not choice.any_machine:
        _check_image(machine, choice)
        if "windowsConfiguration" in machine and not _is_windows(machine):  # docs
            raise bad_property("windowsConfiguration", "", "allowed for images of Windows only")
    _check_encryption(machine)
    _check_inbound(pool)


def _is_windows(machine: Json) -> bool:
    return "windows" in str(machine["nodeAgentSKUId"]).lower()


def _check_size(size: str, choice: MachineChoice) -> None:
    given = size.lower()
    if given not in vm_sizes() and given not in {name.lower() for name in choice.sizes}:
        reason = "The specified VM size is not supported by Batch (--vm-size NAME accepts another)"
        raise bad_property("vmSize", size, reason)


def _check_slots(pool: Json) -> None:
    """Refuse more than four slots a core (docs of taskSlotsPerNode), where the cores are known."""
    cores = known_cores(str(pool["vmSize"]))
    if cores is not None:
        require_range(pool, "taskSlotsPerNode", 1, min(4 * cores, MAX_SLOTS))


def _check_users(pool: Json, *, windows: bool) -> None:
    """Refuse users of the other operating system (recorded)."""
    other = "linuxUserConfiguration" if windows else "windowsUserConfiguration"
    for user in parts(pool, "userAccounts"):
        if other in user:
            reason = (
                f"The user configuration for user account '{user['name']}' has a mismatch with the "
                "OS (Windows/Linux) configuration specified in VirtualMachineConfiguration"
            )
            raise Fault("InvalidPropertyValue", {"PropertyName": other, "Reason": reason})


_RESOURCE = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers"
_GALLERY = f"{_RESOURCE}/Microsoft.Compute/galleries/{{galleryName}}/images/{{galleryImageName}}"
_FORMATS = (
    f"{_RESOURCE}/Microsoft.Compute/images/{{imageName}}",
    f"{_GALLERY}/versions/{{galleryImageVersionName}}",
    _GALLERY,
)
_IMAGE_ID = re.compile(
    "|".join(re.sub(r"\{\w+\}", "[^/]+", text) for text in _FORMATS), re.IGNORECASE
)
_FROM_GALLERIES = ("virtualMachineImageId", "sharedGalleryImageId", "communityGalleryImageId")


def _check_image(machine: Json, choice: MachineChoice) -> None:
    reference = part(machine, "imageReference")
    agent = str(machine["nodeAgentSKUId"])
    if any(reference.get(name) for name in _FROM_GALLERIES):
        if agent.lower() not in {one.agent for one in supported_images()}:
            raise bad_property("nodeAgentSKUId", agent, "The specified node agent SKU is unknown")
        return
    require(reference, "publisher", "offer", "sku")
    names = [str(reference[name]) for name in ("publisher", "offer", "sku")]
    first, second, third = (name.lower() for name in names)
    image = _images().get((first, second, third))
    shown = " ".join(f"{key} {name}" for key, name in zip(_KEYS, names, strict=True))
    said = f"The specified imageReference with {shown}"
    if image is None or (choice.strict and image.retired):
        why = "" if image is None else " Its support has ended."
        raise bad_property("imageReference", shown, f"{said} is not supported.{why}")
    if _OTHER_MODE in image.capabilities:
        reason = "The image requires an account in user subscription mode"
        raise bad_property("imageReference", shown, reason)
    if agent.lower() != image.agent:
        reason = f"The node agent SKU of the specified image ({shown}) is '{image.agent}'"
        raise bad_property("nodeAgentSKUId", agent, reason)
    if "containerConfiguration" in machine and "DockerCompatible" not in image.capabilities:
        reason = f"{said} does not support container feature."
        raise Fault(
            "InvalidPropertyValue", {"PropertyName": "containerConfiguration", "Reason": reason}
        )


_KEYS = ("publisher", "offer", "sku")


def _check_image_id(machine: Json) -> None:
    """Refuse an ARM id beside another image, and one of another form. Raises Fault."""
    reference = part(machine, "imageReference")
    given = [name for name in _FROM_GALLERIES if reference.get(name)]
    if not given:
        return
    others = [name for name in _KEYS if reference.get(name)]
    if len(given) > 1 or others:
        reason = f"exclusive with {', '.join([*given[1:], *others])}"
        raise bad_property(given[0], reference[given[0]], reason)
    value = str(reference[given[0]])
    if given[0] == _FROM_GALLERIES[0] and not _IMAGE_ID.fullmatch(value):
        *first, last = _FORMATS
        formats = f"{', '.join(first)}, or {last}"
        reason = f"The specified resource id must be of the format {formats}"
        raise bad_property(given[0], value, reason)


_OTHER_GALLERIES = re.compile(
    r"/(?:shared|community)galleries/[^/]+/images/[^/]+(?:/versions/[^/]+)?"
)


def why_unknown_image(reference: str, choice: MachineChoice) -> str | None:
    """Return why no pool can have an image, or None.

    The reference is `publisher:offer:sku`, maybe with a version, or an ARM id, in lower case.
    """
    if reference.startswith("/"):
        known = _IMAGE_ID.fullmatch(reference) or _OTHER_GALLERIES.fullmatch(reference)
        return None if known else "it is not the ARM id of an image"
    names = reference.split(":")
    if len(names) not in (3, 4) or not all(names):
        return "publisher:offer:sku, publisher:offer:sku:version or an ARM id is expected"
    if choice.any_machine or tuple(names[:3]) in _images():
        return None
    known = [":".join(one) for one in _images()]
    near = get_close_matches(":".join(names[:3]), known, n=1, cutoff=0.3)
    return (
        f"the service lists no such image; the nearest is {near[0]}" if near else "it is unlisted"
    )


def _check_shared_key(pool: Json) -> None:
    """Refuse properties that the docs allow "only with Microsoft Entra authentication"."""
    reason = "requires authentication with Microsoft Entra ID instead of the account's key"
    subnet = part(pool, "networkConfiguration").get("subnetId")
    if subnet:
        raise bad_property("subnetId", subnet, f"A subnet {reason}")
    reference = part(part(pool, "virtualMachineConfiguration"), "imageReference")
    for name in _FROM_GALLERIES:
        if reference.get(name):
            raise bad_property(name, reference[name], f"An image of a gallery {reason}")


def _check_encryption(machine: Json) -> None:
    """Refuse encryption that no pool of the data plane can have (2025-06-01; recorded, docs)."""
    encryption = part(machine, "diskEncryptionConfiguration")
    if encryption.get("customerManagedKey"):
        reason = "Pool Identity is required when using CustomerManagedKey."
        raise Fault("InvalidPropertyValue", {"PropertyName": "identity", "Reason": reason})
    targets: Any = encryption.get("targets") or ()
    wanted = {str(target).lower() for target in targets}
    if not wanted:
        return
    windows = _is_windows(machine)
    if windows and wanted != {"osdisk", "temporarydisk"}:
        reason = "On Windows both osdisk and temporarydisk must be specified"
        raise bad_property("diskEncryptionConfiguration/targets", sorted(wanted), reason)
    if not windows and wanted != {"temporarydisk"}:
        reason = "On Linux only temporarydisk is supported"
        raise bad_property("diskEncryptionConfiguration/targets", sorted(wanted), reason)


# docs of BatchInboundNatPool and NetworkSecurityGroupRule in azure-batch 15.1
_MAX_NAT_POOLS, _MAX_NAT_RULES, _MIN_FRONTEND_PORTS = 5, 25, 40
_FRONTEND_PORTS, _RESERVED_FRONTEND = range(1, 65535), range(50000, 55001)
_BACKEND_PORTS, _RESERVED_BACKEND = range(1, 65536), (29876, 29877)
_RULE_PRIORITIES = range(150, 4097)
_NAT_POOLS = "networkConfiguration/endpointConfiguration/inboundNATPools"


def _check_inbound(pool: Json) -> None:
    """Refuse ports and rules that the service refuses for endpoints of nodes."""
    network = part(pool, "networkConfiguration")
    nat_pools = parts(part(network, "endpointConfiguration"), "inboundNATPools")
    provision = part(network, "publicIPAddressConfiguration").get("provision")
    if nat_pools and str(provision).lower() == "nopublicipaddresses":  # docs: inboundNATPools
        reason = "not allowed for nodes without public IP addresses"
        raise bad_property(_NAT_POOLS, len(nat_pools), reason)
    if len(nat_pools) > _MAX_NAT_POOLS:
        raise bad_property(_NAT_POOLS, len(nat_pools), f"at most {_MAX_NAT_POOLS} are allowed")
    ranges: list[range] = []
    backends: list[int] = []
    for number, nat in enumerate(nat_pools):
        where, port = f"{_NAT_POOLS}/{number}", nat["backendPort"]
        if port not in _BACKEND_PORTS or port in (*_RESERVED_BACKEND, *backends):
            reason = "1 to 65535 is allowed, without 29876 and 29877 and those of other NAT pools"
            raise bad_property(f"{where}/backendPort", port, reason)
        backends.append(port)
        ports = _frontend_ports(where, nat)
        if any(ports.start < other.stop and other.start < ports.stop for other in ranges):
            reason = "the ranges of NAT pools may not overlap"
            raise bad_property(f"{where}/frontendPortRangeStart", ports.start, reason)
        ranges.append(ports)
    _check_rules(nat_pools)


def _frontend_ports(where: str, nat: Json) -> range:
    for name in ("frontendPortRangeStart", "frontendPortRangeEnd"):
        if nat[name] not in _FRONTEND_PORTS or nat[name] in _RESERVED_FRONTEND:
            reason = "1 to 65534 is allowed, without 50000 to 55000"
            raise bad_property(f"{where}/{name}", nat[name], reason)
    ports = range(nat["frontendPortRangeStart"], nat["frontendPortRangeEnd"] + 1)
    if len(ports) < _MIN_FRONTEND_PORTS:
        reason = f"a range must contain at least {_MIN_FRONTEND_PORTS} ports"
        raise bad_property(f"{where}/frontendPortRangeEnd", nat["frontendPortRangeEnd"], reason)
    if ports.start < _RESERVED_FRONTEND.start < ports.stop:
        reason = "50000 to 55000 are reserved"
        raise bad_property(f"{where}/frontendPortRangeEnd", nat["frontendPortRangeEnd"], reason)
    return ports


def _check_rules(nat_pools: list[Json]) -> None:
    """Refuse priorities out of range, and used twice in a pool."""
    name, seen = "networkSecurityGroupRules", list[int]()
    for number, nat in enumerate(nat_pools):
        for place, rule in enumerate(parts(nat, name)):
            priority = rule["priority"]
            if priority not in _RULE_PRIORITIES or priority in seen:
                reason = "150 to 4096 is allowed, each once in a pool"
                where = f"{_NAT_POOLS}/{number}/{name}/{place}/priority"
                raise bad_property(where, priority, reason)
            seen.append(priority)
    if len(seen) > _MAX_NAT_RULES:
        raise bad_property(_NAT_POOLS, len(seen), f"at most {_MAX_NAT_RULES} rules in a pool")


def check_auto_pool(job: Json, choice: MachineChoice, before: Json | None = None) -> None:
    """Refuse a job, or a job specification, with an invalid machine in its auto pool.

    The auto pool that the job had `before` is not checked again, because the tables may have
    changed. Raises Fault.
    """
    pool = _auto_pool(job)
    if pool and pool != _auto_pool(before or {}):
        check_machine(pool, choice)


def _auto_pool(job: Json) -> Json:
    return part(part(part(job, "poolInfo"), "autoPoolSpecification"), "pool")

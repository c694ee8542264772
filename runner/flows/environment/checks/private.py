"""Check that the names of private accounts resolve to private addresses on this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runner.azure.auth.credentials import outputs_path
from runner.contract import ContractError, parse_stack_outputs
from runner.core.checks import Check, passed, skipped, warned
from runner.core.settings import Settings

if TYPE_CHECKING:
    from runner_infra.config.stack import StackConfig

PRIVATE = "private"  # the name of the checks
_GUIDE = "docs/guides/azure.md#a-private-environment"
Resolve = Callable[[str], Sequence[str]]


def resolve(host: str) -> Sequence[str]:
    """Return the addresses of a host. Raise OSError if it has none."""
    found = socket.getaddrinfo(host, 443, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def check_private(
    stack: StackConfig, settings: Settings, resolve: Resolve = resolve
) -> Iterator[Check]:
    """Check the names of the accounts of a deployed stack with private access.

    A deployment needs no access to them, because it only talks to Resource Manager. Every other
    command does. A public address means that the DNS server of this machine does not know the
    private zone, so that requests reach the public endpoint, which refuses them.
    """
    if not stack.is_private:
        return
    try:
        outputs = parse_stack_outputs(outputs_path(settings).read_text(encoding="utf-8"))
    except (OSError, ContractError):
        yield skipped(PRIVATE, "names can be resolved after the first `runner up`")
        return
    endpoints = (outputs.batch_endpoint, outputs.blob_endpoint, outputs.file_endpoint)
    good: list[str] = []
    for host in (urlsplit(url).hostname for url in endpoints if url):
        if host is None:
            continue
        if found := _problem(host, resolve):
            yield found
        else:
            good.append(host)
    if good:
        yield passed(PRIVATE, f"private addresses: {', '.join(good)}")


def _problem(host: str, resolve: Resolve) -> Check | None:
    try:
        addresses = resolve(host)
    except OSError as err:
        fix = f"connect to the network of the stack and use its DNS server: {_GUIDE}"
        return warned(PRIVATE, f"{host} does not resolve ({err.strerror or err})", fix)
    public = [text for text in addresses if not ipaddress.ip_address(text).is_private]
    if not public:
        return None
    return warned(
        PRIVATE,
        f"{host} resolves to {public[0]}, a public address, which refuses requests: commands that "
        "read or submit runs fail on this machine",
        f"connect to the network of the stack and use its DNS server: {_GUIDE}",
    )

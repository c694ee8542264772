"""The SSH host keys of nodes: what the node wrote to storage decides, else the first connection.

Each environment has one file in the format of OpenSSH. Its names are not addresses, which other
nodes get later, but the account, the pool, the node and its start: a node that is created anew has
new keys.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.azure.batch.node_users import Address, TaskPlace
from runner.core.home import HomePaths, not_writable
from runner.protocol.errors import RunnerError

# One key as OpenSSH writes it. In particular no line break, which would add other entries.
_KEY = re.compile(r"(?P<kind>(?:ssh|ecdsa)-[a-z0-9-]{1,40}) (?P<key>[A-Za-z0-9+/]{40,4000}={0,3})")
_REFUSED = "Host key verification failed"


@dataclass(frozen=True, slots=True)
class TrustedHost:
    """A node as ssh knows it: `name` in a file of host keys.

    `is_recorded`: the node wrote its keys to storage, so that no other key is accepted.
    """

    node: str
    file: Path
    name: str
    is_recorded: bool

    @property
    def options(self) -> dict[str, str]:
        """The options for `ssh`."""
        return {
            "HostKeyAlias": self.name,
            "UserKnownHostsFile": str(self.file),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes" if self.is_recorded else "accept-new",
            "UpdateHostKeys": "no",  # a node may not add keys
        }


def trust_host(
    home: Path, account: str, place: TaskPlace, address: Address, recorded: Sequence[str]
) -> TrustedHost:
    """Write the recorded host keys of a node to the file of its environment, and return the node.

    Args:
        home: RUNNER_HOME.
        account: the endpoint of the Batch account.
        place: the node.
        address: its address, with the time of its start.
        recorded: the public keys that the agent on the node wrote to storage; empty for runs of an
            older runner, whose first connection decides.

    Raises:
        RunnerError: R-REACH-HOST-KEY: a recorded key is invalid, or differs from an earlier one.
    """
    file = HomePaths(home).ssh / f"known_hosts.{_plain(account.partition('://')[2] or account)}"
    name = _plain(f"{place.pool}.{place.node}.{address.booted}")
    host = TrustedHost(place.node, file, name, bool(recorded))
    keys = {found["kind"]: found["key"] for each in recorded if (found := _KEY.fullmatch(each))}
    if recorded and not keys:
        raise _differs(host, "the host keys that the node wrote to storage are damaged")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = _read(file, name)
        for kind in known.keys() & keys.keys():
            if known[kind] != keys[kind]:
                raise _differs(host, f"the node wrote another {kind} key to storage")
        missing = [f"{name} {kind} {key}\n" for kind, key in keys.items() if kind not in known]
        if missing:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write("".join(missing))
    except OSError as err:
        raise not_writable(file.parent, err) from err
    return host


def check_host_key(argv: Sequence[str], host: TrustedHost) -> None:
    """After ssh failed, raise RunnerError if the reason is the host key.

    ssh prints its reason to the terminal, so it is asked again, without a command.

    Args:
        argv: the `ssh` command without its remote command.
        host: the node.
    """
    try:
        done = subprocess.run(
            [*argv, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode and _REFUSED in done.stderr:
        what = "the one that the node wrote to storage" if host.is_recorded else "the earlier one"
        raise _differs(host, f"the host key of the connection is not {what}")


def _read(file: Path, name: str) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    parts = [line.split() for line in lines]
    return {part[1]: part[2] for part in parts if len(part) >= 3 and part[0] == name}


def _plain(text: str) -> str:
    """Return a text without characters that mean something in a file of host keys."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())


def _differs(host: TrustedHost, why: str) -> RunnerError:
    return RunnerError(
        "R-REACH-HOST-KEY",
        f"the host key of node {host.node} is not trusted",
        why=f"{why}: another machine may answer in its place",
        fix=f"find out why; if you trust the node: ssh-keygen -R {host.name} -f {host.file}",
    )

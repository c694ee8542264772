"""User accounts on nodes: kept by name, with everything but their password.

Nobody can sign in to an emulated node, so passwords are checked for being there and forgotten.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from batch_emulator.account import Account
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json, Node, part
from batch_emulator.transitions.node_operations import WORKING, require_state
from batch_emulator.values import parse_time, time_text
from batch_emulator.wire.bodies import require

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_LIFE = timedelta(days=1)  # docs: expiryTime


def add(account: Account, node: Node, body: Json, now: datetime) -> str:
    """Add a user; its name. Raises Fault."""
    require_state(node, *WORKING)
    require(body, "name")
    name = body["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_property("name", name, "a user name of Linux is expected")
    if _key(node, name) in node.users:
        raise Fault("NodeUserExists", {"UserName": name})
    is_admin = body.get("isAdmin", False)
    if not isinstance(is_admin, bool):
        raise bad_property("isAdmin", is_admin, "true or false is expected")
    node.users[_key(node, name)] = {"name": name, "isAdmin": is_admin} | _secrets(node, body, now)
    account.save_node(node)
    return name


def update(account: Account, node: Node, name: str, body: Json, now: datetime) -> None:
    """Replace what can be updated: what is absent is the default again (docs). Raises Fault."""
    require_state(node, *WORKING)
    user = _require(node, name)
    kept = {"name": user["name"], "isAdmin": user["isAdmin"]}
    node.users[_key(node, name)] = kept | _secrets(node, body, now)
    account.save_node(node)


def delete(account: Account, node: Node, name: str) -> None:
    """Remove a user. Raises Fault."""
    require_state(node, *WORKING)
    _require(node, name)
    del node.users[_key(node, name)]
    account.save_node(node)


def _require(node: Node, name: str) -> Json:
    user = node.users.get(_key(node, name))
    if user is None:
        raise Fault("NodeUserNotFound", {"UserName": name[:64]})
    return user


def _windows(node: Node) -> bool:
    machine = part(node.pool.spec, "virtualMachineConfiguration")
    return "windows" in str(machine.get("nodeAgentSKUId", "")).lower()


def _key(node: Node, name: str) -> str:
    return name.lower() if _windows(node) else name


def _secrets(node: Node, body: Json, now: datetime) -> Json:
    password, key = body.get("password"), body.get("sshPublicKey")
    for label, value in (("password", password), ("sshPublicKey", key)):
        if value is not None and not isinstance(value, str):
            raise bad_property(label, "", "text is expected")
    if _windows(node) and key is not None:
        raise bad_property("sshPublicKey", "", "allowed on Linux nodes only")
    if _windows(node) and not password:
        raise Fault("MissingRequiredProperty", {"PropertyName": "password"})
    user: Json = {"expiryTime": time_text(_expiry(body, now)), "hasPassword": bool(password)}
    return user if key is None else user | {"sshPublicKey": key}


def _expiry(body: Json, now: datetime) -> datetime:
    text = body.get("expiryTime")
    if text is None:
        return now + _LIFE
    try:
        return parse_time(text)
    except (TypeError, ValueError, OverflowError) as err:
        raise bad_property("expiryTime", text, "an ISO 8601 time is expected") from err

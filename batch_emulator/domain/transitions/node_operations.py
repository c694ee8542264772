"""Operations of clients on nodes: reboot, reimage, deallocate, start, scheduling, users.

Nobody can sign in to an emulated node, so passwords are required and then discarded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import ExecutionKind, Json, Node, NodeState, Stop, part
from batch_emulator.domain.transitions import nodes
from batch_emulator.domain.transitions.states import set_node, settle_node, stop_execution
from batch_emulator.domain.validation.properties import require
from batch_emulator.domain.values import parse_time, time_text

WORKING = (NodeState.IDLE, NodeState.RUNNING)
# The docs allow only idle and running nodes to restart. Users also restart nodes whose start task
# failed (batch-shipyard 341, BatchExplorer 102) [X], but cannot restart unusable nodes (aztk 557,
# doAzureParallel 328, code NodeStateUnusable).
_RESTARTABLE = (*WORKING, NodeState.START_TASK_FAILED)
_REFUSALS: Mapping[NodeState, str] = {
    NodeState.REBOOTING: "NodeBeingRebooted",
    NodeState.REIMAGING: "NodeBeingReimaged",
    NodeState.CREATING: "NodeBeingCreated",
    NodeState.STARTING: "NodeBeingStarted",
    NodeState.UNUSABLE: "NodeStateUnusable",
}
_DISABLE_STOPS = {"requeue": Stop.REQUEUE, "terminate": Stop.TERMINATE, "taskcompletion": None}


def require_state(node: Node, *allowed: NodeState) -> None:
    """Refuse an operation in another state, with the code of that state. Raises Fault."""
    if node.state in allowed and node.next_state is None:
        return
    state = node.next_state if node.state in allowed and node.next_state else node.state
    code = _REFUSALS.get(state, "OperationInvalidForCurrentState")
    raise Fault(code, {"State": node.state.value})


def reboot(account: Account, node: Node, option: str, now: datetime) -> None:
    """Restart the node; its disk stays. Raises Fault."""
    stop = nodes.stop_for(option, "nodeRebootOption")
    require_state(node, *_RESTARTABLE)
    keeps = option == "retaineddata"
    nodes.drain_into(account, node, NodeState.REBOOTING, stop, now, keeps_data=keeps)


def reimage(account: Account, node: Node, option: str, now: datetime) -> None:
    """Reinstall the node: its disk is empty afterwards. Raises Fault.

    The docs allow it only for pools of cloud services, which no longer exist; clients use it for
    other pools, too [X].
    """
    stop = nodes.stop_for(option, "nodeReimageOption")
    require_state(node, *_RESTARTABLE)
    keeps = option == "retaineddata"
    nodes.drain_into(account, node, NodeState.REIMAGING, stop, now, keeps_data=keeps)


def deallocate(account: Account, node: Node, option: str, now: datetime) -> None:
    """Give the machine back with its disk, and keep the node [S]. Raises Fault."""
    stop = nodes.stop_for(option, "nodeDeallocateOption")
    require_state(node, *WORKING)
    keeps = option == "retaineddata"
    nodes.drain_into(account, node, NodeState.DEALLOCATING, stop, now, keeps_data=keeps)


def start(account: Account, node: Node, now: datetime) -> None:
    """Get a machine for a deallocated node. Raises Fault."""
    require_state(node, NodeState.DEALLOCATED)
    nodes.create(account, node, now, NodeState.STARTING)


def disable_scheduling(account: Account, node: Node, option: str, now: datetime) -> None:
    """Stop scheduling tasks on the node; it is offline once its tasks have ended. Raises Fault."""
    if option not in _DISABLE_STOPS:
        allowed = f"one of {', '.join(_DISABLE_STOPS)}"
        raise bad_property("nodeDisableSchedulingOption", option, allowed)
    _require_scheduling(node, enabled=True)
    node.scheduling = False
    why = _DISABLE_STOPS[option]
    if why is not None:
        for execution in list(node.executions.values()):
            if execution.kind is ExecutionKind.TASK:
                stop_execution(account, execution, why)
    settle_node(account, node, now)
    account.save_node(node)


def enable_scheduling(account: Account, node: Node, now: datetime) -> None:
    """Schedule tasks on the node again. Raises Fault."""
    _require_scheduling(node, enabled=False)
    node.scheduling = True
    if node.state is NodeState.OFFLINE:
        set_node(account, node, NodeState.IDLE, now)
    account.save_node(node)


def _require_scheduling(node: Node, *, enabled: bool) -> None:
    """Refuse to set the value that the node already has (from tests of the .NET SDK)."""
    if node.scheduling is not enabled:
        state = "enabled" if node.scheduling else "disabled"
        raise Fault("NodeAlreadyInTargetSchedulingState", {"SchedulingState": state})


_USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_USER_LIFETIME = timedelta(days=1)  # docs: expiryTime


def add_user(account: Account, node: Node, body: Json, now: datetime) -> str:
    """Add a user and return its name. Raises Fault."""
    require_state(node, *WORKING)
    require(body, "name")
    name = body["name"]
    if not _USER_NAME.fullmatch(name):
        raise bad_property("name", name, "a user name of Linux is expected")
    if _user_key(node, name) in node.users:
        raise Fault("NodeUserExists", {"UserName": name})
    user: Json = {"name": name, "isAdmin": body.get("isAdmin", False)}
    node.users[_user_key(node, name)] = user | _user_secrets(node, body, now)
    account.save_node(node)
    return name


def update_user(account: Account, node: Node, name: str, body: Json, now: datetime) -> None:
    """Replace a user; an absent property gets its default again (docs). Raises Fault."""
    require_state(node, *WORKING)
    user = _require_user(node, name)
    kept = {"name": user["name"], "isAdmin": user["isAdmin"]}
    node.users[_user_key(node, name)] = kept | _user_secrets(node, body, now)
    account.save_node(node)


def delete_user(account: Account, node: Node, name: str) -> None:
    """Remove a user. Raises Fault."""
    require_state(node, *WORKING)
    _require_user(node, name)
    del node.users[_user_key(node, name)]
    account.save_node(node)


def _require_user(node: Node, name: str) -> Json:
    user = node.users.get(_user_key(node, name))
    if user is None:
        raise Fault("NodeUserNotFound", {"UserName": name[:64]})
    return user


def _is_windows(node: Node) -> bool:
    machine = part(node.pool.spec, "virtualMachineConfiguration")
    return "windows" in str(machine.get("nodeAgentSKUId", "")).lower()


def _user_key(node: Node, name: str) -> str:
    return name.lower() if _is_windows(node) else name


def _user_secrets(node: Node, body: Json, now: datetime) -> Json:
    password, key = body.get("password"), body.get("sshPublicKey")
    if _is_windows(node) and key is not None:
        raise bad_property("sshPublicKey", "", "allowed on Linux nodes only")
    if _is_windows(node) and not password:
        raise Fault("MissingRequiredProperty", {"PropertyName": "password"})
    user: Json = {"expiryTime": time_text(_user_expiry(body, now)), "hasPassword": bool(password)}
    return user if key is None else user | {"sshPublicKey": key}


def _user_expiry(body: Json, now: datetime) -> datetime:
    text = body.get("expiryTime")
    return now + _USER_LIFETIME if text is None else parse_time(text)

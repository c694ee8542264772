"""What clients do to nodes: reboot, reimage, deallocate, start, scheduling off and on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Kind, Node, NodeState, Stop
from batch_emulator.transitions import nodes
from batch_emulator.transitions.states import set_node, settle_node, stop_execution

WORKING = (NodeState.IDLE, NodeState.RUNNING)
# The docs let only idle and running nodes restart. Nodes whose start task failed are restarted all
# the same by those who run into it (batch-shipyard 341, BatchExplorer 102) [X]; unusable ones
# cannot be (aztk 557, doAzureParallel 328, code NodeStateUnusable).
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
    """Refuse an operation in another state, with the code that names it. Raises Fault."""
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
    """Install the node anew: its disk is empty afterwards. Raises Fault.

    The docs allow it on cloud service pools only, which no longer exist; clients use it on the
    others too [X].
    """
    stop = nodes.stop_for(option, "nodeReimageOption")
    require_state(node, *_RESTARTABLE)
    keeps = option == "retaineddata"
    nodes.drain_into(account, node, NodeState.REIMAGING, stop, now, keeps_data=keeps)


def deallocate(account: Account, node: Node, option: str, now: datetime) -> None:
    """Give the machine back and keep the node, its disk not included [S]. Raises Fault."""
    stop = nodes.stop_for(option, "nodeDeallocateOption")
    require_state(node, *WORKING)
    keeps = option == "retaineddata"
    nodes.drain_into(account, node, NodeState.DEALLOCATING, stop, now, keeps_data=keeps)


def start(account: Account, node: Node, now: datetime) -> None:
    """Get a machine for a deallocated node. Raises Fault."""
    require_state(node, NodeState.DEALLOCATED)
    nodes.create(account, node, now, NodeState.STARTING)


def disable_scheduling(account: Account, node: Node, option: str, now: datetime) -> None:
    """Send the node no more tasks; it is offline once its tasks are gone. Raises Fault."""
    if option not in _DISABLE_STOPS:
        allowed = f"one of {', '.join(_DISABLE_STOPS)}"
        raise bad_property("nodeDisableSchedulingOption", option, allowed)
    _require_scheduling(node, enabled=True)
    node.scheduling = False
    why = _DISABLE_STOPS[option]
    if why is not None:
        for execution in list(node.executions.values()):
            if execution.kind is Kind.TASK:
                stop_execution(account, execution, why)
    settle_node(account, node, now)
    account.save_node(node)


def enable_scheduling(account: Account, node: Node, now: datetime) -> None:
    """Send the node tasks again. Raises Fault."""
    _require_scheduling(node, enabled=False)
    node.scheduling = True
    if node.state is NodeState.OFFLINE:
        set_node(account, node, NodeState.IDLE, now)
    account.save_node(node)


def _require_scheduling(node: Node, *, enabled: bool) -> None:
    """Both refuse what is already so (observed by the .NET SDK's own tests)."""
    if node.scheduling is not enabled:
        state = "enabled" if node.scheduling else "disabled"
        raise Fault("NodeAlreadyInTargetSchedulingState", {"SchedulingState": state})

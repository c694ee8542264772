"""The states of pools, nodes, jobs and tasks, spelt as on the wire."""

from __future__ import annotations

from enum import StrEnum


class PoolState(StrEnum):
    """`state` of a pool."""

    ACTIVE = "active"
    DELETING = "deleting"


class AllocationState(StrEnum):
    """`allocationState` of a pool."""

    STEADY = "steady"
    RESIZING = "resizing"
    STOPPING = "stopping"


class NodeState(StrEnum):
    """`state` of a node."""

    CREATING = "creating"
    STARTING = "starting"
    WAITING_FOR_START_TASK = "waitingforstarttask"
    START_TASK_FAILED = "starttaskfailed"
    IDLE = "idle"
    RUNNING = "running"
    REBOOTING = "rebooting"
    REIMAGING = "reimaging"
    OFFLINE = "offline"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"
    PREEMPTED = "preempted"
    LEAVING_POOL = "leavingpool"
    UPGRADING_OS = "upgradingos"
    DEALLOCATING = "deallocating"
    DEALLOCATED = "deallocated"


class JobState(StrEnum):
    """`state` of a job."""

    ACTIVE = "active"
    DISABLING = "disabling"
    DISABLED = "disabled"
    ENABLING = "enabling"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    DELETING = "deleting"


class TaskState(StrEnum):
    """`state` of a task."""

    ACTIVE = "active"
    PREPARING = "preparing"
    RUNNING = "running"
    COMPLETED = "completed"

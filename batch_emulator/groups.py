"""What a multi-instance task has beyond an ordinary one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batch_emulator.executor.launch import Outcome

if TYPE_CHECKING:
    from batch_emulator.model import Execution


@dataclass(slots=True, eq=False)
class Group:
    """The instances of a multi-instance task; `members` are those of the current attempt.

    `subtasks` are wire objects of instances 1 and up, with `place` (pool id, node id) instead of
    nodeInfo; they outlive the attempt. `end` is the natural end that decides what becomes of the
    task, `primary` how the application command ended, asked to or not.
    """

    size: int
    members: list[Execution] = field(default_factory=list["Execution"])
    waiting: set[int] = field(default_factory=set[int])  # whose coordination command is not done
    left: int = 0
    coordinated: bool = False
    end: Outcome | None = None
    primary: Outcome | None = None
    subtasks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

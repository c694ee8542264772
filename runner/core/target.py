"""The target of a command, and all that differs between targets.

Other modules ask a `Target`; none compares its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TargetName = Literal["local", "azure"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where runs execute: on this machine, or in Azure.

    Attributes:
        name: The value of the setting, and of the key `target` of documents.
        is_billed: Azure charges for its nodes.
        runs_here: Its services and nodes are processes of this machine: runner starts the services
            when they are needed, has their keys, and can evict a node.
        has_stacks: A stack declares its pools and teams. Otherwise `runner local up` creates its
            pool.
    """

    name: TargetName
    is_billed: bool
    runs_here: bool
    has_stacks: bool


LOCAL = Target("local", is_billed=False, runs_here=True, has_stacks=False)
AZURE = Target("azure", is_billed=True, runs_here=False, has_stacks=True)
TARGETS: Mapping[str, Target] = {target.name: target for target in (LOCAL, AZURE)}


def target_at(location: str) -> Target:
    """Return the target whose `StackOutputs` have this location: a region, or LOCAL's name."""
    return LOCAL if location == LOCAL.name else AZURE

"""Keys of train.yaml about where and when: `resources`, `priority`, `after`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from runner.core.resources import MOST_NODES, PRIORITIES, Capacity, Resources
from runner.core.spec_form import Amount, Form

Priority = Annotated[int, Field(ge=PRIORITIES.start, le=PRIORITIES.stop - 1)]
RunReference = Annotated[
    str,
    Form(
        r"^(@last|[a-z0-9][a-z0-9_-]{0,63})$",
        "a run",
        "a run's id, or the beginning of one, or @last",
        "mnist-20261121-143005-k3f9",
    ),
]


class ResourcesFile(BaseModel):
    """What a node must have: chooses the pool among those of the stack."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    gpus: int | None = Field(
        None, ge=0, le=16, description="At least so many on the node; the fewest that fit."
    )
    memory: Annotated[int, Amount("size", "1B")] | None = Field(
        None, description="Of the node, at least: 28GiB, 64GB."
    )
    vm_sizes: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="One of these, such as Standard_NC4as_T4_v3."
    )
    nodes: int = Field(
        1, ge=1, le=MOST_NODES, description="So many at once, each running the command."
    )
    capacity: Capacity | None = Field(
        None, description="Spot, dedicated, or a pool that takes over with dedicated nodes."
    )

    def to_resources(self) -> Resources:
        """What the planner works with."""
        return Resources(
            gpus=self.gpus,
            memory_bytes=self.memory,
            vm_sizes=tuple(self.vm_sizes or ()),
            nodes=self.nodes,
            capacity=self.capacity,
        )

"""The other nodes of a run, as the primary knows them, and how long it waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.node.failures import NodeLostError, StageFailedError
from runner.node.link import Link


@dataclass(frozen=True)
class Pace:
    """How long the primary waits: for nodes to come, for all of them to be ready (`prepare_s`, and
    `behind_s` after it was itself), for the cause of a failure to show itself, for scripts to end
    after its own, and for the rest of the others' logs."""

    join_s: float = 600.0
    prepare_s: float = 4 * 3600.0
    behind_s: float = 3600.0
    cause_s: float = 3.0
    finish_s: float = 60.0
    flush_s: float = 15.0
    hurried_flush_s: float = 1.0


@dataclass
class Member:
    """Another node of the run."""

    rank: int
    address: str
    node: str = ""
    link: Link | None = None
    port: int | None = None  # said when it has prepared itself
    ready: bool = False
    failure: StageFailedError | None = None
    ended_at: float | None = None
    exported: bool = False  # what its script has written is in storage
    flushed: bool = False
    stage: str = ""
    lost: str = ""  # why

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} on node {self.node or self.address}"

    @property
    def doing(self) -> str:
        """Its name, and what it is busy with."""
        return f"{self.name} ({self.stage})" if self.stage else self.name

    def loss(self, step: str) -> NodeLostError:
        """What its loss makes of the attempt."""
        err = NodeLostError(step, "NodeLost", f"{self.name} was lost: {self.lost}")
        err.rank = self.rank
        return err

    def fails(self, message: dict[str, Any]) -> StageFailedError:
        """What it says of how it failed."""
        code = message.get("exit_code")
        failure = StageFailedError(
            str(message["step"]),
            str(message["code"]),
            f"{self.name}: {message['message']}",
            None if code is None else int(code),
        )
        failure.rank = self.rank
        return failure

"""What a booted node gets before its start task: mounts, application packages, container images.

Steps run one after the other, in the background; the first that fails makes the node unusable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batch_emulator.executor.blob_mounts import BlobMounts
from batch_emulator.executor.launch import Launch
from batch_emulator.executor.layout import NodeLayout

log = logging.getLogger(__name__)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Booted:
    """A node that has booted: whose it is, what its pool wants (the pool's body), its folders."""

    pool_id: str
    node_id: str
    spec: Mapping[str, Any]
    layout: NodeLayout


@dataclass(frozen=True, slots=True)
class NodeError(Exception):
    """Why a node is unusable: a ComputeNodeError. Details are (name, value) pairs."""

    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()

    def document(self) -> Json:
        """The error as the wire shows it."""
        details = [{"name": name, "value": value} for name, value in self.details]
        return {"code": self.code, "message": self.message, "errorDetails": details}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done to a node: whether a pool wants it, and doing it. `run` raises NodeError.

    It may be cancelled at any time, is run again on a node that has it already (reboots), and
    leaves no thread behind that still writes below the node's folder.
    """

    name: str
    wanted: Callable[[Mapping[str, Any]], bool]
    run: Callable[[Booted], Awaitable[None]]


class NodeSetup:
    """Sets nodes up one step after the other, and takes their folders away again.

    What concerns one node happens in order: a node that is lost while it is set up is given up
    first, then deleted, and only then set up anew.
    """

    def __init__(self, steps: Sequence[Step] = (), blobs: BlobMounts | None = None) -> None:
        self._steps = tuple(steps)
        self._blobs = blobs or BlobMounts(None)
        self._at: dict[Path, asyncio.Task[None]] = {}
        self._deleting: set[asyncio.Task[None]] = set()

    def nothing_to_do(self, node: Booted) -> bool:
        """Whether the node is ready as soon as it has its folders."""
        return node.layout.root not in self._at and not self._wanted(node)

    def _wanted(self, node: Booted) -> list[Step]:
        return [step for step in self._steps if step.wanted(node.spec)]

    def begin(self, node: Booted, ready: Callable[[list[Json]], None]) -> None:
        """Set the node up in the background; `ready` hears the errors, if it comes to that."""
        self._next(node.layout.root, lambda: self._run(node, ready))

    def give_up(self, root: Path, delete: Callable[[], None]) -> None:
        """The node at `root` is gone: end what is done to it, then `delete` it."""
        release = self._blobs.forget(root)
        if root not in self._at and release is None:
            delete()
            return

        async def after() -> None:
            if release is not None:
                await release()
            delete()

        self._deleting.add(self._next(root, after))

    def _next(
        self, root: Path, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        earlier = self._at.get(root)
        if earlier is not None and earlier not in self._deleting:
            earlier.cancel()
        task = asyncio.get_running_loop().create_task(_after(earlier, work))
        self._at[root] = task
        task.add_done_callback(lambda done: self._forget(root, done))
        return task

    def _forget(self, root: Path, done: asyncio.Task[None]) -> None:
        self._deleting.discard(done)
        if self._at.get(root) is done:
            del self._at[root]
        if not done.cancelled() and done.exception() is not None:
            log.error("work on %s failed", root, exc_info=done.exception())

    async def _run(self, node: Booted, ready: Callable[[list[Json]], None]) -> None:
        errors: list[Json] = []
        try:
            node.layout.create()  # again: its namesake was perhaps deleted only now
            for step in self._wanted(node):
                await step.run(node)
        except NodeError as err:
            errors.append(err.document())
        except Exception as err:  # a node must become something whatever happens to it
            log.exception("node %s cannot be set up", node.node_id)
            message = "An internal error occurred while preparing the node"
            errors.append(NodeError("Unknown", message, (("Message", str(err)),)).document())
        ready(errors)

    def around(self, launch: Launch) -> Launch:
        """The launch of a task that first sees what is new in the containers of its node."""
        root, install = launch.root_dir, launch.prepare
        if not self._blobs.any_at(root):
            return launch

        async def prepare() -> Mapping[str, str]:
            await self._blobs.pull(root)
            return {} if install is None else await install()

        return replace(launch, prepare=prepare)

    async def after_task(self, root: Path) -> None:
        """What a task has written reaches the containers of its node before it is completed."""
        await self._blobs.push(root)

    async def close(self) -> None:
        """Give up everything that is going on; folders stay."""
        await self._blobs.close()
        tasks = list(self._at.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _after(
    earlier: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Do `work` when the earlier work on the same node is over, and never end before that."""
    if earlier is not None:
        try:
            await asyncio.wait({earlier})
        except asyncio.CancelledError:
            await asyncio.wait({earlier})
            raise
    await work()

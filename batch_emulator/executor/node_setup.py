"""Set up a booted node before its start task: mounts, application packages, container images.

Steps run one after the other, in the background; the first that fails makes the node unusable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batch_emulator.domain.launch import DISK_FULL, LaunchSpec
from batch_emulator.executor.blob_mounts import BlobMounts
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.processes import LostNodeProcesses, run_in_thread

log = logging.getLogger(__name__)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Booted:
    """A booted node: its pool and the pool's body, and its folders."""

    pool_id: str
    node_id: str
    spec: Mapping[str, Any]
    layout: NodeLayout


@dataclass(frozen=True, slots=True)
class NodeError(Exception):
    """The ComputeNodeError of an unusable node. Details are (name, value) pairs."""

    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()

    def document(self) -> Json:
        """Return the error in the form of the API."""
        details = [{"name": name, "value": value} for name, value in self.details]
        return {"code": self.code, "message": self.message, "errorDetails": details}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the setup: whether a pool needs it, and its execution. `run` raises NodeError.

    `run` can be cancelled at any time, runs again after a reboot, and leaves no thread behind that
    writes below the node's folder.
    """

    name: str
    wanted: Callable[[Mapping[str, Any]], bool]
    run: Callable[[Booted], Awaitable[None]]


class NodeSetup:
    """Sets up nodes, step by step, and deletes their folders.

    The work on one node happens in order: if a node is lost during its setup, the setup is
    cancelled first, then the node is deleted, and only then is it set up again.
    """

    def __init__(
        self,
        steps: Sequence[Step] = (),
        blobs: BlobMounts | None = None,
        prepare: Callable[[NodeLayout, Mapping[str, Any]], None] = lambda _, __: None,
    ) -> None:
        self._steps = tuple(steps)
        self._blobs = blobs or BlobMounts(None)
        self._prepare = prepare
        self._leftovers = LostNodeProcesses()
        self._killing: set[asyncio.Task[None]] = set()
        self._brief: set[asyncio.Task[None]] = set()
        self._making = asyncio.Lock()
        self._at: dict[Path, asyncio.Task[None]] = {}
        self._deleting: set[asyncio.Task[None]] = set()

    def _wanted(self, node: Booted) -> list[Step]:
        return [step for step in self._steps if step.wanted(node.spec)]

    def begin(self, node: Booted, ready: Callable[[list[Json]], None]) -> None:
        """Set up the node in the background, then call `ready` with the errors."""
        task = self._next(node.layout.root, lambda: self._run(node, ready))
        if not self._wanted(node):
            self._mark_brief(task)

    def give_up(self, root: Path, delete: Callable[[], None]) -> None:
        """End all work and processes of a node that has left, then `delete` it."""
        release = self._blobs.forget(root)
        # daemons live as long as their node, whose folder is the parent of its root
        killing = asyncio.get_running_loop().create_task(self._leftovers.kill(root.parent))
        self._killing.add(killing)
        killing.add_done_callback(self._killing.discard)

        async def after() -> None:
            await asyncio.wait({killing})
            if release is not None:
                await release()
            delete()

        task = self._next(root, after)
        self._deleting.add(task)
        if release is None:
            self._mark_brief(task)

    def _mark_brief(self, task: asyncio.Task[None]) -> None:
        self._brief.add(task)
        task.add_done_callback(self._brief.discard)

    async def settle(self) -> bool:
        """Wait until folders are created and deleted. Return True if there were any.

        It does not wait for slow steps: mounts, packages and images.
        """
        if not self._brief:
            return False
        await asyncio.wait(set(self._brief))
        return True

    def lose(self, root: Path) -> None:
        """Stop waiting for the containers of a node that is being lost."""
        self._blobs.give_up_waiting(root)

    def _next(
        self, root: Path, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        earlier = self._at.get(root)
        if earlier is not None and earlier not in self._deleting:
            earlier.cancel()
        task = asyncio.get_running_loop().create_task(_run_after(earlier, work))
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
            await self._make_folders(node)
            for step in self._wanted(node):
                await step.run(node)
        except NodeError as err:
            errors.append(err.document())
        except Exception as err:  # the node must not stay in the state starting
            log.exception("node %s cannot be set up", node.node_id)
            message = "An internal error occurred while preparing the node"
            errors.append(NodeError("Unknown", message, (("Message", str(err)),)).document())
        ready(errors)

    async def _make_folders(self, node: Booted) -> None:
        """Create folders one after the other: nodes become ready in the order they booted."""

        def make() -> None:
            node.layout.create()
            self._prepare(node.layout, node.spec)

        async with self._making:
            try:
                await run_in_thread(make)
            except OSError as err:
                log.error("node %s has no folders: %s", node.node_id, err)
                why = f"Its folders cannot be made: {err.strerror}"
                raise NodeError(DISK_FULL, why) from err

    def with_downloads(self, launch: LaunchSpec) -> LaunchSpec:
        """Return the launch, which first downloads the changes of the node's blob containers."""
        root, install = launch.root_dir, launch.prepare
        if not self._blobs.any_at(root):
            return launch

        async def prepare() -> Mapping[str, str]:
            await self._blobs.pull(root)
            return {} if install is None else await install()

        return replace(launch, prepare=prepare)

    async def after_task(self, root: Path) -> None:
        """Upload the changes of a task to the containers of its node before it completes."""
        await self._blobs.push(root)

    async def close(self) -> None:
        """Cancel all work; folders stay."""
        await self._blobs.close()
        tasks = list(self._at.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._killing, return_exceptions=True)


async def _run_after(
    earlier: asyncio.Task[None] | None, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Do `work` after the earlier work on the same node; even if cancelled, end after it."""
    if earlier is not None:
        try:
            await asyncio.wait({earlier})
        except asyncio.CancelledError:
            await asyncio.wait({earlier})
            raise
    await work()

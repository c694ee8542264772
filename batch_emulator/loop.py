"""The background loop: decide, apply, start and end processes, write, then sleep until something is
due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from batch_emulator.domain.account import (
    Account,
    AwaitRetention,
    DeleteExpiredFolders,
    DeleteNodeFolder,
    DeleteTaskFolder,
    Effect,
    EraseTasks,
    FreeTasks,
    Kill,
    SetUpNode,
    Start,
)
from batch_emulator.domain.clock import Clock
from batch_emulator.domain.launch import (
    DISK_FULL,
    NO_SPACE,
    ExecutionError,
    ExecutionOutcome,
    FailureInfo,
    disk_full,
    ended_by_request,
)
from batch_emulator.domain.model import Execution, ExecutionKind, Job, Json, Node, Stop
from batch_emulator.domain.transitions import (
    eviction,
    executions,
    jobs,
    nodes,
    task_admission,
    tasks,
)
from batch_emulator.executor.blob_mounts import mounted_below
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.node_setup import Booted, NodeSetup
from batch_emulator.folders import move_below, remove_below, shortage
from batch_emulator.launches import LaunchBuilder
from batch_emulator.scheduling.actions import Action, AddNodes, PlaceMultiInstance, PlaceTask
from batch_emulator.scheduling.recurrence import ScheduleAction
from batch_emulator.scheduling.scheduler import apply, decide
from batch_emulator.storage import account_store
from batch_emulator.storage.account_store import AccountStore
from batch_emulator.storage.transaction import BlockedError

log = logging.getLogger(__name__)

_DELETED_AT_ONCE = 50
_NEW_WORK = (AddNodes, PlaceTask, PlaceMultiInstance)  # actions that a full disk delays
_Action = Action | ScheduleAction
_ROOM_POLL_S = 0.5
_STARTS = 3  # attempts to start an execution while the disk of the state is full


class Loop:
    """Drive one account. Routes and ends of processes call `wake` after a change."""

    def __init__(
        self,
        account: Account,
        store: AccountStore,
        executor: Executor,
        clock: Clock,
        launches: LaunchBuilder,
        node_setup: NodeSetup,
    ) -> None:
        self.account = account
        self.store = store
        self.executor = executor
        self.clock = clock
        self.launches = launches
        self.node_setup = node_setup
        self._awake = asyncio.Event()
        self._waiters: dict[str, asyncio.Event] = {}
        self._running: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._waits_for_room = False
        self._makes_room = False

    def wake(self) -> None:
        """Run another step soon, because something changed."""
        self._awake.set()

    async def run(self) -> None:
        """Work until cancelled. Sleep without polling while nothing is due."""
        while True:
            self._awake.clear()
            await self.store.writable()
            self.step()
            until = self.account.timers[0][0] if self.account.timers else None
            await asyncio.sleep(0)  # serve requests even if something is always due, and commit
            if self.store.blocked is None:
                await self.clock.wait(self._awake, until)

    async def push_clock(self, passed: timedelta) -> None:
        """Push the clock by `passed`, from one due time to the next, so that each action runs at
        its own time.
        """
        await self._settle()
        target = self.clock.now() + passed
        while True:
            until = self.account.timers[0][0] if self.account.timers else target
            left_s = (min(until, target) - self.clock.now()).total_seconds()
            self.clock.push(max(0.0, left_s))
            await self.store.writable()
            self.step()
            await self._settle()
            if until >= target:
                return
            await asyncio.sleep(0)  # serve requests in between

    async def _settle(self) -> None:
        """Wait for work that takes no time on a pushed clock: the setup and the loss of nodes."""
        while await self.node_setup.settle() or await self._await_lost():
            self.step()

    async def _await_lost(self) -> bool:
        """Await executions on lost nodes. Return True if there were any."""
        lost = [e for e in self.account.executions.values() if e.stop is Stop.LOST]
        for execution in lost:
            await self.await_end(execution)
        return bool(lost)

    def step(self) -> None:
        """Apply decisions until there are none, and write what changed.

        While the disk is full no new work begins; if not even the state can be written, the rest of
        the step waits.
        """
        now = self.clock.now()
        account = self.account
        while self.store.blocked is None:
            actions = self._without_new_work(decide(account, now))
            account.forget_due(now)
            account.forget_dirty()
            for action in actions:
                apply(account, action, now)
            self._do_effects()
            self.store.write(account.take_journal())
            if not (account.dirty or account.effects):
                break
        self.store.commit_soon()

    def _without_new_work(self, actions: list[_Action]) -> list[_Action]:
        """Return all actions if there is room on the disk, else those that begin no new work."""
        if not any(isinstance(action, _NEW_WORK) for action in actions):
            return actions
        why = shortage(self.store.folder)
        if why is None:
            return actions
        if not self._waits_for_room:
            self._waits_for_room = True
            log.error("no task and no node is started: %s", why)
            self.spawn(self._await_room())
        return [action for action in actions if not isinstance(action, _NEW_WORK)]

    async def _await_room(self) -> None:
        """Decide again about all pools once there is room."""
        await self._delete_ended()
        while shortage(self.store.folder) is not None:
            await asyncio.sleep(_ROOM_POLL_S)
        log.warning("there is room on the disk again: tasks and nodes are started")
        self._waits_for_room = False
        self.account.dirty_pools.update(self.account.pools)
        self.wake()

    def make_room(self) -> None:
        """Begin to delete folders of ended tasks, unless that goes on already."""
        if not self._makes_room:
            self._makes_room = True
            self.spawn(self._delete_ended())

    async def _delete_ended(self) -> None:
        """Delete the folders of ended tasks, oldest first, until there is room on the disk.

        Batch would keep them for their retention time. This is our choice: the disk of this machine
        is that of all nodes and of the state, and nothing else could be stored.
        """
        self._makes_room = True
        try:
            for job_key, task_id, (pool_id, node_id) in self.store.tasks.retained():
                if shortage(self.store.folder) is None:
                    break
                job = self.account.jobs.get(job_key)
                if job is not None:
                    folder = self.launches.layout(pool_id, node_id).task_dir(job.id, task_id)
                    log.warning("deleting %s: the disk is full", folder)
                    await self._delete(folder)
            await asyncio.sleep(_ROOM_POLL_S)
        finally:
            self._makes_room = False

    def _do_effects(self) -> None:
        """Carry out effects in order, until one needs the state while it cannot be written."""
        effects = deque(self.account.take_effects())
        try:
            while effects:
                self._do_effect(effects[0])
                effects.popleft()
        except BlockedError:
            self.account.effects[:0] = effects

    def _do_effect(self, effect: Effect) -> None:
        """Carry out one effect. Raises BlockedError; then the effect can be repeated."""
        match effect:
            case Start(execution):
                self._start(execution)
            case Kill(execution, hard):
                self._kill(execution, hard=hard)
            case DeleteExpiredFolders():
                self.spawn(self._delete_expired())
            case FreeTasks(job):
                asyncio.get_running_loop().call_soon(self._free, job)
            case EraseTasks(job):
                self.store.flush(self.account.take_journal())
                if self._erase_some(job):
                    self.spawn(self._erase(job))
            case AwaitRetention(node):
                self.store.flush(self.account.take_journal())
                until = self.store.tasks.retained_until(node.pool.id, node.id)
                nodes.retention_answered(self.account, node, until, self.clock.now())
            case SetUpNode(node):
                self._set_up(node)
            case DeleteNodeFolder(pool_id, node_id):
                self._delete_node(pool_id, node_id)
            case DeleteTaskFolder(pool_id, node_id, job_id, task_id):
                layout = self.launches.layout(pool_id, node_id)
                doomed = layout.job_root(job_id)
                self._remove(layout.task_dir(job_id, task_id) if task_id else doomed)

    def _set_up(self, node: Node) -> None:
        booted = node.booted or self.clock.now()
        layout = self.launches.layout(node.pool.id, node.id)

        def ready(errors: list[Json]) -> None:
            nodes.set_up(self.account, node, booted, errors, self.clock.now())
            self.wake()

        self.node_setup.begin(Booted(node.pool.id, node.id, node.pool.spec, layout), ready)

    def _delete_node(self, pool_id: str, node_id: str) -> None:
        folder = self.launches.node_dir(pool_id, node_id)

        def delete() -> None:
            left = mounted_below(folder)
            if left:
                log.error("cannot delete %s: %s is still mounted", folder, left[0])
            else:
                self._remove(folder)

        self.node_setup.give_up(self.launches.layout(pool_id, node_id).root, delete)

    def _start(self, execution: Execution) -> None:
        if execution.stop is not None:
            return  # its Kill effect follows and ends it
        self._running.add(execution.key)
        now = self.clock.now()
        executions.begun(self.account, execution, now)
        self.spawn(self._execute(execution))

    async def _execute(self, execution: Execution) -> None:
        outcome = await self._outcome(execution)
        for _ in range(_STARTS - 1):
            if not self._lacked_room(execution, outcome):
                break
            log.warning("execution %s starts again when the disk has room", execution.key)
            while shortage(self.store.folder) is not None and execution.stop is None:
                await asyncio.sleep(_ROOM_POLL_S)
            outcome = await self._outcome(execution)
        if execution.stop is not None or not execution.coordinating:
            await self.executor.release(execution.key)
        self._running.discard(execution.key)
        self.launches.tokens.revoke(execution.key)
        self._record_end(execution, outcome)

    async def _outcome(self, execution: Execution) -> ExecutionOutcome:
        try:
            await self._load_body_when_possible(execution)
            _require_wanted(execution)
            eviction.schedule_planned_eviction(self.account, execution, self.clock.now())
            self.wake()
            launch = self.launches.build(execution, self.clock.now())
            launch = self.node_setup.with_downloads(launch)
            outcome = await self.executor.run(
                launch, partial(executions.record_container, self.account, execution)
            )
            if execution.stop is not Stop.LOST:
                await self.node_setup.after_task(launch.root_dir)
        except ExecutionError as err:
            return ExecutionOutcome(exit_code=None, failure=err.failure, retryable=False)
        except Exception as err:  # every task must end, even after an unexpected error
            log.exception("execution %s failed", execution.key)
            failure = FailureInfo("ServerError", "Unknown", f"{type(err).__name__}: {err}")
            if isinstance(err, OSError) and err.errno in NO_SPACE:
                failure = disk_full(str(err.filename or ""))
            return ExecutionOutcome(exit_code=None, failure=failure, retryable=False)
        return outcome

    def _lacked_room(self, execution: Execution, outcome: ExecutionOutcome) -> bool:
        """Return True if the start failed because the disk that holds the state is full.

        The service shares no disk with its nodes. If a node has a disk of its own and that is full,
        the task fails.
        """
        failure = outcome.failure
        if failure is None or failure.code != DISK_FULL or outcome.exit_code is not None:
            return False
        node = execution.node
        root = self.launches.layout(node.pool.id, node.id).root
        try:
            return root.stat().st_dev == self.store.folder.stat().st_dev
        except OSError:  # the node has left
            return False

    async def _load_body_when_possible(self, execution: Execution) -> None:
        while True:
            _require_wanted(execution)
            try:
                return self._load_body(execution)
            except BlockedError:
                await asyncio.sleep(_ROOM_POLL_S)

    def _load_body(self, execution: Execution) -> None:
        """Load the body of a task from the store. Raises BlockedError."""
        job, task = execution.job, execution.task
        if execution.kind is ExecutionKind.TASK and job is not None and task is not None:
            journal = self.account.journal
            if journal.new_tasks or journal.bodies or self.store.blocked is not None:
                self.store.flush(self.account.take_journal())
            execution.body = self.store.tasks.body(job, task.key) or {}

    def _kill(self, execution: Execution, *, hard: bool) -> None:
        key = execution.key
        if key not in self._running and self.executor.holds(key):
            self.spawn(self._release_instance(execution))
        elif key not in self._running:
            if execution.task is not None and execution.stop is Stop.TERMINATE:
                self._load_body(execution)  # for its exit conditions
            self._record_end(execution, None)
        elif hard:
            if execution.stop is Stop.LOST:
                node = execution.node
                self.node_setup.lose(self.launches.layout(node.pool.id, node.id).root)
            self.spawn(self.executor.kill_now(key))
        else:
            # a task that will run again uploads no output files
            upload = execution.stop is Stop.TERMINATE
            self.spawn(self.executor.kill(key, upload=upload))

    async def _release_instance(self, execution: Execution) -> None:
        """End an instance whose coordination command is done."""
        await self.executor.release(execution.key)
        self._record_end(execution, None)

    def _record_end(self, execution: Execution, outcome: ExecutionOutcome | None) -> None:
        executions.ended(self.account, execution, outcome, self.clock.now())
        waiter = self._waiters.get(execution.key)
        if waiter is not None and execution.key not in self.account.executions:
            del self._waiters[execution.key]
            waiter.set()
        self.wake()

    async def await_end(self, execution: Execution) -> None:
        """Return when the execution has ended and nothing of it is left."""
        if execution.key in self.account.executions:
            await self._waiters.setdefault(execution.key, asyncio.Event()).wait()

    def _free(self, job: Job) -> None:
        task_admission.free(self.account, job)
        self.wake()

    async def _erase(self, job: Job) -> None:
        """Erase the tasks of a job in batches; requests are served between them."""
        more = True
        while more:
            await asyncio.sleep(0)
            try:
                more = self._erase_some(job)
            except BlockedError:
                await self.store.writable()
            self.store.commit_soon()
        self.wake()

    def _erase_some(self, job: Job) -> bool:
        """Return True if there are more. Raises BlockedError."""
        more = self.store.erase(job)
        for key in list(islice(job.live, account_store.ERASED_AT_ONCE)) if more else ():
            del job.live[key]
        if not more:
            jobs.forget(self.account, job)
        return more

    async def _delete_expired(self) -> None:
        """Delete expired task folders in batches, because thousands may expire at once.

        Between batches, requests are served and threads are free for the ends of processes.
        """
        while True:
            try:
                self.store.flush(self.account.take_journal())
                expired = self.store.take_expired(self.clock.now(), _DELETED_AT_ONCE)
            except BlockedError:
                await self.store.writable()
                continue
            doomed: list[Path] = []
            for job_key, task_id, (pool_id, node_id) in expired:
                job = self.account.jobs.get(job_key)
                if job is not None:
                    layout = self.launches.layout(pool_id, node_id)
                    doomed += self._move_to_trash(layout.task_dir(job.id, task_id))
            self.store.commit_soon()
            if not expired:
                break
            await self._delete(*doomed)
        due = self.store.tasks.next_expiry()
        if due is not None:
            tasks.delete_expired_at(self.account, due)
            self.wake()

    def _remove(self, folder: Path) -> None:
        self.spawn(self._delete(*self._move_to_trash(folder)))

    def _move_to_trash(self, folder: Path) -> list[Path]:
        """Move a folder away at once, and return the paths to delete.

        A new folder of the same name is then safe from the deletion.
        """
        doomed = self.launches.trash / uuid4().hex
        try:
            doomed.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError, NotADirectoryError):  # it is gone, or behind a link
                move_below(folder, self.launches.nodes, doomed)
        except OSError as err:  # a full disk, or another file system: delete in place
            log.warning("deleting %s in place: %s", folder, err)
            return [folder]
        return [doomed]

    async def _delete(self, *folders: Path) -> None:
        def delete() -> None:
            for folder in folders:
                remove_below(folder, self.launches.nodes.parent)

        if folders:
            await asyncio.to_thread(delete)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background until the loop is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def close(self) -> None:
        """Kill all tasks, as when the machine is switched off. The state on disk is unchanged."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.node_setup.close()
        await self.executor.close()


def _require_wanted(execution: Execution) -> None:
    """Raise ExecutionError if the execution is to end: its body may be deleted with its task."""
    if execution.stop is not None:
        raise ExecutionError(ended_by_request())

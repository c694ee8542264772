"""Runs launches: directories, resource files, the process, output files."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from batch_emulator.domain.launch import (
    ContainerSpec,
    DiskStep,
    ExecutionError,
    ExecutionOutcome,
    FailureInfo,
    LaunchSpec,
    disk_failure,
    ended_by_node_loss,
    ended_by_request,
    ended_by_wall_clock,
    exit_code_failure,
)
from batch_emulator.executor import processes, task_containers, task_files, task_process
from batch_emulator.executor.blob_client import AWAY_S, BlobClient, NodeIdentity
from batch_emulator.executor.container_engine import inherited
from batch_emulator.executor.task_containers import TaskContainers, new_name, not_started
from batch_emulator.folders import Owner, make_real_folder, remove_below, stat_below

_T = TypeVar("_T")

_POLL_S = 0.02
_NODE_VARIABLES = ("PATH", "HOME", "LANG", "USER", "LOGNAME")  # images have their own
_ENGINE_S = 5.0  # for an engine to notice that a container was killed


@dataclass(eq=False, slots=True)
class _Execution:
    """A running launch. `stop` resolves to the reason why it is being ended."""

    launch: LaunchSpec
    stop: asyncio.Future[FailureInfo]
    abandon: asyncio.Future[None]  # resolves if output files need not be uploaded
    done: asyncio.Event
    on_container: Callable[[dict[str, Any]], None]  # is called with the containerInfo
    process: task_process.TaskProcess | None = None
    container: str | None = None  # its name
    in_kept: bool = False  # the process is the engine's client, and the command is not its child
    ending: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])


@dataclass(eq=False, slots=True)
class _Held:
    """Processes that remain after their command; `ending` ends them."""

    process: task_process.TaskProcess
    task_dir: Path
    ending: asyncio.Task[None] | None = None


class Executor:
    """Starts, watches and ends the processes of tasks; one per event loop."""

    def __init__(
        self,
        *,
        pass_environment: Mapping[str, str],
        kill_grace_s: float = 5.0,
        containers: TaskContainers | None = None,
        identity: NodeIdentity | None = None,
        owner: Owner | None = None,
    ) -> None:
        self._containers = containers
        self._kept = None if containers is None else task_containers.InstanceContainers(containers)
        self._pass_environment = dict(pass_environment)
        self._owner = owner
        self._kill_grace_s = kill_grace_s
        self._running: dict[str, _Execution] = {}
        self._held: dict[str, _Held] = {}
        self._storage = BlobClient(identity=identity, away_s=AWAY_S)

    async def run(
        self,
        launch: LaunchSpec,
        on_container: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> ExecutionOutcome:
        """Run one launch to its end. Failures of the task are outcomes, not exceptions."""
        loop = asyncio.get_running_loop()
        execution = _Execution(
            launch, loop.create_future(), loop.create_future(), asyncio.Event(), on_container
        )
        self._running[launch.key] = execution
        timer = None
        if launch.wall_clock_s is not None:
            timer = loop.call_later(launch.wall_clock_s, self._on_wall_clock, execution)
        try:
            outcome = await self._run(execution)
            used = execution.process.usage if execution.process else None
            return replace(outcome, usage=used)
        except ExecutionError as err:
            return ExecutionOutcome(None, err.failure, retryable=False)
        except asyncio.CancelledError:
            await asyncio.shield(self._end(execution, grace_s=0))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._running.pop(launch.key, None)
            execution.done.set()

    async def kill(self, key: str, *, upload: bool = True) -> None:
        """Send SIGTERM, and SIGKILL after the grace period, to all processes of the launch.

        Without `upload` the output files stay where they are, as for a task that runs again.
        """
        await self._stop(key, ended_by_request(), self._kill_grace_s, upload=upload)

    async def kill_now(self, key: str) -> None:
        """Send SIGKILL at once and upload no output files, as if the node is lost."""
        await self._stop(key, ended_by_node_loss(), 0, upload=False)

    def holds(self, key: str) -> bool:
        """Return True if processes that a launch left behind still run."""
        return key in self._held or (self._kept is not None and key in self._kept)

    async def release(self, key: str) -> None:
        """End the processes that a launch left behind, and return when they are gone."""
        if self._kept is not None:
            await self._kept.close(key)
        held = self._held.get(key)
        if held is None:
            return
        if held.ending is None:
            held.ending = asyncio.create_task(_end_held(held))
        await asyncio.shield(held.ending)
        self._held.pop(key, None)

    async def upload(self, url: str, source: Path, top: Path, reference: object = None) -> None:
        """Upload a text file below `top` without a launch. Raises BlobRequestError or OSError."""
        storage = self._storage.on_behalf(reference, url)
        await storage.upload(url, source, {"Content-Type": "text/plain"}, top=top)

    async def close(self) -> None:
        """Kill all running launches and close the connections."""
        await asyncio.gather(*(self.kill_now(key) for key in list(self._running)))
        await asyncio.gather(*(self.release(key) for key in {*self._held, *(self._kept or ())}))
        await self._storage.close()

    async def _run(self, execution: _Execution) -> ExecutionOutcome:
        launch = execution.launch
        if not _make_directories(launch, self._owner):
            await _end_left_processes(launch)
        environment = {**self._pass_environment, **launch.environment}
        if launch.prepare is not None:
            environment |= await _unless(execution.stop, launch.prepare()) or {}
        if launch.resource_files:
            await _unless(execution.stop, task_files.download(self._storage, launch))
        if execution.stop.done():
            return ExecutionOutcome(None, execution.stop.result(), retryable=False)
        owner = None if launch.elevated else self._owner
        if launch.container is not None and self._containers is not None:
            passed = {n: v for n, v in self._pass_environment.items() if n not in _NODE_VARIABLES}
            wanted = {**passed, **launch.container.environment, **_added(environment)}
            user = None if owner is None else f"{owner.uid}:{owner.gid}"
            container = replace(launch.container, environment=wanted, user=user)
            if self._kept is not None and (launch.holds or launch.continues):
                return await self._run_in_instance_container(execution, self._kept, container)
            return await self._run_container(execution, self._containers, container)
        execution.process = started = task_process.start(launch, environment, owner=owner)
        outcome = _outcome(await _exit_code(execution, started), execution)
        if launch.holds:
            self._held[launch.key] = _Held(started, launch.task_dir)
            if outcome.failure is not None:
                await self.release(launch.key)
        if launch.output_files:
            outcome = await self._upload(execution, outcome)
        return outcome

    async def _run_container(
        self, execution: _Execution, containers: TaskContainers, container: ContainerSpec
    ) -> ExecutionOutcome:
        launch, name = execution.launch, new_name()
        execution.container = name
        try:
            container_id = await _unless(execution.stop, containers.create(container, name))
            if execution.stop.done():
                await containers.remove(name)
                return ExecutionOutcome(None, execution.stop.result(), retryable=False)
            command = await containers.start_command(name)
            execution.process = started = task_process.start(launch, os.environ, command)
            execution.on_container({"containerId": container_id or "", "state": "running"})
            exit_code = await _exit_code(execution, started)
            ended = await containers.finish(name)
        except BaseException:
            await asyncio.shield(containers.remove(name))
            raise
        if ended is not None:
            execution.on_container(ended.document)
        outcome = _outcome(exit_code, execution)
        if ended is not None and not ended.started and not execution.stop.done():
            failure = not_started(launch, exit_code, ended)
            outcome = ExecutionOutcome(None, failure, retryable=False)
        return await self._upload(execution, outcome) if launch.output_files else outcome

    async def _run_in_instance_container(
        self,
        execution: _Execution,
        containers: task_containers.InstanceContainers,
        container: ContainerSpec,
    ) -> ExecutionOutcome:
        """Run a command of a multi-instance task in the container of its instance."""
        launch, key, keep = execution.launch, execution.launch.key, False
        try:
            if key not in containers:
                containers.reserve(key, execution.on_container)
                await _unless(execution.stop, containers.open(key, container))
            if execution.stop.done():
                return ExecutionOutcome(None, execution.stop.result(), retryable=False)
            exit_code = await self._exec_in_container(execution, containers, container)
            outcome = _outcome(exit_code, execution)
            failure = None if execution.stop.done() else task_containers.refusal(launch, exit_code)
            if failure is not None:
                outcome = ExecutionOutcome(None, failure, retryable=False)
            keep = launch.holds and outcome.failure is None
        finally:
            if not keep:
                await containers.close(key)
        return await self._upload(execution, outcome) if launch.output_files else outcome

    async def _exec_in_container(
        self,
        execution: _Execution,
        containers: task_containers.InstanceContainers,
        container: ContainerSpec,
    ) -> int:
        command = await containers.command(execution.launch.key, container)
        execution.container, execution.in_kept = containers.name(execution.launch.key), True
        client = {**os.environ, **inherited(container.environment)}
        with task_containers.variables(container.environment) as variables:
            collected = replace(execution.launch, holds=False)
            started = task_process.start(collected, client, command, variables)
        execution.process = started
        return await _exit_code(execution, started)

    async def _upload(self, execution: _Execution, outcome: ExecutionOutcome) -> ExecutionOutcome:
        launch = execution.launch
        succeeded = outcome.exit_code == 0 and outcome.failure is None
        work = task_files.upload(self._storage, launch, succeeded=succeeded)
        failure = await _unless(execution.abandon, work)
        if execution.stop.done():
            return ExecutionOutcome(outcome.exit_code, execution.stop.result(), retryable=False)
        if failure is None or outcome.failure is not None:
            return outcome  # a failed command outranks a failed upload (exit conditions page)
        return ExecutionOutcome(outcome.exit_code, failure, retryable=False)

    def _on_wall_clock(self, execution: _Execution) -> None:
        limit = execution.launch.wall_clock_s or 0
        self._begin_end(execution, ended_by_wall_clock(limit), self._kill_grace_s)

    async def _stop(self, key: str, why: FailureInfo, grace_s: float, *, upload: bool) -> None:
        execution = self._running.get(key)
        if execution is None:
            return
        if not upload and not execution.abandon.done():
            execution.abandon.set_result(None)
        self._begin_end(execution, why, grace_s)
        if upload:
            await asyncio.gather(*execution.ending)
        else:
            await execution.done.wait()

    def _begin_end(self, execution: _Execution, why: FailureInfo, grace_s: float) -> None:
        ended = execution.process is not None and execution.process.ended.done()
        if ended and not execution.abandon.done():
            return  # it ended by itself, and its output files are being uploaded
        if not execution.stop.done():
            execution.stop.set_result(why)
        execution.ending.append(asyncio.create_task(self._end(execution, grace_s)))

    async def _end(self, execution: _Execution, grace_s: float) -> None:
        """End the processes of an execution, with SIGTERM first if there is a grace period."""
        running = execution.process
        if running is None:
            return
        found = await asyncio.to_thread(
            processes.task_processes, running.pid, execution.launch.task_dir
        )
        if grace_s > 0:
            running.keep_group = True
            if not execution.in_kept:
                running.signal_group(signal.SIGTERM)
            processes.send(processes.outside_group(found, running.pid), signal.SIGTERM)
            await _wait_for_end(running, found, grace_s)
        running.keep_group = False
        if execution.container is not None and self._containers is not None:
            await self._containers.kill(execution.container)
            await asyncio.wait({running.ended}, timeout=_ENGINE_S)  # for its exit code
        running.signal_group(signal.SIGKILL)
        await asyncio.to_thread(
            processes.kill_task_processes, running.pid, execution.launch.task_dir
        )
        await asyncio.shield(running.ended)


def _added(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the preparation of the launch added."""
    return {n: v for n, v in environment.items() if n.startswith("AZ_BATCH_APP_PACKAGE")}


async def _end_held(held: _Held) -> None:
    await asyncio.to_thread(processes.kill_task_processes, held.process.pid, held.task_dir)
    held.process.release()


async def _unless(stop: asyncio.Future[Any], work: Awaitable[_T]) -> _T | None:
    """Return the result of `work`, or None if `stop` resolved first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _wait_for_end(running: task_process.TaskProcess, found: set[int], grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    while loop.time() < deadline:
        if running.ended.done() and not await asyncio.to_thread(processes.alive, found):
            return
        await asyncio.sleep(_POLL_S)


def _make_directories(launch: LaunchSpec, owner: Owner | None) -> bool:
    """Create the folders of the task for its user. Return False if it has run here before.

    Those of an elevated task belong to the user of the emulator: other tasks could replace what it
    executes. What others could write to is deleted before.
    """
    is_new, closed = True, owner is not None and launch.elevated
    resources = () if launch.resource_dir is None else (launch.resource_dir,)
    for folder in (*resources, launch.task_dir, launch.working_dir, launch.task_dir / "certs"):
        try:
            if closed and _is_of_another_user(folder, launch.node_dir):
                remove_below(folder, launch.node_dir)
            made = make_real_folder(folder, launch.node_dir, None if closed else owner)
        except OSError as err:
            raise ExecutionError(disk_failure(DiskStep.MAKE_FOLDER, folder, err)) from err
        is_new = is_new and (made or folder != launch.working_dir)
    return is_new


def _is_of_another_user(folder: Path, top: Path) -> bool:
    with suppress(FileNotFoundError):
        return stat_below(folder, top).st_uid != os.geteuid()
    return False


async def _end_left_processes(launch: LaunchSpec) -> None:
    """End what an earlier attempt of the task left, before it can interfere with this one.

    Daemons of a start task stay, because they serve the node.
    """
    if launch.task_dir.parent != launch.root_dir and not launch.continues:
        await asyncio.to_thread(processes.kill_left_processes, launch.task_dir)


async def _exit_code(execution: _Execution, process: task_process.TaskProcess) -> int:
    """Return the exit code of the command, once a request to end it has ended the rest, too."""
    code = await asyncio.shield(process.ended)  # a cancelled launch must not cancel it
    if execution.ending:
        await asyncio.gather(*execution.ending)
    return code


def _outcome(exit_code: int, execution: _Execution) -> ExecutionOutcome:
    if execution.stop.done():
        return ExecutionOutcome(exit_code, execution.stop.result(), retryable=False)
    if exit_code != 0:
        return ExecutionOutcome(exit_code, exit_code_failure(), retryable=True)
    return ExecutionOutcome(0, None, retryable=False)

"""Processes of tasks: launching, outcomes, limits and endings."""

import asyncio
import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from batch_emulator.domain.launch import ExecutionOutcome, LaunchSpec
from batch_emulator.executor import processes, task_process
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.processes import kill_node_processes
from tests.unit.emulator.launching import Node, eventually, in_executor, running

ESCAPE = """\
import os, time
os.setsid()
with open("escaped.part", "w") as file:
    file.write(str(os.getpid()))
os.rename("escaped.part", "escaped")
time.sleep(600)
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    layout = NodeLayout(tmp_path / "node" / "tasks")
    layout.create()
    return Node(layout)


def test_success_has_no_failure_and_the_documented_layout(node: Node) -> None:
    assert node.run("/bin/true") == ExecutionOutcome(0, None, retryable=False)
    assert sorted(p.name for p in node.task_dir.iterdir()) == [
        "certs",
        "stderr.txt",
        "stdout.txt",
        "wd",
    ]
    assert node.task_dir == node.layout.root / "workitems" / "job" / "job-1" / "task"


def test_non_zero_exit_is_retryable_failure_exit_code(node: Node) -> None:
    outcome = node.run("/bin/sh -c 'echo out; echo err >&2; exit 3'")
    assert (outcome.exit_code, outcome.retryable) == (3, True)
    assert outcome.failure is not None
    assert (outcome.failure.category, outcome.failure.code) == ("UserError", "FailureExitCode")
    assert (node.stdout(), node.stderr()) == ("out\n", "err\n")


def test_exit_by_signal_is_the_negative_signal_number(node: Node) -> None:
    assert node.run("/bin/sh -c 'kill -9 $$'").exit_code == -9


def test_no_shell_expands_the_command_line(node: Node) -> None:
    node.run("/bin/echo $HOME * | cat 'a  b'")
    assert node.stdout() == "$HOME * | cat a  b\n"


def test_task_sees_its_environment_and_nothing_else(node: Node) -> None:
    node.run("/usr/bin/env", settings={"GREETING": "hej"})
    seen = dict(line.split("=", 1) for line in node.stdout().splitlines())
    assert seen["GREETING"] == "hej"
    assert seen["HOME"] == seen["AZ_BATCH_TASK_WORKING_DIR"] == str(node.working_dir)
    assert seen["PATH"].endswith(f":{node.layout.shared}:{node.working_dir}")
    assert {k for k in seen if not k.startswith("AZ_BATCH_")} == {
        "PATH",
        "HOME",
        "LANG",
        "GREETING",
    }


def test_working_directory_and_empty_stdin(node: Node) -> None:
    node.run("/bin/sh -c 'pwd; cat; echo end'")
    assert node.stdout() == f"{node.working_dir}\nend\n"


@pytest.mark.parametrize("program", ["no-such-program", "./nothing", "/no/such/program"])
def test_missing_program_is_command_program_not_found(node: Node, program: str) -> None:
    outcome = node.run(f"{program} --flag")
    assert outcome.failure is not None
    assert outcome.failure.code == "CommandProgramNotFound"
    assert outcome.failure.category == "UserError"
    assert (outcome.exit_code, outcome.retryable) == (None, False)
    assert program in dict(outcome.failure.details)["Message"]


def test_program_is_found_in_wd_and_on_the_path_of_the_task(node: Node) -> None:
    node.working_dir.mkdir(parents=True)
    for folder, name in ((node.working_dir, "mine"), (node.layout.shared, "ours")):
        (folder / name).write_text(f"#!/bin/sh\necho {name}\n")
        (folder / name).chmod(0o755)
    for command in ("mine", "./mine"):
        assert node.run(command).exit_code == 0
        assert node.stdout() == "mine\n"
    assert node.run("ours").exit_code == 0
    assert node.run("mine", settings={"PATH": "/bin"}).failure is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may execute nearly anything")
def test_program_without_permission_is_launch_failed_for_users(node: Node) -> None:
    node.working_dir.mkdir(parents=True)
    (node.working_dir / "data").write_text("x")
    outcome = node.run("./data")
    assert outcome.failure is not None
    assert outcome.failure.code == "CommandLaunchFailed"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("./folder", "Permission denied"),
        ("./noformat", "Exec format error"),
        ("echo 'open", "No closing quotation"),
        ("   ", "empty"),
        ("echo a\0b", "null byte"),
    ],
)
def test_failed_launch_is_command_launch_failed(node: Node, command: str, why: str) -> None:
    (node.working_dir / "folder").mkdir(parents=True)
    (node.working_dir / "noformat").write_text("no program")
    (node.working_dir / "noformat").chmod(0o755)
    outcome = node.run(command)
    assert outcome.failure is not None
    assert outcome.failure.code == "CommandLaunchFailed"
    assert why in dict(outcome.failure.details)["Message"]


def test_missing_interpreter_is_named_as_such(node: Node) -> None:
    node.working_dir.mkdir(parents=True)
    (node.working_dir / "tool").write_text("#!/no/such/interpreter\n")
    (node.working_dir / "tool").chmod(0o755)
    failure = node.run("./tool").failure
    assert failure is not None
    assert "interpreter" in dict(failure.details)["Message"]


def test_illegal_variable_name_is_launch_failed_without_a_leak(node: Node) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.exists() else 0
    for _ in range(50):
        outcome = node.run("/bin/true", settings={"A=B": "x"})
        assert outcome.failure is not None
        assert outcome.failure.code == "CommandLaunchFailed"
    if before:  # threads of other tests open some meanwhile
        assert len(list(descriptors.iterdir())) < before + 50


def test_failed_creation_of_a_task_directory_is_a_server_error(node: Node) -> None:
    node.layout.workitems.rmdir()
    node.layout.workitems.write_text("in the way")
    failure = node.run("/bin/true").failure
    assert failure is not None
    assert (failure.category, failure.code) == ("ServerError", "ResourceDirectoryCreateFailed")


def run_out_of_time(node: Node) -> ExecutionOutcome:
    """Run a command until its time limit; again if a busy machine did not start it within it."""
    outcome, tries = node.run("/bin/sleep 600", wall_clock_s=2), 1
    while outcome.exit_code is None and tries < 3:
        outcome, tries = node.run("/bin/sleep 600", wall_clock_s=2), tries + 1
    return outcome


def test_wall_clock_limit_ends_the_task_without_retry(node: Node) -> None:
    outcome = run_out_of_time(node)
    assert (outcome.exit_code, outcome.retryable) == (-15, False)
    assert outcome.failure is not None
    assert outcome.failure.code == "TaskEnded"
    assert "maxWallClockTime" in outcome.failure.message


def test_unreached_wall_clock_limit_has_no_effect(node: Node) -> None:
    assert node.run("/bin/true", wall_clock_s=600).failure is None


def run_and(
    node: Node, command: str, ready: str, kill: str, *, grace_s: float = 300.0
) -> tuple[ExecutionOutcome, str]:
    """Run a command, wait for it to write the file `ready`, then call the executor's `kill`."""

    async def scenario(executor: Executor) -> tuple[ExecutionOutcome, str]:
        task = asyncio.create_task(executor.run(node.launch(command)))
        file = node.working_dir / ready
        await eventually(lambda: file.exists() and bool(file.read_text()), f"{ready} is written")
        await getattr(executor, kill)("job/task/1")
        return await asyncio.wait_for(task, 600), file.read_text()

    return in_executor(scenario, kill_grace_s=grace_s)


def test_kill_gives_a_process_time_after_sigterm(node: Node) -> None:
    script = 'trap "echo saved; exit 7" TERM; echo go > ready; while :; do sleep 0.05; done'
    command = f"/bin/sh -c '{script}'"
    outcome, _ = run_and(node, command, "ready", "kill")
    assert outcome.exit_code == 7
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.retryable) == ("TaskEnded", False)
    assert node.stdout() == "saved\n"


def test_child_of_a_shell_keeps_its_grace_when_the_shell_ends_first(node: Node) -> None:
    on_term = "sleep 0.3; echo saved > saved; exit"
    child = f'trap "{on_term}" TERM; echo go > ready; while :; do sleep 0.05; done'
    (node.working_dir).mkdir(parents=True)
    (node.working_dir / "child.sh").write_text(child)
    run_and(node, "/bin/sh -c '/bin/sh child.sh; echo after'", "ready", "kill")
    assert (node.working_dir / "saved").read_text() == "saved\n"


def test_kill_ends_a_process_that_ignores_sigterm(node: Node) -> None:
    command = "/bin/sh -c 'trap \"\" TERM; echo $$ > ready; while :; do sleep 0.05; done'"
    outcome, pid = run_and(node, command, "ready", "kill", grace_s=0.2)
    assert outcome.exit_code == -9
    assert not running(int(pid))


@pytest.mark.parametrize("kill", ["kill", "kill_now"])
@pytest.mark.parametrize("proc", ["/proc", "/no/such/folder"], ids=["linux", "elsewhere"])
def test_kill_reaches_a_process_that_left_the_session(
    node: Node, kill: str, proc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", Path(proc))
    node.working_dir.mkdir(parents=True)
    (node.working_dir / "escape.py").write_text(ESCAPE)
    command = f"/bin/sh -c '{sys.executable} escape.py & exec sleep 600'"
    outcome, pid = run_and(node, command, "escaped", kill)
    assert outcome.failure is not None
    assert not running(int(pid))


def test_kill_now_kills_all_processes_at_once(node: Node) -> None:
    command = "/bin/sh -c 'trap \"\" TERM; sleep 600 & echo $! > ready; wait; wait'"
    outcome, pid = run_and(node, command, "ready", "kill_now", grace_s=600)
    assert outcome.exit_code == -9
    assert outcome.failure is not None
    assert outcome.failure.category == "ServerError"
    assert not running(int(pid))


def test_kill_of_an_unknown_key_does_nothing(node: Node) -> None:
    async def scenario(executor: Executor) -> ExecutionOutcome:
        await executor.kill("nobody")
        await executor.kill_now("nobody")
        return await executor.run(node.launch("/bin/true"))

    assert in_executor(scenario).exit_code == 0


def test_remaining_processes_end_with_the_command(node: Node) -> None:
    outcome = node.run("/bin/sh -c 'sleep 600 & echo $! > child'")
    assert outcome.exit_code == 0
    pid = int((node.working_dir / "child").read_text())
    deadline = time.monotonic() + 300
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running(pid)


@pytest.mark.parametrize("proc", ["/proc", "/no/such/folder"], ids=["linux", "elsewhere"])
def test_kill_leftovers_finds_processes_by_node_root(
    node: Node, tmp_path: Path, proc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", Path(proc))
    other = psutil.Popen(
        ["/bin/sleep", "600"], env={"AZ_BATCH_NODE_ROOT_DIR": str(tmp_path / "other")}
    )
    mine = psutil.Popen(
        ["/bin/sleep", "600"],
        env={"AZ_BATCH_NODE_ROOT_DIR": str(node.layout.root)},
        start_new_session=True,
    )
    try:
        while "AZ_BATCH_NODE_ROOT_DIR" not in mine.environ():
            os.sched_yield()  # exec closes its pipe to us before the kernel shows the environment
        assert kill_node_processes(node.layout.root.parent.parent / "no") == 0
        assert kill_node_processes(node.layout.root.parent) == 1
        assert mine.wait(60) == -9
        assert other.is_running()
        assert kill_node_processes(node.layout.root) == 0
    finally:
        for one in (mine, other):
            if one.poll() is None:
                one.kill()
                one.wait()


def test_many_launches_run_concurrently(node: Node) -> None:
    async def scenario(executor: Executor) -> list[ExecutionOutcome]:
        def launch(number: int) -> LaunchSpec:
            one = node.launch("/bin/sh -c 'exit $AZ_BATCH_NUMBER'")
            task_dir = node.layout.task_dir("job", f"t{number}")
            return LaunchSpec(
                f"job/{number}",
                node.layout.root,
                task_dir,
                task_dir / "wd",
                one.command_line,
                {**one.environment, "AZ_BATCH_NUMBER": str(number)},
            )

        return await asyncio.gather(*(executor.run(launch(n)) for n in range(20)))

    assert [o.exit_code for o in in_executor(scenario)] == list(range(20))


@pytest.mark.parametrize("there", [True, False], ids=["refused", "missing"])
def test_thread_waits_without_pidfd(
    node: Node, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _flags: int = 0) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    collected: list[bool] = []
    kill_group = os.killpg

    def record(group: int, number: int) -> None:
        collected.append(not psutil.pid_exists(group))  # another process may have its ID by now
        kill_group(group, number)

    monkeypatch.setattr(task_process, "_HAS_PIDFD", there)
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    monkeypatch.setattr(os, "killpg", record)
    assert node.run("/bin/sh -c 'exit 5'").exit_code == 5
    outcome = run_out_of_time(node)
    assert outcome.exit_code == -15
    assert collected
    assert not any(collected) or not hasattr(os, "waitid")


def test_cancelling_run_kills_the_process(node: Node) -> None:
    command = "/bin/sh -c 'echo $$; exec sleep 600'"
    stdout = node.task_dir / "stdout.txt"

    async def scenario(executor: Executor) -> None:
        task = asyncio.create_task(executor.run(node.launch(command)))
        await eventually(
            lambda: stdout.exists() and stdout.read_text().endswith("\n"), "the process is started"
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_executor(scenario)
    assert not running(int(node.stdout()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads what /proc says")
def test_kill_leftovers_finds_processes_that_cleaned_their_environment(node: Node) -> None:
    node.layout.create()
    with (node.layout.startup / "stdout.txt").open("wb") as stdout:
        bare = psutil.Popen(["/bin/sleep", "600"], env={}, stdout=stdout, cwd="/")
    try:
        assert kill_node_processes(node.layout.root) == 1
        assert bare.wait(60) == -9
    finally:
        if bare.poll() is None:
            bare.kill()
            bare.wait()


def test_parents_are_signalled_before_their_children(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _number: sent.append(pid))
    processes.send({70001, 64, 33000, 9}, signal.SIGTERM)
    assert sent == [9, 64, 33000, 70001]

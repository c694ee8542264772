"""What the stages prepare and command run, and their time limit, by a clock that the commands
push.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.node.agent import attempt as module
from runner.node.agent.attempt import Attempt
from runner.node.agent.preparation import NodePreparation
from runner.node.checkpoints.committer import AttemptCheckpoints
from runner.node.distributed.launchers import PROCESSES_VARIABLE
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.command import ScriptResult
from runner.node.script.context import AttemptContext
from runner.node.script.outputs import AttemptOutputs
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.script.workspace import make_dirs
from runner.node.settings import NodeSettings
from runner.node.termination import Termination
from runner.protocol.launchers import LAUNCHERS, Launcher
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import (
    RunSpec,
    parse_run_spec,
)

SPEC = b"""{"format": 1, "run_id": "mnist-1", "code": {"sha256": "0"}, "command": ["train"],
"batch": {"job_id": "first"}, "prepare": "make data", "timeout_s": 100}"""


class Commands:
    """Records each command, its environment and its time limit; a command takes `takes_s`."""

    def __init__(self, takes_s: float) -> None:
        self.limits: list[float | None] = []
        self.words: list[tuple[str, ...]] = []
        self.environment: Mapping[str, str] = {}
        self.now = 1000.0
        self._takes_s = takes_s
        self.each_look_s = 0.0

    def clock(self) -> float:
        self.now += self.each_look_s
        return self.now

    def run(
        self,
        command: tuple[str, ...],
        *,
        timeout_s: float | None,
        environment: Mapping[str, str],
        **_: object,
    ) -> ScriptResult:
        self.limits.append(timeout_s)
        self.words.append(command)
        self.environment = environment
        self.now += self._takes_s
        return ScriptResult(0, timeout_s is not None and self._takes_s > timeout_s, False)


@pytest.fixture
def attempt_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attempt]:
    """Return a factory of attempts whose commands are only recorded."""

    def make(commands: Commands, **changes: Any) -> Attempt:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=commands.clock))
        monkeypatch.setattr(module.command, "run_command", commands.run)
        spec: RunSpec = replace(parse_run_spec(SPEC), **changes)
        node = NodeSettings("mnist-1", tmp_path / "wd", tmp_path / "shared", "n", "p", True, "h")
        saver = SimpleNamespace(
            must_stop=False, start=None, writers=None, finish=lambda _: None, resumed_text=""
        )
        nothing: Any = None
        termination = Termination(lambda: None)
        task: Any = SimpleNamespace(node=node, termination=termination)
        dirs, events = make_dirs(node.work_dir), EventLog(LineQueue())
        context = AttemptContext(
            nothing, RunPaths(spec.run_id), spec, 1, dirs, events, nothing, termination
        )
        outputs = SimpleNamespace(begin=lambda *_: None, limit_to_room=lambda _: None)
        return Attempt(
            task, context, cast("AttemptCheckpoints", saver), cast("AttemptOutputs", outputs)
        )

    return make


def prepared(tmp_path: Path) -> dict[str, str]:
    return {"VIRTUAL_ENV": str(tmp_path)}


@pytest.mark.parametrize(
    "launcher", [name for name, kind in LAUNCHERS.items() if kind.start == "command"]
)
def test_command_runs_unchanged_once_per_node(
    tmp_path: Path, attempt_of: Callable[..., Attempt], launcher: Launcher
) -> None:
    commands = Commands(takes_s=1.0)
    attempt = attempt_of(commands, launcher=launcher, prepare=None)
    attempt.run({"TMPDIR": "/tmp", "CUDA_VISIBLE_DEVICES": "0,1"}, prepared(tmp_path))
    assert commands.words == [("train",)]
    assert commands.environment[PROCESSES_VARIABLE] == "1"
    own = {"TF_CONFIG", "JAX_PROCESS_ID"} & commands.environment.keys()
    assert own == {"tensorflow": {"TF_CONFIG"}, "jax": {"JAX_PROCESS_ID"}}.get(launcher, set())


def test_command_has_the_remaining_time_after_prepare(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=30.0)
    attempt_of(commands).run({"TMPDIR": "/tmp"}, prepared(tmp_path))
    assert commands.limits == [100.0, 70.0]


def test_command_is_stopped_if_prepare_used_all_the_time(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=100.0)
    with pytest.raises(StageFailedError, match="100 s") as failure:
        attempt_of(commands).run({"TMPDIR": "/tmp"}, prepared(tmp_path))
    assert failure.value.code == "Timeout"
    assert commands.limits[1], "0 would be no limit"


def test_worker_limits_the_time_of_prepare_only(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=30.0)
    attempt_of(commands).run({"TMPDIR": "/tmp"}, prepared(tmp_path), rank=1)
    assert commands.limits == [100.0, None]


def test_prepare_over_its_time_limit_fails_the_run(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=101.0)
    with pytest.raises(StageFailedError, match="after the time limit of 100 s") as failure:
        attempt_of(commands).run({"TMPDIR": "/tmp"}, prepared(tmp_path))
    assert failure.value.code == "PreparationFailed"


def test_wait_for_the_preparation_of_another_task_times_out(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=0.0)
    commands.each_look_s = 40.0
    attempt = attempt_of(commands)
    node = NodeSettings("mnist-2", tmp_path / "other", tmp_path / "shared", "n", "p", True, "h")
    other = NodePreparation(node, parse_run_spec(SPEC), [], EventLog(LineQueue()))
    with (
        node_lock(other.lock, lambda: None),
        pytest.raises(StageFailedError, match="waited for that of another task") as failure,
    ):
        attempt.run({"TMPDIR": "/tmp"}, prepared(tmp_path))
    assert failure.value.code == "PreparationFailed"
    assert commands.limits == []


def test_prepare_and_command_have_no_limit_by_default(
    tmp_path: Path, attempt_of: Callable[..., Attempt]
) -> None:
    commands = Commands(takes_s=30.0)
    attempt_of(commands, timeout_s=None).run({"TMPDIR": "/tmp"}, prepared(tmp_path))
    assert commands.limits == [None, None]

"""Node setup: order of steps, cancellation with the node, and errors as clients see them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from batch_emulator.executor import processes
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_setup import Booted, NodeError, NodeSetup, Step

_T = TypeVar("_T")


def booted(tmp_path: Path, **spec: Any) -> Booted:
    return Booted("pool", "node", spec, NodeLayout(tmp_path / "node"))


class Recorder:
    """Steps that say when they begin and end, and wait for the test where it wants."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.held: dict[str, asyncio.Event] = {}

    def step(self, name: str, failure: Exception | None = None) -> Step:
        async def run(node: Booted) -> None:
            self.log.append(f"begin {name}")
            try:
                if name in self.held:
                    await self.held[name].wait()
                if failure is not None:
                    raise failure
            except asyncio.CancelledError:
                self.log.append(f"cancel {name}")
                raise
            self.log.append(f"end {name}")

        def wanted(spec: Mapping[str, Any]) -> bool:
            return name in spec.get("wants", ())

        return Step(name, wanted, run)

    def ready(self, errors: list[dict[str, Any]]) -> None:
        self.log.append(f"ready {[error['code'] for error in errors]}")


async def settled() -> None:
    """Let all coroutines and threads run for a while."""
    for _ in range(20):
        await asyncio.to_thread(lambda: None)


def in_loop(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run it where threads do one thing after the other."""

    async def with_one_thread() -> _T:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await main()

    return asyncio.run(with_one_thread())


def test_only_the_steps_of_the_pool_run_in_order(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen = Recorder()
        setup = NodeSetup([seen.step("a"), seen.step("b"), seen.step("c")])
        node = booted(tmp_path, wants=["c", "a"])
        setup.begin(node, seen.ready)
        await settled()
        return seen.log

    expected = ["begin a", "end a", "begin c", "end c", "ready []"]
    assert in_loop(main) == expected


def test_first_failed_step_is_the_last(tmp_path: Path) -> None:
    errors: list[dict[str, Any]] = []

    async def main() -> list[str]:
        seen = Recorder()
        failure = NodeError("Bad", "it is bad", (("Why", "so"),))
        setup = NodeSetup([seen.step("a", failure), seen.step("b")])
        setup.begin(booted(tmp_path, wants=["a", "b"]), errors.extend)
        await settled()
        return seen.log

    assert in_loop(main) == ["begin a"]
    details = [{"name": "Why", "value": "so"}]
    assert errors == [{"code": "Bad", "message": "it is bad", "errorDetails": details}]


def test_exception_in_a_step_is_an_error_of_the_node(tmp_path: Path) -> None:
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        setup = NodeSetup([Recorder().step("a", RuntimeError("broken"))])
        setup.begin(booted(tmp_path, wants=["a"]), errors.extend)
        await settled()

    in_loop(main)
    assert [error["code"] for error in errors] == ["Unknown"]
    assert errors[0]["errorDetails"] == [{"name": "Message", "value": "broken"}]


def test_setup_of_a_removed_node_is_cancelled_before_its_deletion(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen = Recorder()
        seen.held["a"] = asyncio.Event()
        setup = NodeSetup([seen.step("a")])
        node = booted(tmp_path, wants=["a"])
        setup.begin(node, seen.ready)
        await settled()
        setup.give_up(node.layout.root, lambda: seen.log.append("delete"))
        setup.begin(node, seen.ready)  # it came back under the same id
        seen.held["a"].set()
        await settled()
        assert not await setup.settle()
        return seen.log

    expected = ["begin a", "cancel a", "delete", "begin a", "end a", "ready []"]
    assert in_loop(main) == expected


def test_node_without_setup_steps_is_ready_with_its_folders(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen, setup = Recorder(), NodeSetup()
        names = [f"node{number}" for number in range(5)]
        for name in names:
            node = Booted("pool", name, {}, NodeLayout(tmp_path / name / "tasks"))
            setup.begin(node, lambda _, name=name: seen.log.append(name))
        assert seen.log == []
        assert await setup.settle()
        assert all((tmp_path / name / "tasks/shared").is_dir() for name in names)
        assert seen.log == names, "in the order in which they booted"
        return seen.log

    assert len(in_loop(main)) == 5


def test_node_without_folders_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    node = Booted("pool", "node", {}, NodeLayout(tmp_path / "file" / "node" / "tasks"))

    async def main() -> list[str]:
        seen, setup = Recorder(), NodeSetup()
        setup.begin(node, seen.ready)
        await setup.settle()
        return seen.log

    assert in_loop(main) == ["ready ['DiskFull']"]


def test_processes_of_removed_nodes_are_searched_together_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[set[Path]] = []
    go_on = threading.Event()

    def look(*folders: Path) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert go_on.wait(60)
        looks.append(set(folders))
        return 0

    monkeypatch.setattr(processes, "kill_node_processes", look)
    folders = [tmp_path / f"node{number}" for number in range(30)]

    async def main() -> list[Path]:
        setup, deleted = NodeSetup(), list[Path]()
        for folder in folders:
            setup.give_up(folder / "tasks", lambda folder=folder: deleted.append(folder))
        for _ in range(20):
            await asyncio.sleep(0)
        assert deleted == [], "what runs there goes first"
        go_on.set()
        while await setup.settle():
            pass
        return deleted

    assert set(asyncio.run(main())) == set(folders)
    assert set.union(*looks) == set(folders)
    assert len(looks) <= 2


def test_closing_waits_for_processes_of_lost_nodes_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(processes, "kill_node_processes", lambda *folders: looked.extend(folders))

    async def main() -> None:
        setup = NodeSetup()
        setup.give_up(tmp_path / "node" / "tasks", lambda: None)
        await setup.close()

    in_loop(main)
    assert looked == [tmp_path / "node"]


def test_closing_cancels_pending_setups(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen = Recorder()
        seen.held["a"] = asyncio.Event()
        setup = NodeSetup([seen.step("a")])
        setup.begin(booted(tmp_path, wants=["a"]), seen.ready)
        await settled()
        await setup.close()
        return seen.log

    assert in_loop(main) == ["begin a", "cancel a"]

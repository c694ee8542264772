"""Setting nodes up: in order, given up when the node goes, its errors as the wire shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_setup import Booted, NodeError, NodeSetup, Step


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
    for _ in range(20):
        await asyncio.sleep(0)


def test_steps_run_in_order_and_only_those_the_pool_wants(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen = Recorder()
        setup = NodeSetup([seen.step("a"), seen.step("b"), seen.step("c")])
        assert setup.nothing_to_do(booted(tmp_path, wants=[]))
        node = booted(tmp_path, wants=["c", "a"])
        assert not setup.nothing_to_do(node)
        setup.begin(node, seen.ready)
        await settled()
        return seen.log

    expected = ["begin a", "end a", "begin c", "end c", "ready []"]
    assert asyncio.run(main()) == expected


def test_first_step_that_fails_is_the_last(tmp_path: Path) -> None:
    errors: list[dict[str, Any]] = []

    async def main() -> list[str]:
        seen = Recorder()
        failure = NodeError("Bad", "it is bad", (("Why", "so"),))
        setup = NodeSetup([seen.step("a", failure), seen.step("b")])
        setup.begin(booted(tmp_path, wants=["a", "b"]), errors.extend)
        await settled()
        return seen.log

    assert asyncio.run(main()) == ["begin a"]
    details = [{"name": "Why", "value": "so"}]
    assert errors == [{"code": "Bad", "message": "it is bad", "errorDetails": details}]


def test_a_step_that_breaks_makes_an_error_of_the_node(tmp_path: Path) -> None:
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        setup = NodeSetup([Recorder().step("a", RuntimeError("broken"))])
        setup.begin(booted(tmp_path, wants=["a"]), errors.extend)
        await settled()

    asyncio.run(main())
    assert [error["code"] for error in errors] == ["Unknown"]
    assert errors[0]["errorDetails"] == [{"name": "Message", "value": "broken"}]


def test_node_that_goes_while_it_is_set_up_is_given_up_before_it_is_deleted(tmp_path: Path) -> None:
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
        assert setup.nothing_to_do(booted(tmp_path))
        return seen.log

    expected = ["begin a", "cancel a", "delete", "begin a", "end a", "ready []"]
    assert asyncio.run(main()) == expected


def test_deletion_is_at_once_when_nothing_is_going_on(tmp_path: Path) -> None:
    async def main() -> list[str]:
        log: list[str] = []
        NodeSetup().give_up(tmp_path, lambda: log.append("delete"))
        return log

    assert asyncio.run(main()) == ["delete"]


def test_closing_gives_up_what_is_going_on(tmp_path: Path) -> None:
    async def main() -> list[str]:
        seen = Recorder()
        seen.held["a"] = asyncio.Event()
        setup = NodeSetup([seen.step("a")])
        setup.begin(booted(tmp_path, wants=["a"]), seen.ready)
        await settled()
        await setup.close()
        return seen.log

    assert asyncio.run(main()) == ["begin a", "cancel a"]

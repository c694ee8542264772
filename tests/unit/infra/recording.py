"""Run a Pulumi program under mocks, and record every request that the engine would receive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks, rpc
from pulumi.runtime.proto import source_pb2
from pulumi.runtime.settings import reset_options

from tests.unit.infra import cloud
from tests.unit.infra.oracle import validate

_SECRET_KEY = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"


@dataclass(frozen=True)
class Registered:
    """A resource: its inputs without the marks of secrets, and its options."""

    type: str
    name: str
    inputs: dict[str, Any]
    secrets: frozenset[str]
    urn: str
    parent: str
    protect: bool
    dependencies: frozenset[str]
    delete_before_replace: bool
    ignore_changes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The type without provider and version, such as `batch:Pool`."""
        return cloud.short_type(self.type)


@dataclass(frozen=True)
class Recording:
    """The resources and components that a run declared, and its exports."""

    resources: tuple[Registered, ...]
    components: tuple[Registered, ...]
    exports: dict[str, Any]

    def of(self, kind: str) -> list[Registered]:
        """Return all resources of one type, such as `batch:Pool`."""
        return [found for found in self.resources if found.kind == kind]

    def one(self, kind: str) -> Registered:
        """Return the only resource of a type."""
        (found,) = self.of(kind)
        return found

    def by_urn(self, urn: str) -> Registered:
        """Return the resource or component with this URN."""
        (found,) = [r for r in (*self.resources, *self.components) if r.urn == urn]
        return found


class _Mocks(mocks.Mocks):
    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if not args.custom:
            return None, dict(args.inputs)
        plain = _revealed(args.inputs)
        violations = validate(args.typ, args.name, plain)
        assert not violations, f"{args.name}: {'; '.join(map(str, violations))}"
        return cloud.arm_id(args.typ, plain), cloud.outputs(args.typ, plain)

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]]]:
        return cloud.answer(args.token, args.args), []


class _Monitor(mocks.MockMonitor):
    """Records parents, protection and dependencies, which plain mocks do not receive."""

    def __init__(self) -> None:
        super().__init__(_Mocks())
        self.found: list[tuple[bool, Registered]] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802  the protocol's name
        response = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.found.append((request.custom, _registered(request, response.urn)))
        return response


def record(
    declare: Callable[[], Mapping[str, Any]], *, stack: str = "dev", preview: bool = False
) -> Recording:
    """Run `declare`, which returns the exports, and wait for every resource."""
    # Pulumi requires an event loop in the thread, and another test may have closed it.
    asyncio.set_event_loop(asyncio.new_event_loop())
    reset_options(project="runner", stack=stack)
    monitor = _Monitor()
    mocks.set_mocks(monitor.mocks, "runner", stack, preview, monitor=monitor)
    exports: dict[str, Any] = {}

    @mocks.test
    def run() -> Any:
        return pulumi.Output.all(**declare()).apply(exports.update)

    # Skip two steps that take half of the processor time: aliases of older API versions, which the
    # monitor receives unchanged, and the source lines of each resource, which no test reads.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulumi.resource.collapse_alias_to_urn", lambda *_: None)
        patch.setattr("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)
        run()
    return Recording(
        resources=tuple(found for custom, found in monitor.found if custom),
        components=tuple(found for custom, found in monitor.found if not custom),
        exports=exports,
    )


def _registered(request: Any, urn: str) -> Registered:
    inputs = rpc.deserialize_properties(request.object, keep_unknowns=True)
    return Registered(
        type=request.type,
        name=request.name,
        inputs=_revealed(inputs),
        secrets=frozenset(name for name, value in inputs.items() if _is_secret(value)),
        urn=urn,
        parent=request.parent,
        protect=request.protect,
        dependencies=frozenset(request.dependencies),
        delete_before_replace=request.deleteBeforeReplace,
        ignore_changes=tuple(request.ignoreChanges),
    )


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(_SECRET_KEY) == _SECRET


def _revealed(value: Any) -> Any:
    if _is_secret(value):
        return _revealed(value["value"])
    if isinstance(value, dict):
        return {key: _revealed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_revealed(part) for part in value]
    return value

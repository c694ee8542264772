"""A clock without a fixed origin is compared only with times that it gave.

`.ci/run` also runs all tests with a monotonic clock that has just started.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from runner.core.progress import Progress
from runner.flows import local_files
from runner.node.cluster import Hosts
from runner.node.distributed import rendezvous
from runner.node.script import streams
from runner.node.script.shipper import LineQueue
from tests.unit.clock_origins import Moments, mentions_clock
from tests.unit.source_tree import (
    TOOLS,
    assert_none,
    imports,
    modules,
    parsed,
    product,
    shown,
    sources,
    text_of,
)

_FOLDERS = (*product(), *TOOLS, "images", "custom_image", "tests")

INVENTED = {
    "attribute": """
        self.seen = 0.0
        if time.monotonic() - self.seen > 5: ...""",
    "attribute with a type": """
        self.next: float = 0
        self.next = loop.time() + 1""",
    "negative": """
        last = -1.0
        while perf_counter() > last: ...""",
    "variable": """
        at, text = 0.0, ''
        at = time.monotonic()""",
    "class": """
        class Worker:
            ended_at: float = 0.0
        worker.ended_at = time.monotonic()""",
    "field of a dataclass": """
        class Worker:
            seen: float = field(default=-1.0)
        busy = worker.seen < time.monotonic_ns()""",
    "parameter": """
        def due(since=0.0): return time.monotonic() - since > 5""",
    "keyword-only parameter": """
        def due(*, since: float = 0.0): return self._clock() - since > 5""",
    "missing attribute": "time.monotonic() - getattr(local, 'used', 0.0) > 5",
    "missing key": """
        since = time.monotonic() - WAITING_S
        all(self.seen.get(name, -1.0) > since for name in names)""",
    "values of a dictionary": """
        seen = dict.fromkeys(names, 0.0)
        seen[name] = time.monotonic()""",
    "default of a dictionary": """
        seen = defaultdict(float)
        seen[name] = time.monotonic()""",
    "comprehension": """
        seen = {name: 0 for name in names}
        seen[name] = time.perf_counter()""",
    "part of a tuple": """
        self.counted = ('', 0.0)
        self.counted = (text, self.clock())""",
    "instead of None": """
        worker.ended_at = time.monotonic()
        first = min(workers, key=lambda worker: worker.ended_at or 0.0)""",
    "condition": """
        began = time.monotonic()
        end = 0.0 if is_over else began""",
    "minimum": """
        until = time.monotonic() + timeout_s
        until = max(until, self.until.get(file, 0.0))""",
    "walrus": """
        while (left := until - time.monotonic()) > 0: ...
        until = 0""",
}

CORRECT = {
    "None": """
        self.seen: float | None = None
        if self.seen is None or time.monotonic() - self.seen > 5: ...""",
    "the clock itself": """
        self.seen = time.monotonic()
        if time.monotonic() - self.seen > 5: ...""",
    "a duration": """
        took_s = 0.0
        took_s = time.monotonic() - began
        since = time.monotonic() - 60
        if time.monotonic() - began > 5 or took_s > 3: ...""",
    "time left": "left_s = max(until - time.monotonic(), 0.0)",
    "a sum of durations": """
        spent = 0.0
        spent += time.monotonic() - began""",
    "a constant": """
        EVERY = 5.0
        since = time.monotonic() - EVERY""",
    "another part of a tuple": """
        usage[name] = (0, time.monotonic() + 5)
        known = usage[name][1] > time.monotonic()""",
    "the same name in another function": """
        def wait(): return time.monotonic() > until
        def read(): until = 0""",
    "a clock with an origin": """
        newest = 0.0
        newest = max(newest, time.time())""",
}


def _module(text: str) -> ast.Module:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return ast.parse("\n".join(line[indent:] for line in lines))


@pytest.mark.parametrize("text", INVENTED.values(), ids=INVENTED)
def test_invented_time_of_a_clock_is_found(text: str) -> None:
    assert Moments(_module(text)).invented()


@pytest.mark.parametrize("text", CORRECT.values(), ids=CORRECT)
def test_time_that_the_clock_gave_is_accepted(text: str) -> None:
    assert Moments(_module(text)).invented() == {}


def test_invented_time_is_found_in_the_module_of_the_class() -> None:
    reader = Moments(_module("if time.monotonic() - worker.seen_at > 5: ..."))
    home = _module("class Worker:\n    seen_at: float = 0.0")
    assert Moments(home).invented() == {}
    assert Moments(home, reader.attributes).invented() == {2: "self.seen_at: 0.0"}


def test_monotonic_times_are_compared_only_with_their_own() -> None:
    """Attributes count as times in the modules that import, or are imported by, their users."""
    paths = sources(*_FOLDERS)
    found = {path: Moments(parsed(path)) for path in paths if mentions_clock(text_of(path))}
    times = {shown(path): moments.attributes for path, moments in found.items()}
    near: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        importer, imported = shown(modules()[each.importer]), shown(modules()[each.imported])
        near[importer] |= times.get(imported, set())
        near[imported] |= times.get(importer, set())
    for path in paths:
        if others := near[shown(path)] - times.get(shown(path), set()):
            found[path] = Moments(parsed(path), others)
    guilty = [
        f"{shown(path)}:{line} {text}"
        for path, moments in found.items()
        for line, text in moments.invented().items()
    ]
    assert len(found) > 50
    assert_none(guilty, "the clock starts with the machine; use None, or a time that it gave")


Start = Callable[[ModuleType], None]


def _replaces_the_clock(node: ast.AST) -> bool:
    """Return True for `monkeypatch.setattr(module.time, "monotonic", ...)` and its like."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr")):
        return False
    target = ast.unparse(node.args[0]) if node.args else ""
    return target == "time" or target.endswith(".time") or target.startswith("'time.")


def test_clock_of_the_whole_process_is_never_replaced() -> None:
    """The servers of other tests would sleep until the time of that clock comes."""
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in sources("tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and _replaces_the_clock(node)
    ]
    assert_none(found, 'replace the name in the module: setattr(module, "time", ...)')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('monkeypatch.setattr(time, "monotonic", later)', True),
        ('monkeypatch.setattr(auth.time, "sleep", later)', True),
        ('monkeypatch.setattr("time.time", later)', True),
        ('monkeypatch.setattr(auth, "time", own)', False),
    ],
)
def test_replaced_clock_is_found(text: str, expected: bool) -> None:
    assert _replaces_the_clock(ast.parse(text, mode="eval").body) is expected


@pytest.fixture
def just_started(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Let the clock that a module reads have started 10 ms ago."""

    def set_clock(module: ModuleType) -> None:
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.01))

    return set_clock


def test_no_worker_waits_before_the_first_connects(just_started: Start) -> None:
    just_started(rendezvous)
    hosts = Hosts(("127.0.0.1", "127.0.0.2"), "127.0.0.1", is_primary=True)
    assert not rendezvous.RejoinServer(hosts, "token").all_waiting


def test_first_bytes_of_a_transfer_are_reported_after_boot(just_started: Start) -> None:
    just_started(local_files)
    shown: list[Progress] = []
    moved = local_files.BytesMoved("data", 10, shown.append)
    moved.add(3)
    moved.add(3)
    assert [progress.done for progress in shown] == [3]


def test_first_progress_of_each_stage_is_reported_after_boot(just_started: Start) -> None:
    just_started(streams)
    queue = LineQueue()
    events = streams.EventLog(queue)
    for name in ("data", "restore"):
        with events.stage(name) as report:
            report("first", 1, 3)
            report("second", 2, 3)
    lines = [json.loads(line) for line in queue.peek().splitlines()]
    progress = [(each["stage"], each["message"]) for each in lines if each["state"] == "progress"]
    assert progress == [("data", "first"), ("restore", "first")]

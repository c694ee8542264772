"""Marks, order and settings of all tests."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import re
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Hypothesis allows 200 ms per example, but an example may take a second on a busy machine.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")

TESTS = Path(__file__).parent
_ALL_SLOW = re.compile(
    r"^pytestmark = (pytest\.mark\.slow$|\[[^]]*pytest\.mark\.slow\b)", re.MULTILINE
)
_PREFIX = len(f"{TESTS}/")
# The files and folders that take longest. They start first, so that the workers end at about the
# same time.
LONGEST_FIRST = (
    *("proof", "e2e/test_recipes.py", "e2e/test_resume_proof.py", "engine", "e2e", "clients"),
    "unit/test_structure.py",  # with all `SOURCE_READERS`
    *("unit/hooks", "unit/core/pricing", "unit/images", "unit/node", "contract", "unit/infra"),
)

# These parse every module of the checkout: 9 s of CPU for each worker that has one of them.
SOURCE_READERS = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        *("cli/test_explain", "flows/test_child_python", "protocol/test_exit_codes"),
        "test_clock_origins",
        *("test_fix_situations", "test_house", "test_leftovers", "test_request_chain"),
        *("test_sources_of_claims", "test_structure"),
    )
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that gives one worker the `SOURCE_READERS`, and others file by file."""
    from xdist.scheduler import LoadFileScheduling

    class ReadersTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "tests/unit" if file in SOURCE_READERS else file

    return ReadersTogether(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # see pytest_collection_finish
    # Test scripts wait for files that only the current user can read.
    os.environ.setdefault("BATCH_EMULATOR_ISOLATION", "environment")
    # Otherwise gRPC, which Pulumi's SDK uses in tests of the stack, restarts its threads in each
    # process that a later test forks, and can abort it before it executes a program.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # A shell that runs the tests in the background lets them ignore Ctrl-C, and all programs that
    # they start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "fix(*codes): the errors whose printed commands the test runs"
    )
    config.addinivalue_line(
        "markers", "feature(row): the row of docs/features.md that the test shows to work"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the test modules in each worker of a run of the whole suite.

    Rewriting the assertions of all modules takes 10 s. Workers that begin with different modules
    read the others from bytecode.
    """
    worker: dict[str, str | int] = getattr(session.config, "workerinput", {})
    if not worker or session.config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return
    number, count = int(str(worker["workerid"]).removeprefix("gw")), int(worker["workercount"])
    paths = [path for path in TESTS.rglob("test_*.py") if not is_slow(path, session.config)]
    for path in sorted(paths)[number::count]:
        module = path.relative_to(TESTS.parent).with_suffix("")
        with suppress(
            Exception, pytest.skip.Exception
        ):  # pytest reports the error when it collects the file
            importlib.import_module(".".join(module.parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if is_slow(collection_path, config) else None


def is_slow(path: Path, config: pytest.Config) -> bool:
    """Return True for a module that need not be imported, because `-m "not slow"` skips it."""
    if config.option.markexpr != "not slow" or not path.match("test_*.py"):
        return False
    text = path.read_text(encoding="utf-8")
    if path.parent == TESTS / "browser":
        return True
    if path.parent == TESTS / "e2e":
        return "pytest.mark.smoke" not in text
    return _ALL_SLOW.search(text) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; the order within a file stays."""
    items.sort(key=lambda item: _place(item.path.as_posix()[_PREFIX:]))


def pytest_collection_finish() -> None:
    """Enable the garbage collector, except for the existing modules and tests, which are kept.

    They are a million objects; visiting them repeatedly would take a third of the time that pytest
    needs to collect tests. The threshold is that of `runner`, because parsing all sources took
    three times as long with the default.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Generator[None]:
    """Give the next test the logging of this process as it was.

    Programs that run in the process of a test set levels and handlers, and tests that read
    `caplog` would see records that belong to nobody's test.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {each: each.level for each in (root, *_loggers())}
    yield
    root.handlers[:] = handlers
    for each in (root, *_loggers()):
        each.setLevel(levels.get(each, logging.NOTSET))


def _loggers() -> list[logging.Logger]:
    known = list(logging.root.manager.loggerDict.values())
    return [each for each in known if isinstance(each, logging.Logger)]


@functools.cache
def _place(path: str) -> int:
    names = enumerate(LONGEST_FIRST)
    return next((n for n, name in names if f"{path}/".startswith(f"{name}/")), len(LONGEST_FIRST))

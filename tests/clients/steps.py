"""Functions for the scenarios of all client generations. Uses only the standard library.

A scenario is a script in the environment of its client. It finds the account by the variables that
`az batch` reads. It has one function for each resource of Batch, which creates what it needs, so
that each can run alone: `python track1.py tasks files`. For each resource it prints one JSON line:
the number of checks and the operations that are not emulated (501), or the traceback of a failure.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import traceback
import urllib.request
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE_S = 180.0
POLL_S = 0.05
MANAGER = f"{sys.executable} {Path(__file__).with_name('manager.py')}"
_resources: dict[str, Callable[[], None]] = {}
_ids: dict[str, int] = {}
_count = 0
_missed: list[str] = []


def resource(function: Callable[[], None]) -> Callable[[], None]:
    """Register the function of one resource; functions run in the order of definition."""
    _resources[function.__name__] = function
    return function


def run(**facts: Any) -> None:
    """Run the functions of the resources on the command line, or of all. Print a line for each."""
    report(**facts)
    for name in sys.argv[1:] or _resources:
        before = _count
        _missed.clear()
        start = time.monotonic()
        try:
            _resources[name]()
        except Exception:  # noqa: BLE001 - it fails the resource's own test
            report(resource=name, failed=traceback.format_exc())
        else:
            seconds = round(time.monotonic() - start, 2)
            report(resource=name, checks=_count - before, missing=_missed, seconds=seconds)


def report(**facts: Any) -> None:
    """Print one JSON line, which the test reads."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def fresh(kind: str) -> str:
    """Return an unused id."""
    _ids[kind] = _ids.get(kind, 0) + 1
    return f"{kind}-{_ids[kind]}"


def check(condition: object, what: object) -> None:
    """Raise AssertionError if the condition is false. Count the check: each resource needs one."""
    global _count  # noqa: PLW0603 - a script has one count
    _count += 1
    if not condition:
        raise AssertionError(what)


@contextmanager
def step(missing: Callable[[Exception], str | None]) -> Generator[None]:
    """Allow a 501 in the block; `missing` returns its operation, or None for another error."""
    try:
        yield
    except Exception as err:
        name = missing(err)
        if name is None:
            raise
        _missed.append(name)


def until(poll: Callable[[], Any], what: str) -> Any:
    """Poll until the result is truthy, and return it.

    Each pause is twice as long as the last poll, because a poll with `az` is a whole command, which
    would slow the service down.
    """
    end = time.monotonic() + DEADLINE_S
    while True:
        began = time.monotonic()
        found = poll()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"did not happen in time: {what}")
        time.sleep(max(POLL_S, 2 * (time.monotonic() - began)))


def publish(application: str, version: str, **files: str) -> None:
    """Add a version of an application to the account, as Azure Resource Manager does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    url = f"{os.environ['AZURE_BATCH_ENDPOINT']}/_emulator/applications/{application}"
    request = urllib.request.Request(
        f"{url}/versions/{version}?default=true",
        buffer.getvalue(),
        {"Authorization": f"Bearer {os.environ['AZURE_BATCH_ACCESS_KEY']}"},
        method="PUT",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        check(answer.status < 300, answer.status)

"""What the scenarios of all client generations share. Needs nothing but the standard library.

A scenario is a plain script in the environment of its client; where the account is it learns from
the variables that `az batch` reads. It has one function for each resource of Batch, which makes
what it needs, so that each can run alone: `python track1.py tasks files`. For each it prints one
JSON line: what it checked and what the emulator said it does not emulate (501), or how it failed.
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
    """Register the part of the scenario that uses one resource, in the order of definition."""
    _resources[function.__name__] = function
    return function


def run(**facts: Any) -> None:
    """Run every resource, or those of the command line, and print a line for each."""
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
    """Print one line for the test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def fresh(kind: str) -> str:
    """Return an unused id."""
    _ids[kind] = _ids.get(kind, 0) + 1
    return f"{kind}-{_ids[kind]}"


def check(condition: object, what: object) -> None:
    """Raise AssertionError unless the condition holds. Checks are counted: the test needs one."""
    global _count  # noqa: PLW0603 - a script has one count
    _count += 1
    if not condition:
        raise AssertionError(what)


@contextmanager
def step(missing: Callable[[Exception], str | None]) -> Generator[None]:
    """A part of the scenario that may not be emulated yet; `missing` names what a 501 lacks."""
    try:
        yield
    except Exception as err:
        name = missing(err)
        if name is None:
            raise
        _missed.append(name)


def until(look: Callable[[], Any], what: str) -> Any:
    """Look until there is something.

    A look of `az` takes as long as a command. The pause is twice as long, so that the processors
    are left to the service.
    """
    end = time.monotonic() + DEADLINE_S
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"did not happen in time: {what}")
        time.sleep(max(POLL_S, 2 * (time.monotonic() - began)))


def publish(application: str, version: str, **files: str) -> None:
    """Give the account a version of an application, as the resource manager does in Azure."""
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

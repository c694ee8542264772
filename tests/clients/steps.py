"""What the scenarios of all client generations share. Needs nothing but the standard library.

A scenario is a plain script in the environment of its client; where the account is it learns from
the variables that `az batch` reads. It prints one JSON line for everything that the emulator said
it does not emulate (501), which the test judges, and ends with another code than 0 when anything
else is not as it should be.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

DEADLINE_S = 60.0
POLL_S = 0.05
_count = 0


def told(**facts: Any) -> None:
    """One line for the test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def check(condition: object, what: object) -> None:
    """Go on only if the condition holds; counted, so that the test knows that something ran."""
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
        told(missing=name)


def until(look: Callable[[], Any], what: str) -> Any:
    """Look until there is something."""
    end = time.monotonic() + DEADLINE_S
    while True:
        found = look()
        if found:
            return found
        check(time.monotonic() < end, f"did not happen in time: {what}")
        time.sleep(POLL_S)


def finish(client: str) -> None:
    """The last line: everything above held."""
    told(done=client, checks=_count)

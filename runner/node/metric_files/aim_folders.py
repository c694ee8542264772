"""Read the metrics in a folder `.aim` with the Aim of the script's environment (`aim_program`)."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from runner.node.metric_files import aim_program
from runner.node.metric_files.reading import FileReader, FoundValue

# Runs a program with a line of JSON, within seconds, and returns the JSON that it prints.
AskPython = Callable[[str, object, float], Any]
logger = logging.getLogger(__name__)

# The database beside those with the values. It exists as soon as Aim has a run.
AIM_FILE = "/.aim/run_metadata.sqlite"
TIMEOUT_S = 25.0  # less than what remains when the script has ended
# A read starts a Python: the next one waits until they take at most this share of the time.
SHARE = 0.02
_DATABASES = (("meta", "chunks"), ("seqs", "chunks"))


@functools.cache
def _source() -> str:
    """Return the program's source, cached because the script may delete the agent's archive."""
    loader = aim_program.__loader__
    return loader.get_source(aim_program.__name__)  # type: ignore[union-attr]


@dataclass
class _Sequence:
    """The values of one metric in one context that were reported: their steps."""

    steps: set[int] = field(default_factory=set[int])
    last: int | None = None


class AimFolder(FileReader):
    """Reads all runs in a folder `.aim`, while the script writes to it, and when it has ended.

    Args:
        path: the file AIM_FILE in the folder.
        ask: runs a program with the Python of the script.
    """

    def __init__(self, path: Path, ask: AskPython) -> None:
        _source()
        self._folder = path.parent
        self._ask = ask
        self._sequences: dict[str, dict[str, _Sequence]] = {}  # by run and key
        self._state: object = None
        self._due: float | None = None

    def read(self) -> Iterator[FoundValue]:
        """Yield the values that are new, unless the last reading was too recent or none changed."""
        if self._due is None or time.monotonic() >= self._due:
            yield from self._read()

    def finish(self) -> Iterator[FoundValue]:
        """Yield what was written since the last reading."""
        yield from self._read()

    def _read(self) -> Iterator[FoundValue]:
        state = self._current_state()
        if not state or state == self._state:
            return
        known = {
            run: {key: (len(each.steps), each.last) for key, each in found.items()}
            for run, found in self._sequences.items()
        }
        began = time.monotonic()
        try:
            request = {"folder": str(self._folder), "known": known}
            answer = cast("dict[str, Any]", self._ask(_source(), request, TIMEOUT_S))
        finally:
            now = time.monotonic()
            self._due = now + (now - began) / SHARE
        if "missing" in answer:
            raise ValueError(f"the Python of the script has no Aim: {answer['missing']}")
        for problem in answer["problems"]:
            logger.info("metrics in %s are read later: %s", self._folder, problem)
        if not answer["problems"]:
            self._state = state
        for run in answer["runs"]:
            yield from self._new_values(run["id"], run["sequences"])

    def _current_state(self) -> list[tuple[str, int, int]]:
        """Return what differs after a change: size and time of all files with values."""
        found: list[tuple[str, int, int]] = []
        for parts in _DATABASES:
            for place, _, names in os.walk(self._folder.joinpath(*parts)):
                for name in names:
                    with suppress(OSError):  # deleted meanwhile
                        path = os.path.join(place, name)  # noqa: PTH118 - many files
                        facts = os.stat(path)  # noqa: PTH116
                        found.append((path, facts.st_size, facts.st_mtime_ns))
        return sorted(found)

    def _new_values(self, run_id: str, sequences: list[Any]) -> Iterator[FoundValue]:
        known = self._sequences.setdefault(run_id, {})
        number = list(self._sequences).index(run_id) + 1
        for key, name, context, values in sequences:
            each = known.setdefault(key, _Sequence())
            shown = shown_name(name, context)
            shown = shown if number == 1 else f"run-{number}/{shown}"
            for step, value in values:
                if step in each.steps:
                    continue
                each.steps.add(step)
                each.last = step if each.last is None else max(step, each.last)
                yield FoundValue(shown, float(value), step)


def shown_name(name: str, context: Mapping[str, object]) -> str:
    """Return the name of a metric with its context: `loss` of `{"subset": "val"}` is `val/loss`.

    Values that are no text have their key before them: `fold=1/loss`.
    """
    parts = [
        value if isinstance(value, str) else f"{key}={json.dumps(value)}"
        for key, value in context.items()
    ]
    return "/".join([*parts, name])

"""The generations of clients, the resources that each supports, and one process for each."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import python_of
from tests.contract.recording import take_violations
from tests.contract.server import ACCOUNT, KEY, serving

HERE = Path(__file__).parent
RESOURCES = (
    "account", "pools", "autoscale", "nodes", "jobs", "job_preparation", "tasks",
    "task_dependencies", "multi_instance", "job_managers", "files", "schedules", "auto_pools",
    "applications", "certificates", "statistics", "errors",
)  # fmt: skip
_LIMIT_S = 200


@dataclass(frozen=True)
class Generation:
    """A client generation: its package (None is the installed SDK), and facts of its script."""

    name: str
    script: str
    package: str | None
    facts: tuple[tuple[str, str], ...]
    lacks: tuple[str, ...] = ()
    slow: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the resources that the client supports."""
        return tuple(name for name in RESOURCES if name not in self.lacks)


def _track1(version: str, api_version: str, *, slow: bool = False) -> Generation:
    facts = (("version", version), ("api_version", api_version))
    return Generation(version, "track1.py", f"azure-batch=={version}", facts, slow=slow)


GENERATIONS = (
    _track1("9.0.0", "2020-03-01.11.0", slow=True),
    _track1("10.0.0", "2020-09-01.12.0"),
    _track1("14.2.0", "2024-02-01.19.0"),
    # api-version 2025-06-01 removed certificates
    Generation("15.1", "track2.py", None, (("client", "azure-batch 15"),), ("certificates",)),
    # the data plane of az 2.91 no longer has certificates
    Generation(
        "az", "az.py", "azure-cli==2.91.0", (("client", "azure-cli"),), ("certificates",), slow=True
    ),
)


class Runs:
    """The output of the scenarios of a session; pytest workers share it through a folder."""

    def __init__(self, folder: Path, wanted: Mapping[Generation, Iterable[str]]) -> None:
        self._folder = folder
        self._wanted = wanted

    def lines(self, generation: Generation) -> list[dict[str, Any]]:
        """Return the lines that the scenario printed for the resources of this session."""
        for one in (generation, *self._wanted):  # if another worker runs this one, run the next
            self._run(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path(generation).is_file():
                break
        self._run(generation, fcntl.LOCK_EX)
        found = json.loads(self._path(generation).read_text(encoding="utf-8"))
        if isinstance(found, str):
            pytest.skip(found)
        return found

    def _path(self, generation: Generation) -> Path:
        return self._folder / f"{generation.name}.json"

    def _run(self, generation: Generation, how: int) -> None:
        path = self._path(generation)
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, how)
            except BlockingIOError:
                return
            if path.is_file():
                return
            try:
                found: Any = self._lines(generation)
            except pytest.skip.Exception as skipped:
                found = str(skipped)
            path.with_suffix(".new").write_text(json.dumps(found), encoding="utf-8")
            path.with_suffix(".new").rename(path)

    def _lines(self, generation: Generation) -> list[dict[str, Any]]:
        name = (generation.package or "").partition("==")[0]
        folder = f"{name}-{generation.name}" if generation.name != "az" else name
        package = generation.package
        python = python_of(folder, package) if package else Path(sys.executable)
        data = self._folder / f"{generation.name}.data"
        take_violations()
        with serving(data) as running:
            return _output(python, generation, sorted(self._wanted[generation]), running.url)


def _output(
    python: Path, generation: Generation, resources: list[str], url: str
) -> list[dict[str, Any]]:
    """Return the lines of the script, each with the violations in the responses before it."""
    account = {
        "AZURE_BATCH_ENDPOINT": url,
        "AZURE_BATCH_ACCOUNT": ACCOUNT,
        "AZURE_BATCH_ACCESS_KEY": KEY,
    }
    with subprocess.Popen(
        [str(python), str(HERE / generation.script), *resources],
        env={**os.environ, **account, "NO_PROXY": "*"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = [{**json.loads(line), "wrong": take_violations()} for line in process.stdout]
        code = process.wait(_LIMIT_S)
    return [*found, {"ended": code}]

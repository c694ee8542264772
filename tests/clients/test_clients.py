"""Every generation of clients goes through every resource of Batch that it has, unmodified.

What the emulator answers 501 to must be a route without a handler or a property that the coverage
page names as refused, so the check tightens by itself as operations are written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.clients.generations import GENERATIONS, Generation, Runs
from tests.contract.coverage_page import is_named_as_missing

CASES = [
    pytest.param(
        generation,
        resource,
        id=f"{generation.name}-{resource}",
        marks=[pytest.mark.slow] if generation.slow else [],
    )
    for generation in GENERATIONS
    for resource in generation.resources
]


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return the runs of the selected generations; each starts at its first test."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "clients"
    folder.mkdir(exist_ok=True)
    return Runs(folder, _selected(request.session.items))


def _selected(items: list[pytest.Item]) -> dict[Generation, set[str]]:
    wanted: dict[Generation, set[str]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.path == Path(__file__):
            params: dict[str, Any] = dict(item.callspec.params)
            wanted.setdefault(params["generation"], set()).add(params["resource"])
    return wanted


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "resource"), CASES)
def test_client_passes_every_check_of_the_resource(
    runs: Runs, generation: Generation, resource: str
) -> None:
    lines = runs.lines(generation)
    assert dict(generation.facts).items() <= lines[0].items()
    assert lines[-1] == {"ended": 0}
    [line] = [line for line in lines if line.get("resource") == resource]
    assert "failed" not in line, line["failed"]
    assert line["wrong"] == [], "answers that the service's description does not allow"
    assert [name for name in line["missing"] if not is_named_as_missing(name)] == []
    assert line["checks"] > 0

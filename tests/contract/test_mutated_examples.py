"""The service's example requests with one thing wrong in each: its errors, never a 500.

Bounded and seeded: the same mutations on every run. Nodes never boot here, so nothing that is made
up is ever run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator
from copy import deepcopy
from typing import Any, cast

import pytest

from tests.contract.coverage_page import is_named_as_missing
from tests.contract.description import STABLE, Example, examples, needed
from tests.contract.server import serving
from tests.contract.signed import send
from tests.contract.stage import Stage

pytestmark = needed
MUTATIONS = 15
_BODIES = [
    example
    for example in examples(STABLE)
    if any(isinstance(value, dict) for value in example.parameters.values())
]
_WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    "",
    "x",
    "\x00",
    "\ud83d\ude00",
    "a" * 70_000,
    "../../etc",
    "PT",
    "P1Y",
    "-PT5M",
    "9999-99-99T00:00:00Z",
    "$x = 1 / 0;",
    "http://[",
    "file:///etc",
    [],
    [[]],
    [None],
    [1],
    ["x"],
    [{}],
    {},
    {"x": None},
    {"": {}},
    {"autoUser": []},
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    with serving(
        tmp_path_factory.mktemp("mutated"), boot_s=1e6, dedicated_cores=64, spot_cores=64
    ) as running:
        yield Stage(running)
        assert running.emulator.healthy


@pytest.mark.parametrize("example", _BODIES, ids=str)
def test_mutated_example_causes_no_server_error(stage: Stage, example: Example) -> None:
    chance = random.Random(example.name)
    [body] = [value for value in example.parameters.values() if isinstance(value, dict)]
    path = example.operation.path
    ids = {
        "poolId": stage.pool(),
        "jobId": stage.job(),
        "nodeId": "node",
        "userName": "me",
    }
    ids["taskId"] = stage.task(ids["jobId"])
    for name in ("poolId", "jobId", "taskId", "nodeId", "userName"):
        path = path.replace(f"{{{name}}}", ids[name])
    path = path.replace("{jobScheduleId}", "schedule")
    for wrong in mutated(cast("dict[str, Any]", body), chance):
        text = json.dumps(wrong).replace('"poolId": "poolId"', f'"poolId": "{stage.base}"')
        answer = send(stage.url, example.operation.method, path, body=text.encode())
        if answer.status_code == 503:  # documented: enabling autoscale again within 30 s
            assert answer.json()["code"] == "TooManyEnableAutoScaleRequests"
            continue
        assert answer.status_code < 500 or answer.status_code == 501, text[:500]
        if answer.status_code == 501:
            values = {v["key"]: v["value"] for v in answer.json()["values"]}
            assert is_named_as_missing(values["Operation"]), values
        elif answer.status_code >= 400:
            assert answer.json()["code"] not in ("", "InternalError")


def mutated(body: dict[str, Any], chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield copies of a body in which one property is changed, removed, nested or renamed."""
    spots = list(_spots(body))
    for _ in range(MUTATIONS):
        copy = deepcopy(body)
        *way, last = chance.choice(spots)
        place: Any = copy
        for step in way:
            place = place[step]
        how = chance.random()
        if how < 0.15:
            del place[last]
        elif how < 0.25:
            place[last] = {"x": place[last]}
        elif how < 0.35:
            place[last] = [place[last]] * 3
        else:
            place[last] = chance.choice(_WRONG)
        yield copy


def _spots(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        keys: list[Any] = list(cast("dict[str, Any]", value))
    elif isinstance(value, list):
        keys = list(range(len(cast("list[Any]", value))))
    else:
        return
    for key in keys:
        yield (*way, key)
        yield from _spots(value[key], (*way, key))

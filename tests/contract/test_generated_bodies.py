"""Bodies that are made up from the service's description: all valid ones are accepted, all with one
mistake are refused with what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.domain.validation.body_schema import InvalidItem, check_body
from tests.contract.description import needed
from tests.contract.generated_bodies import Body, valid_bodies, wrong_bodies
from tests.contract.server import serving
from tests.contract.stage import Stage

pytestmark = needed
VERSION = "2024-02-01.19.0"
COUNT = 500


def fault_of(body: Body) -> Fault | None:
    """Return the error code for a body, or for a task in it."""
    try:
        read = check_body(body.operation.name, VERSION, body.content)
    except Fault as fault:
        return fault
    tasks = read.get("value")
    items = tasks if isinstance(tasks, list) else []
    return next((item.fault for item in items if isinstance(item, InvalidItem)), None)


def test_every_valid_body_is_accepted_unchanged() -> None:
    bodies = valid_bodies(COUNT, seed=1812)
    assert len(bodies) == COUNT
    assert [str(body) for body in bodies if fault_of(body) is not None] == []
    for body in bodies:
        assert check_body(body.operation.name, VERSION, body.content) == body.content


def test_every_invalid_body_is_refused_with_the_path() -> None:
    bodies = wrong_bodies(COUNT, seed=1905)
    kinds = Counter(body.mistake for body in bodies)
    assert len(kinds) >= 5
    assert min(kinds.values()) >= COUNT // len(kinds)
    assert len({body.operation.name for body in bodies}) >= 20
    for body in bodies:
        fault = fault_of(body)
        assert fault is not None, str(body)
        assert fault.status == 400
        assert fault.values["PropertyName"], str(body)
        expected = {
            "unknown property": "InvalidRequestBody",
            "misspelt property": "InvalidRequestBody",
            "not nested": "InvalidRequestBody",
            "missing required property": "MissingRequiredProperty",
            "unknown word of an enumeration": "InvalidPropertyValue",
        }.get(body.mistake, fault.code)
        assert fault.code == expected, str(body)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    with serving(
        tmp_path_factory.mktemp("generated"), boot_s=1e6, dedicated_cores=64, spot_cores=64
    ) as running:
        yield Stage(running)
        assert running.emulator.healthy


_ON_STAGE = {
    "Pool_Add",
    "Pool_Patch",
    "Pool_UpdateProperties",
    "Pool_EvaluateAutoScale",
    "Job_Add",
    "Job_Patch",
    "Job_Update",
    "JobSchedule_Add",
    "Task_Add",
}


def played(stage: Stage, bodies: list[Body], count: int) -> list[tuple[Body, int, str]]:
    """The first bodies of operations that need only a pool or a job: status and code."""
    pool, job = stage.pool(), stage.job()
    answers: list[tuple[Body, int, str]] = []
    for body in [one for one in bodies if one.operation.name in _ON_STAGE][:count]:
        path = body.operation.path.replace("{poolId}", pool).replace("{jobId}", job)
        answer = stage.call(body.operation.method, path, body.content)
        code = answer.json()["code"] if answer.content else ""
        answers.append((body, answer.status_code, code))
    assert len(answers) == count
    return answers


def test_invalid_body_is_a_bad_request_over_http(stage: Stage) -> None:
    for body, status, _ in played(stage, wrong_bodies(250, seed=1931), 50):
        assert status == 400, str(body)


def test_valid_body_passes_the_reader_over_http(stage: Stage) -> None:
    for body, status, code in played(stage, valid_bodies(250, seed=1969), 50):
        assert status < 500 or status == 501, str(body)
        assert code != "InvalidRequestBody", str(body)

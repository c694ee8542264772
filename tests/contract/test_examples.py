"""The service's own example exchanges, each played on an emulator that holds what it speaks about.

What is not written yet answers 501 with a name that the route table or the checks know; nothing
else may differ from the documented status. Answers have the properties that the example shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from batch_emulator.domain.validation.machine_rules import MachineChoice
from tests.contract.conformance import violations
from tests.contract.coverage_page import is_named_as_missing
from tests.contract.description import PREVIEW, STABLE, Example, examples, needed
from tests.contract.server import serving
from tests.contract.settings import prepare
from tests.contract.stage import NotYet, Stage

pytestmark = needed
EXAMPLES = [*examples(STABLE), *examples(PREVIEW)]
_LONG_BOOT_S = 3600.0
ANY = MachineChoice(any_machine=True)  # examples name images and sizes that no longer exist

# Documented as a success and refused here: (operation, part of the name) -> status, code, why.
REFUSED: Mapping[str, tuple[int, str, str]] = {
    "CertificateAdd": (400, "InvalidPropertyValue", "its data is a row of #, no certificate"),
    "PoolAdd_CloudServiceConfiguration": (501, "NotImplemented", "nodes are Linux; retired 2024"),
    "NodeGetRemoteDesktop": (409, "OperationNotValidOnNode", "nodes are Linux: no RDP"),
    # azure-batch 15.0.0b1 and the policies of @azure-rest/batch add what this description left out
    "preview-PoolUpdate": (400, "MissingRequiredProperty", "it has no certificateReferences"),
}

# Properties of the example response that ours lacks, by the end of their path, with the reason.
NOT_GIVEN: Mapping[str, str] = {
    r"value\.properties\.creationTime": "not given for files on Linux nodes (docs)",
    r"value\.properties(\..*)?": "only folders lie at the top of our nodes",
    r"value\.batchSupportEndOfLife": "the images that we list have no end yet",
    r"(value\.)?publicData": "what is public of a pfx needs its password to be read",
    r"odata\.nextLink": "one page holds everything",
    r"currentNodeCommunicationMode": "the pool of the example has a node, and ours has none",
}


# Responses that are empty here, because the test services have no history.
EMPTY: Mapping[str, str] = {"PoolListUsageMetrics": "tells of whole half hours; no pool is so old"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    with serving(tmp_path_factory.mktemp("examples"), boot_s=0.0, machines=ANY) as running:
        yield Stage(running)


@pytest.fixture(scope="module")
def slow_stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    """Yield an emulator whose nodes never boot, so that resizes do not end."""
    with serving(tmp_path_factory.mktemp("resizing"), boot_s=_LONG_BOOT_S, machines=ANY) as running:
        yield Stage(running)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example_returns_the_documented_response(
    stage: Stage, slow_stage: Stage, example: Example
) -> None:
    on = slow_stage if example.stable_name == "Pool_StopResize" else stage
    try:
        given = prepare(on, example)
    except NotYet as unwritten:
        assert is_named_as_missing(unwritten.name)  # noqa: PT017 - it is no failure
        return
    answer = play(on, example, given)
    if answer.status_code == 501:
        names = {v["key"]: v["value"] for v in answer.json().get("values", ())}
        assert is_named_as_missing(names["Operation"])
        return
    refused = REFUSED.get(example.name) or REFUSED.get(str(example))
    if refused is not None:
        assert (answer.status_code, answer.json()["code"]) == refused[:2]
        return
    status = next(iter(example.responses))
    assert str(answer.status_code) == status, answer.text
    shown = example.responses[status].get("body")
    if isinstance(shown, dict) and example.name not in EMPTY:
        assert missing(cast("dict[str, Any]", shown), answer.json()) == []


def play(stage: Stage, example: Example, given: Mapping[str, Any]) -> httpx.Response:
    """Send the example's request."""
    path, query, headers = example.operation.path, [], {}
    body: Any = None
    for parameter in example.operation.parameters:
        name = parameter["name"]
        if name not in given or name in ("api-version", "ocp-date", "client-request-id"):
            continue
        value = given[name]
        text = json.dumps(value) if isinstance(value, bool) else str(value)
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", quote(text, safe=""))
        elif parameter["in"] == "query":
            query.append(f"{name}={quote(text, safe='')}")
        elif parameter["in"] == "header":
            headers[name] = text
        else:
            body = value
    version = str(given["api-version"])
    assert version == "2024-02-01.19.0"
    return stage.call(example.operation.method, path, body, query="&".join(query), headers=headers)


def missing(shown: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return the properties of the example that our answer lacks."""
    return sorted(
        place
        for place in set(places(shown)) - set(places(ours))
        if not any(re.fullmatch(pattern, place) for pattern in NOT_GIVEN)
    )


def places(value: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of all properties of a body; the items of a list share a path."""
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield f"{where}{name}"
            yield from places(item, f"{where}{name}.")
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from places(item, where)


# Examples of the service that violate the description of the service.
WRONG_EXAMPLES: Mapping[str, str] = {
    "extensions[0].settings": "an object by the description, a text of JSON in the example",
    "extensions[0].protectedSettings": "likewise",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example_response_conforms_to_the_description(example: Example) -> None:
    for status, answer in example.responses.items():
        if "body" not in answer:
            continue
        path = re.sub(r"\{\w+\}", "x", example.operation.path)
        text = json.dumps(answer["body"]).encode()
        found = violations(example.operation.method, path, int(status), "application/json", text)
        assert [f for f in found if not any(w in f for w in WRONG_EXAMPLES)] == []

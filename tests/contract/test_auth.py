"""Shared key authentication, as a client of the official SDK meets it."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from azure.batch import BatchClient
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import PipelineRequest

from tests import plain_http
from tests.contract.emulation import Emulation
from tests.contract.server import ACCOUNT, KEY, Running

OTHER_KEY = base64.b64encode(b"another key of the right length.").decode()


def tampering(**headers: str | None) -> Callable[[PipelineRequest[Any]], None]:
    """Return a hook that changes a request after it was signed."""

    def hook(request: PipelineRequest[Any]) -> None:
        for name, value in headers.items():
            header = name.replace("_", "-")
            request.http_request.headers.pop(header, None)
            if value is not None:
                request.http_request.headers[header] = value

    return hook


def refusal(client: BatchClient, **options: Any) -> HttpResponseError:
    with pytest.raises(HttpResponseError) as refused:
        list(client.list_pools(**options))
    assert refused.value.status_code == 403
    error = refused.value.error
    assert error is not None
    assert error.code == "AuthenticationFailed"
    assert re.search(r"\nRequestId:.+\nTime:", str(error.message))
    return refused.value


def detail(error: HttpResponseError) -> str:
    assert error.error is not None
    found = {one.code: one.message for one in error.error.details}
    return str(found["AuthenticationErrorDetail"])


def test_correct_key_lists_the_pools(emulation: Emulation) -> None:
    assert [pool.id for pool in emulation.client.list_pools()] == ["pool"]


def test_wrong_key_is_403_with_the_error_body_of_the_service(emulation: Emulation) -> None:
    text = detail(refusal(emulation.connect(key=OTHER_KEY)))
    assert "string to sign" in text
    assert emulation.key not in text


def test_date_outside_the_window_is_refused(emulation: Emulation) -> None:
    for minutes in (-20, 20):
        client = emulation.connect()
        with pytest.raises(HttpResponseError) as refused:
            list(client.list_pools(ocp_date=datetime.now(UTC) + timedelta(minutes=minutes)))
        assert "too old or too new" in detail(refused.value)


def test_date_within_the_window_is_accepted(emulation: Emulation) -> None:
    moment = datetime.now(UTC) - timedelta(minutes=10)
    assert list(emulation.client.list_pools(ocp_date=moment))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Authorization": None}, "missing"),
        ({"Authorization": "Bearer token"}, "Only tokens of running tasks"),
        ({"If_Match": "*"}, "not the same as any computed signature"),
    ],
)
def test_request_changed_after_signing_is_refused(
    emulation: Emulation,
    headers: dict[str, str | None],
    why: str,
) -> None:
    assert why in detail(refusal(emulation.client, raw_request_hook=tampering(**headers)))


def test_every_operation_is_authenticated_before_it_is_parsed(
    emulation: Emulation,
) -> None:
    client = emulation.connect(key=OTHER_KEY)
    calls = [
        lambda: client.get_job("no-such-job"),
        lambda: client.begin_delete_pool("pool"),
        lambda: b"".join(client.download_task_file("j", "t", "stdout.txt")),
        lambda: client.get_task_file_properties("j", "t", "stdout.txt"),
    ]
    for call in calls:
        with pytest.raises(HttpResponseError) as refused:
            call()
        assert refused.value.status_code == 403
    assert [pool.id for pool in emulation.client.list_pools()] == ["pool"]


@pytest.mark.parametrize("signed", ["\n$filter:\napi-version:{v}", "\napi-version:{v}"])
@pytest.mark.parametrize("query", ["$filter=&", "%24Filter&"])
def test_blank_query_value_is_accepted_signed_or_not(
    running: Running, signed: str, query: str
) -> None:
    date, version = format_datetime(datetime.now(UTC), usegmt=True), "2024-02-01.19.0"
    resource = f"/{ACCOUNT}/supportedimages{signed.format(v=version)}"
    text = "\n".join(["GET", *[""] * 11, f"ocp-date:{date}\n{resource}"])
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    headers = {
        "ocp-date": date,
        "authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    url = f"{running.url}/supportedimages?{query}api-version={version}"
    answer = plain_http.request("GET", url, headers=headers)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["value"]) > 10
    refused = plain_http.request("GET", f"{url}&$select=osType", headers=headers)
    assert refused.status_code == 403

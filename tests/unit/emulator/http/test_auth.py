"""Signatures, each made by the policy of the official SDK, so that the two cannot differ."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import urlsplit

import pytest
from azure.batch._patch import BatchSharedKeyAuthPolicy  # pyright: ignore[reportMissingTypeStubs]
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.rest import HttpRequest

from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.http.auth import AuthFault, verify

ACCOUNT = "local"
KEY = base64.b64encode(b"k" * 64).decode()


def signed(
    method: str, url: str, *, key: str = KEY, account: str = ACCOUNT, **headers: str
) -> tuple[str, str, str, dict[str, str]]:
    request = HttpRequest(method, url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    policy = BatchSharedKeyAuthPolicy(AzureNamedKeyCredential(account, key))
    policy.on_request(PipelineRequest(request, PipelineContext(None)))  # pyright: ignore[reportArgumentType]
    parts = urlsplit(request.url)
    sent = {name.lower(): value for name, value in request.headers.items()}
    return method, parts.path, parts.query, sent


def accepted(request: tuple[str, str, str, Mapping[str, str]], **changes: object) -> bool:
    try:
        check(request, **changes)
    except AuthFault:
        return False
    return True


def check(request: tuple[str, str, str, Mapping[str, str]], **changes: object) -> None:
    method, path, query, headers = request
    arguments: dict[str, object] = {
        "account": ACCOUNT,
        "key": KEY,
        "now": datetime.now(UTC),
        **changes,
    }
    verify(SignedRequest(method, path, query, headers), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("GET", "http://127.0.0.1:1/pools?api-version=2025-06-01", {}),
        (
            "GET",
            "http://127.0.0.1:1/jobs?api-version=1&$filter=state%20eq%20'active'&timeOut=30",
            {},
        ),
        ("HEAD", "http://h/pools/p?api-version=1", {"If_Match": '"0x8D"'}),
        ("DELETE", "http://h/jobs/j?api-version=1", {}),
        (
            "POST",
            "http://h/jobs?api-version=1",
            {"Content_Length": "17", "Content_Type": "application/json"},
        ),
        ("POST", "http://h/jobs/j/terminate?api-version=1", {}),
        ("PUT", "http://h/jobs/j?api-version=1", {"Content_Length": "2", "If_None_Match": "0x8D"}),
        (
            "GET",
            "http://h/jobs/j/tasks/t/files/wd%2Fout%20dir%2F%C3%A9.txt?api-version=1",
            {"ocp_range": "bytes=0-9"},
        ),
        ("GET", "http://h/jobs?api-version=1&$skiptoken=a%2Bb%3D%3D&empty=", {}),
    ],
)
def test_requests_signed_by_the_sdk_are_accepted(
    method: str, url: str, headers: dict[str, str]
) -> None:
    assert accepted(signed(method, url, **headers))


def test_delete_with_content_length_zero_is_accepted() -> None:
    method, path, query, headers = signed("DELETE", "http://h/jobs/j?api-version=1")
    assert accepted((method, path, query, {**headers, "content-length": "0"}))


def test_query_names_can_be_signed_in_lower_case() -> None:
    method, path, _, headers = signed("GET", "http://h/jobs?api-version=1&maxresults=5&timeout=30")
    assert accepted((method, path, "api-version=1&maxResults=5&timeOut=30", headers))


def test_wrong_key_is_refused_with_the_string_to_sign() -> None:
    other = base64.b64encode(b"o" * 64).decode()
    with pytest.raises(AuthFault) as refused:
        check(signed("GET", "http://h/pools?api-version=1", key=other))
    assert refused.value.code == "AuthenticationFailed"
    assert "string to sign: 'GET\n" in str(refused.value)
    assert KEY not in str(refused.value)


def test_wrong_account_is_refused() -> None:
    with pytest.raises(AuthFault, match="'other'"):
        check(signed("GET", "http://h/pools", account="other"))


@pytest.mark.parametrize(
    "tamper",
    [
        {"path": "/pools/other"},
        {"query": "api-version=2"},
        {"query": "api-version=1&recursive=true"},
        {"method": "DELETE"},
        {"header": ("ocp-range", "bytes=0-")},
        {"header": ("if-match", "*")},
    ],
)
def test_a_tampered_request_is_refused(tamper: dict[str, object]) -> None:
    method, path, query, headers = signed("GET", "http://h/pools/p?api-version=1")
    if "header" in tamper:
        name, value = tamper["header"]  # type: ignore[misc]
        headers[name] = value
    with pytest.raises(AuthFault, match="not the same as any computed"):
        check(
            (
                str(tamper.get("method", method)),
                str(tamper.get("path", path)),
                str(tamper.get("query", query)),
                headers,
            )
        )


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_date_more_than_fifteen_minutes_off_is_refused(minutes: int) -> None:
    request = signed("GET", "http://h/pools")
    with pytest.raises(AuthFault, match="too old or too new"):
        check(request, now=datetime.now(UTC) + timedelta(minutes=minutes))


@pytest.mark.parametrize("minutes", [-14, 14])
def test_a_date_within_fifteen_minutes_is_accepted(minutes: int) -> None:
    assert accepted(
        signed("GET", "http://h/pools"), now=datetime.now(UTC) + timedelta(minutes=minutes)
    )


def test_ocp_date_takes_precedence_over_date() -> None:
    stale = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert accepted(signed("GET", "http://h/pools", Date=stale))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "Authorization header is missing"),
        ({"authorization": "Bearer abc"}, "Only tokens of running tasks"),
        ({"authorization": "SharedKey local"}, "must read"),
        ({"authorization": "Basic local:abc"}, "must read"),
        ({"authorization": f"SharedKey {ACCOUNT}:abc"}, "Neither ocp-date nor Date"),
        ({"authorization": f"SharedKey {ACCOUNT}:abc", "ocp-date": "yesterday"}, "RFC 1123"),
        ({"authorization": f"SharedKey {ACCOUNT}:\u00e9", "ocp-date": "NOW"}, "not the same"),
    ],
)
def test_malformed_credentials_are_explained(headers: dict[str, str], why: str) -> None:
    if headers.get("ocp-date") == "NOW":
        headers["ocp-date"] = format_datetime(datetime.now(UTC), usegmt=True)
    with pytest.raises(AuthFault, match=why):
        check(("GET", "/pools", "", headers))


def test_invalid_key_is_a_configuration_error() -> None:
    with pytest.raises(ValueError, match="base64"):
        check(signed("GET", "http://h/pools"), key="not base64!")

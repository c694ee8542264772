"""Azure Files: authorization by shared key and by SAS of account, share and file."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.contract.files_service import (
    ACCOUNT,
    KEY,
    VERSION,
    Files,
    code_of,
    plain,
    refusal,
    sdk,
)

HOUR = timedelta(hours=1)


def soon() -> datetime:
    return datetime.now(UTC) + HOUR


def file_with(files: Files, token: str, share: Any, path: str = "f") -> Any:
    return sdk.ShareFileClient(files.url, share.share_name, path, credential=token, retry_total=0)


def share_token(share: Any, permission: str = "rcwdl", **options: Any) -> str:
    options.setdefault("expiry", soon())
    return sdk.generate_share_sas(ACCOUNT, share.share_name, KEY, permission=permission, **options)


def account_token(types: str = "sco", permission: str = "rwdlc", **options: Any) -> str:
    options.setdefault("expiry", soon())
    return sdk.generate_account_sas(
        ACCOUNT, KEY, sdk.ResourceTypes.from_string(types), permission, **options
    )


def test_wrong_key_is_refused_with_the_error_of_the_service(files: Files) -> None:
    wrong = base64.b64encode(b"wrong").decode()
    answer = files.send("GET", "/", "comp=list", key=wrong)
    assert code_of(answer) == (403, "AuthenticationFailed")
    assert answer.headers["content-type"].startswith("application/xml")
    assert "RequestId:" in answer.text
    assert "Time:" in answer.text
    with pytest.raises(Exception, match="AuthenticationFailed") as raised:
        list(files.connect(wrong).list_shares())
    assert refusal(raised)[0] == 403


def test_header_names_keep_the_case_of_the_service(files: Files) -> None:
    share = files.share()
    share.get_file_client("f").upload_file(b"abc")
    answer = files.send("GET", f"/{share.share_name}/f", "")
    names = {name.decode() for name, _ in answer.headers.raw}
    assert {"Content-Length", "Content-Type", "ETag", "Last-Modified", "x-ms-version"} <= names
    assert not names & {"content-length", "content-type", "etag", "last-modified"}


def test_request_without_credentials_is_refused(files: Files) -> None:
    answer = plain("GET", f"{files.url}/?comp=list")
    assert code_of(answer) == (401, "NoAuthenticationInformation")
    assert "www-authenticate" in answer.headers
    answer = plain("GET", f"{files.url}/?comp=list", {"authorization": "Bearer abc"})
    assert code_of(answer) == (401, "InvalidAuthenticationInfo")


@pytest.mark.parametrize(
    "value",
    ["SharedKey", "SharedKey x", "SharedKey other:abc", f"SharedKey {ACCOUNT}:äö",
     f"SharedKeyLite {ACCOUNT}:abc", "Basic YTpi"],
)  # fmt: skip
def test_malformed_authorization_is_refused(files: Files, value: str) -> None:
    when = format_datetime(datetime.now(UTC), usegmt=True)
    headers = {"authorization": value.encode("latin-1").decode("latin-1"), "x-ms-date": when}
    raw = {name: text.encode("latin-1") for name, text in headers.items()}
    answer = plain("GET", f"{files.url}/?comp=list", raw)  # pyright: ignore[reportArgumentType]
    assert code_of(answer) == (403, "AuthenticationFailed")


@pytest.mark.parametrize("minutes", [-16, 16])
def test_request_with_a_stale_or_future_date_is_refused(files: Files, minutes: int) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes), usegmt=True)
    answer = files.send("GET", "/", "comp=list", {"x-ms-date": when})
    assert code_of(answer) == (403, "AuthenticationFailed")


def test_request_changed_after_signing_is_refused(files: Files) -> None:
    answer = files.send("GET", "/", "comp=list")
    signed = dict(answer.request.headers)
    again = plain("GET", f"{files.url}/?comp=list&prefix=x", signed)
    assert code_of(again) == (403, "AuthenticationFailed")
    again = plain("GET", f"{files.url}/?comp=list", {**signed, "x-ms-version": "2020-02-10"})
    assert code_of(again) == (403, "AuthenticationFailed")


def test_requests_from_web_pages_are_refused(files: Files) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"host": "["}):
        assert files.send("GET", "/", "comp=list", headers).status_code == 403


def test_share_sas_grants_access_to_its_share_only(files: Files) -> None:
    share, other = files.share(), files.share()
    token = share_token(share)
    file = file_with(files, token, share)
    file.upload_file(b"x")
    assert file.download_file().readall() == b"x"
    client = sdk.ShareClient(files.url, share.share_name, credential=token, retry_total=0)
    assert [one.name for one in client.list_directories_and_files()] == ["f"]
    with pytest.raises(Exception, match="AuthenticationFailed"):
        file_with(files, token, other).create_file(1)
    with pytest.raises(Exception, match="AuthorizationResourceTypeMismatch"):
        client.delete_share()
    with pytest.raises(Exception, match="AuthorizationResourceTypeMismatch"):
        client.get_share_properties()


def test_file_sas_grants_access_to_its_file_only(files: Files) -> None:
    share = files.share()
    share.create_directory("d")
    for path in ("d/f", "d/g"):
        share.get_file_client(path).upload_file(b"x")
    token = sdk.generate_file_sas(
        ACCOUNT, share.share_name, ["d", "f"], KEY, permission="r", expiry=soon()
    )
    assert file_with(files, token, share, "d/f").download_file().readall() == b"x"
    with pytest.raises(Exception, match="AuthenticationFailed"):
        file_with(files, token, share, "d/g").download_file()
    with pytest.raises(Exception, match="AuthorizationPermissionMismatch"):
        file_with(files, token, share, "d/f").delete_file()


@pytest.mark.parametrize(
    ("permission", "allowed"),
    [
        ("r", {"read"}),
        ("c", {"create"}),
        ("w", {"create", "write"}),
        ("d", {"delete"}),
        ("l", {"list"}),
        ("rcwdl", {"read", "create", "write", "delete", "list"}),
    ],
)
def test_each_permission_allows_the_documented_actions(
    files: Files, permission: str, allowed: set[str]
) -> None:
    share = files.share()
    share.get_file_client("f").upload_file(b"x")
    token = share_token(share, permission)
    client = sdk.ShareClient(files.url, share.share_name, credential=token, retry_total=0)
    actions: dict[str, Any] = {
        "read": lambda: client.get_file_client("f").download_file(),
        "create": lambda: client.get_file_client("new").create_file(1),
        "write": lambda: client.get_file_client("f").upload_range(b"y", offset=0, length=1),
        "list": lambda: list(client.list_directories_and_files()),
        "delete": lambda: client.get_file_client("f").delete_file(),
    }
    for name, act in actions.items():
        if name in allowed:
            act()
        else:
            with pytest.raises(Exception, match="AuthorizationPermissionMismatch") as raised:
                act()
            assert refusal(raised)[0] == 403


def test_create_permission_does_not_allow_replacing(files: Files) -> None:
    share = files.share()
    share.get_file_client("f").upload_file(b"old")
    file = file_with(files, share_token(share, "c"), share)
    with pytest.raises(Exception, match="AuthorizationPermissionMismatch"):
        file.create_file(1)
    assert share.get_file_client("f").download_file().readall() == b"old"


def test_sas_is_valid_between_start_and_expiry_only(files: Files) -> None:
    share = files.share()
    times: tuple[dict[str, Any], ...] = (
        {"expiry": datetime.now(UTC) - HOUR},
        {"start": soon(), "expiry": soon() + HOUR},
    )
    for options in times:
        file = file_with(files, share_token(share, **options), share)
        with pytest.raises(Exception, match="AuthenticationFailed"):
            file.create_file(1)


def test_sas_is_valid_for_its_addresses_and_protocol_only(files: Files) -> None:
    share = files.share()
    for good in ({"ip": "127.0.0.1"}, {"ip": "127.0.0.0-127.0.0.9"}, {"protocol": "https,http"}):
        file_with(files, share_token(share, **good), share).create_file(1)
    bad: tuple[tuple[dict[str, str], str], ...] = (
        ({"ip": "10.0.0.1"}, "AuthorizationSourceIPMismatch"),
        ({"ip": "10.0.0.1-10.0.0.9"}, "AuthorizationSourceIPMismatch"),
        ({"ip": "nonsense"}, "AuthorizationSourceIPMismatch"),
        ({"protocol": "https"}, "AuthorizationProtocolMismatch"),
    )
    for options, code in bad:
        with pytest.raises(Exception, match=code):
            file_with(files, share_token(share, **options), share).create_file(1)


def test_stored_policy_decides_the_permissions_of_its_sas(files: Files) -> None:
    share = files.share()
    policy = sdk.AccessPolicy(permission="rcw", expiry=soon())
    share.set_share_access_policy({"workers": policy})
    token = sdk.generate_share_sas(ACCOUNT, share.share_name, KEY, policy_id="workers")
    file = file_with(files, token, share)
    file.upload_file(b"x")
    with pytest.raises(Exception, match="AuthorizationPermissionMismatch"):
        file.delete_file()
    with pytest.raises(Exception, match="AuthenticationFailed"):
        file_with(files, share_token(share, policy_id="workers"), share).download_file()
    share.set_share_access_policy({})
    with pytest.raises(Exception, match="AuthenticationFailed"):
        file.download_file()


def test_account_sas_grants_access_by_resource_type(files: Files) -> None:
    service = sdk.ShareServiceClient(files.url, credential=account_token(), retry_total=0)
    share = service.create_share(files.share().share_name + "x")
    share.get_file_client("f").upload_file(b"x")
    assert share.share_name in [one.name for one in service.list_shares()]
    objects = sdk.ShareServiceClient(files.url, credential=account_token("o"), retry_total=0)
    of_objects = objects.get_share_client(share.share_name)
    assert of_objects.get_file_client("f").download_file().readall() == b"x"
    with pytest.raises(Exception, match="AuthorizationResourceTypeMismatch"):
        list(objects.list_shares())
    with pytest.raises(Exception, match="AuthorizationResourceTypeMismatch"):
        of_objects.get_share_properties()
    readers = sdk.ShareServiceClient(
        files.url, credential=account_token(permission="r"), retry_total=0
    )
    with pytest.raises(Exception, match="AuthorizationPermissionMismatch"):
        readers.create_share("never-made")
    with pytest.raises(Exception, match="AuthorizationPermissionMismatch"):
        share.get_share_access_policy()
    share.delete_share()


def test_account_sas_for_another_service_is_refused(files: Files) -> None:
    token = account_token(services=sdk.Services(blob=True))
    service = sdk.ShareServiceClient(files.url, credential=token, retry_total=0)
    with pytest.raises(Exception, match="AuthorizationServiceMismatch"):
        list(service.list_shares())


def test_tampered_sas_is_refused(files: Files) -> None:
    share = files.share()
    token = share_token(share, "r").replace("sp=r", "sp=rw")
    with pytest.raises(Exception, match="AuthenticationFailed"):
        file_with(files, token, share).create_file(1)


def test_sas_overrides_response_headers(files: Files) -> None:
    share = files.share()
    share.get_file_client("f").upload_file(b"x")
    token = share_token(share, "r", content_type="text/html", cache_control="no-store")
    answer = plain("GET", f"{files.url}/{share.share_name}/f?{token}", {"x-ms-version": VERSION})
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "query",
    [
        "sig=x",
        "sv=2024-11-04&sig=x",
        "sv=2024-11-04&sr=s&sig=x&se=tomorrow&sp=r",
        "sv=2010-01-01&sr=s&sig=x",
        "sv=2024-11-04&ss=f&srt=sco&sig=x",
        "sv=2024-11-04&sr=b&sig=x",
        "sv=2024-11-04&sr=s&si=p&sig=%FF",
    ],
)
@pytest.mark.parametrize("path", ["", "/", "/share", "/share/f", "/%FF"])
def test_invalid_sas_is_refused(files: Files, path: str, query: str) -> None:
    answer = plain("GET", f"{files.url}{path}?{query}")
    assert answer.status_code in (400, 403)

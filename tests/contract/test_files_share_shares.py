"""Azure Files: the service and its shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.contract.files_service import Files, code_of, refusal, sdk


def test_service_properties_are_returned_as_set(files: Files) -> None:
    before = files.service.get_service_properties()
    assert before["hour_metrics"].enabled is False
    rule = sdk.CorsRule(["https://a.example"], ["GET", "PUT"], max_age_in_seconds=7)
    files.service.set_service_properties(cors=[rule])
    after = files.service.get_service_properties()
    assert [r.allowed_origins for r in after["cors"]] == ["https://a.example"]
    assert after["hour_metrics"].enabled is False
    files.service.set_service_properties(cors=[])
    assert not files.service.get_service_properties()["cors"]


def test_share_has_the_properties_of_its_creation(files: Files) -> None:
    share = files.share(metadata={"owner": "ada"}, quota=17)
    found = share.get_share_properties()
    assert (found.name, found.quota, found.metadata) == (share.share_name, 17, {"owner": "ada"})
    assert found.protocols == ["SMB"]
    assert found.lease.state == "available"
    assert found.etag.startswith('"')
    assert abs(found.last_modified - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_share_is_created_once(files: Files) -> None:
    share = files.share()
    with pytest.raises(Exception, match="ShareAlreadyExists") as raised:
        share.create_share()
    assert refusal(raised) == (409, "ShareAlreadyExists")


@pytest.mark.parametrize("name", ["ab", "Upper", "two--hyphens", "-a-", "under_score", "a" * 64])
def test_invalid_share_name_is_refused(files: Files, name: str) -> None:
    answer = files.send("PUT", f"/{name}", "restype=share")
    assert code_of(answer) == (400, "InvalidResourceName")


def test_every_change_of_a_share_changes_its_etag(files: Files) -> None:
    share = files.share()
    tags = [share.get_share_properties().etag]
    share.set_share_quota(9)
    tags.append(share.get_share_properties().etag)
    share.set_share_metadata({"a": "b"})
    tags.append(share.get_share_properties().etag)
    share.set_share_properties(access_tier="Cool")
    found = share.get_share_properties()
    tags.append(found.etag)
    assert len(set(tags)) == 4
    assert (found.quota, found.metadata, found.access_tier) == (9, {"a": "b"}, "Cool")


def test_shares_are_listed_by_prefix_and_page(files: Files) -> None:
    prefix = f"list{uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(5)]
    for name in names:
        files.service.create_share(name, metadata={"n": name})
    pages = files.service.list_shares(
        name_starts_with=prefix, include_metadata=True, results_per_page=2
    ).by_page()
    found = [list(page) for page in pages]
    assert [len(page) for page in found] == [2, 2, 1]
    assert [share.name for page in found for share in page] == names
    assert all(share.metadata == {"n": share.name} for page in found for share in page)
    assert list(files.service.list_shares(name_starts_with=f"{prefix}-9")) == []


def test_a_deleted_share_is_gone_with_its_files(files: Files) -> None:
    share = files.share()
    share.get_file_client("x").upload_file(b"data")
    share.delete_share()
    assert not files.folder(share).exists()
    with pytest.raises(Exception, match="ShareNotFound") as raised:
        share.get_share_properties()
    assert refusal(raised) == (404, "ShareNotFound")
    with pytest.raises(Exception, match="ShareNotFound"):
        share.delete_share()
    share.create_share()
    assert list(share.list_directories_and_files()) == []


def test_stored_access_policies_are_returned(files: Files) -> None:
    share = files.share()
    policy = sdk.AccessPolicy(
        permission=sdk.ShareSasPermissions(read=True, list=True),
        start=datetime(2026, 1, 1, tzinfo=UTC),
        expiry=datetime(2030, 1, 1, tzinfo=UTC),
    )
    share.set_share_access_policy({"readers": policy})
    found = share.get_share_access_policy()["signed_identifiers"]
    assert [one.id for one in found] == ["readers"]
    assert found[0].access_policy.permission == "rl"
    assert found[0].access_policy.expiry.startswith("2030-01-01T00:00:00")
    share.set_share_access_policy({})
    assert share.get_share_access_policy()["signed_identifiers"] == []


def test_statistics_count_files_written_to_the_folder(files: Files) -> None:
    share = files.share()
    (files.folder(share) / "written").write_bytes(b"x" * 1000)
    assert share.get_share_stats() == 1000
    share.get_file_client("more").create_file(500)
    assert share.get_share_stats() == 1500


def test_quota_limits_created_grown_and_copied_files(files: Files) -> None:
    share = files.share(quota=1)
    gib = 1024**3
    file = share.get_file_client("big")
    file.create_file(gib - 10)
    other = share.get_file_client("other")
    for refused in (
        lambda: other.create_file(11),
        lambda: file.resize_file(gib + 1),
        lambda: other.start_copy_from_url(file.url),
    ):
        with pytest.raises(Exception, match="ShareSizeLimitReached") as raised:
            refused()
        assert refusal(raised) == (413, "ShareSizeLimitReached")
    assert not other.exists()
    other.create_file(10)
    file.delete_file()
    other.resize_file(gib)


def test_permission_is_stored_under_a_key(files: Files) -> None:
    share = files.share()
    text = "O:S-1-5-32-544G:SYD:(A;;FA;;;BA)"
    key = share.create_permission_for_share(text)
    assert share.get_permission_for_share(key) == text
    file = share.get_file_client("x")
    file.create_file(1, permission_key=key)
    assert file.get_file_properties().permission_key == key
    with pytest.raises(Exception, match="FileInvalidPermissionKey"):
        share.get_permission_for_share("1*2")
    with pytest.raises(Exception, match="FileInvalidPermission"):
        share.create_permission_for_share("nonsense")


def test_leased_share_is_deleted_by_the_lease_holder_only(files: Files) -> None:
    share = files.share()
    lease = share.acquire_lease(lease_duration=15)
    assert share.get_share_properties().lease.state == "leased"
    with pytest.raises(Exception, match="LeaseIdMissing") as raised:
        share.delete_share()
    assert refusal(raised) == (412, "LeaseIdMissing")
    with pytest.raises(Exception, match="LeaseAlreadyPresent"):
        share.acquire_lease(lease_duration=15)
    lease.renew()
    lease.change(str(uuid4()))
    share.delete_share(lease=lease)


def test_broken_lease_holds_until_the_end_of_its_period(files: Files) -> None:
    share = files.share()
    lease = share.acquire_lease(lease_duration=-1)
    assert lease.break_lease(lease_break_period=20) == 20
    assert share.get_share_properties().lease.state == "breaking"
    assert lease.break_lease(lease_break_period=0) == 0
    assert share.get_share_properties().lease.state == "broken"
    share.delete_share()


@pytest.mark.parametrize(
    ("method", "path", "query", "operation"),
    [
        ("PUT", "/some-share", "restype=share&comp=snapshot", "Share_CreateSnapshot"),
        ("PUT", "/some-share", "restype=share&comp=undelete", "Share_Restore"),
        ("POST", "/", "comp=userdelegationkey&restype=service", "Service_GetUserDelegationKey"),
        ("PUT", "/some-share/link", "restype=symboliclink", "File_CreateSymbolicLink"),
    ],
)
def test_operation_that_is_not_implemented_is_named(
    files: Files, method: str, path: str, query: str, operation: str
) -> None:
    answer = files.send(method, path, query)
    assert code_of(answer) == (501, "NotImplemented")
    assert operation in answer.text


def test_premium_and_nfs_shares_are_refused_by_name(files: Files) -> None:
    with pytest.raises(Exception, match="NotImplemented"):
        files.share(protocols="NFS")


def test_every_response_has_the_id_of_its_request(files: Files) -> None:
    answer: Any = files.send("GET", "/", "comp=list", {"x-ms-client-request-id": "mine"})
    assert answer.headers["x-ms-client-request-id"] == "mine"
    assert answer.headers["x-ms-version"] == "2024-11-04"
    assert len(answer.headers["x-ms-request-id"]) == 36
    assert answer.headers["date"].endswith("GMT")

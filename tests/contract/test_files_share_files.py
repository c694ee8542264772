"""Azure Files: files, their content, ranges and properties."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.files_service import Files, code_of, ranges_of, refusal, sdk

MIB = 1024 * 1024


def test_file_has_the_properties_of_its_upload(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f.txt")
    settings = sdk.ContentSettings(
        content_type="text/plain",
        content_encoding="identity",
        content_language="en",
        content_disposition="inline",
        cache_control="no-cache",
        content_md5=bytearray(hashlib.md5(b"hello").digest()),
    )
    file.upload_file(b"hello", metadata={"k": "v"}, content_settings=settings)
    found = file.get_file_properties()
    assert (found.size, found.metadata, found.file_type) == (5, {"k": "v"}, "File")
    assert found.content_settings.content_type == "text/plain"
    assert found.content_settings.content_language == "en"
    assert found.content_settings.cache_control == "no-cache"
    assert bytes(found.content_settings.content_md5) == hashlib.md5(b"hello").digest()
    assert found.server_encrypted is True
    assert file.download_file(validate_content=False).readall() == b"hello"


def test_large_file_is_downloaded_whole(files: Files) -> None:
    share = files.share()
    data = bytes(range(256)) * (40 * MIB // 256) + b"tail"
    file = share.get_file_client("large")
    file.upload_file(io.BytesIO(data), length=len(data), max_concurrency=4)
    assert file.download_file(max_concurrency=4).readall() == data
    assert (files.folder(share) / "large").read_bytes() == data
    part = file.download_file(offset=5 * MIB + 1, length=MIB).readall()
    assert part == data[5 * MIB + 1 : 6 * MIB + 1]


def test_an_empty_file_is_created_and_read(files: Files) -> None:
    file = files.share().get_file_client("empty")
    file.upload_file(b"")
    assert file.download_file().readall() == b""
    assert ranges_of(file) == []


def test_new_file_contains_zeros(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("sparse")
    file.create_file(10 * MIB)
    assert ranges_of(file) == []
    assert (files.folder(share) / "sparse").stat().st_blocks == 0
    file.upload_range(b"x" * 4096, offset=MIB, length=4096)
    file.upload_range(b"y" * 4096, offset=8 * MIB, length=4096)
    assert ranges_of(file) == [
        (MIB, MIB + 4095),
        (8 * MIB, 8 * MIB + 4095),
    ]
    assert ranges_of(file, offset=2 * MIB) == [(8 * MIB, 8 * MIB + 4095)]
    assert ranges_of(file, offset=MIB + 100, length=10) == [(MIB + 100, MIB + 109)]
    assert file.download_file(offset=MIB - 1, length=3).readall() == b"\0xx"
    pages = file.list_ranges(results_per_page=1).by_page()
    assert [[found.start for found in page] for page in pages] == [[MIB], [8 * MIB]]


def test_cleared_range_contains_zeros_and_is_not_listed(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"x" * MIB)
    file.clear_range(4096, 8192)
    assert file.download_file().readall() == b"x" * 4096 + bytes(8192) + b"x" * (MIB - 12288)
    assert ranges_of(file) == [(0, 4095), (12288, MIB - 1)]
    file.clear_range(512, 512)
    assert file.download_file(offset=511, length=514).readall() == b"x" + bytes(512) + b"x"


def test_range_beyond_the_end_is_refused(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.create_file(100)
    for refused in (
        lambda: file.upload_range(b"x" * 10, offset=91, length=10),
        lambda: file.upload_range(b"x", offset=2**50, length=1),
        lambda: file.clear_range(0, 512),
        lambda: file.download_file(offset=100, length=1),
    ):
        with pytest.raises(Exception, match="InvalidRange") as raised:
            refused()
        assert refusal(raised) == (416, "InvalidRange")
    assert file.get_file_properties().size == 100


def test_md5_of_a_range_is_checked_and_returned(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.create_file(1000)
    path = f"/{share.share_name}/f"
    body = b"z" * 10
    right = "bml8dT3y1yg8ZLvP8/S5aw=="
    write = {"x-ms-write": "update", "x-ms-range": "bytes=0-9"}
    answer = files.send("PUT", path, "comp=range", write, body)
    assert answer.status_code == 201
    given = answer.headers["content-md5"]
    assert given != right
    read = {"x-ms-range": "bytes=0-9", "x-ms-range-get-content-md5": "true"}
    answer = files.send("GET", path, "", read)
    assert (answer.status_code, answer.content, answer.headers["content-md5"]) == (206, body, given)
    assert answer.headers["content-range"] == "bytes 0-9/1000"
    stream = file.download_file(offset=0, length=10, validate_content=False)
    assert stream.readall() == body


def test_write_updates_the_last_write_time_unless_preserved(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f")
    long_ago = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    file.create_file(10, file_last_write_time=long_ago)
    assert file.get_file_properties().last_write_time == long_ago
    file.upload_range(b"x", offset=0, length=1, file_last_write_mode="preserve")
    assert file.get_file_properties().last_write_time == long_ago
    before = file.get_file_properties().etag
    file.upload_range(b"x", offset=0, length=1)
    assert file.get_file_properties().last_write_time > long_ago
    assert file.get_file_properties().etag != before


def test_resizing_truncates_or_fills_with_zeros(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"0123456789", content_settings=sdk.ContentSettings(content_type="a/b"))
    file.resize_file(4)
    file.resize_file(6)
    assert file.download_file().readall() == b"0123\0\0"
    assert file.get_file_properties().content_settings.content_type == "a/b"


def test_omitted_properties_are_cleared(files: Files) -> None:
    file = files.share().get_file_client("f")
    settings = sdk.ContentSettings(content_type="a/b", content_language="en")
    file.upload_file(b"x", content_settings=settings)
    file.set_http_headers(sdk.ContentSettings(content_type="c/d"))
    found = file.get_file_properties().content_settings
    assert (found.content_type, found.content_language) == ("c/d", None)


def test_creating_a_file_again_replaces_content_and_metadata(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"old content", metadata={"k": "v"})
    file.create_file(3)
    assert file.download_file().readall() == b"\0\0\0"
    assert file.get_file_properties().metadata == {}


def test_file_and_directory_cannot_replace_each_other(files: Files) -> None:
    share = files.share()
    share.create_directory("d")
    file = share.get_file_client("d")
    with pytest.raises(Exception, match="ResourceTypeMismatch"):
        file.create_file(1)
    with pytest.raises(Exception, match="ResourceNotFound"):
        file.download_file()
    assert not file.exists()
    with pytest.raises(Exception, match="ResourceNotFound"):
        file.delete_file()


def test_missing_files_and_shares_are_not_found(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("none")
    assert not file.exists()
    with pytest.raises(Exception, match="ResourceNotFound") as raised:
        file.download_file()
    assert refusal(raised) == (404, "ResourceNotFound")
    with pytest.raises(Exception, match="ParentNotFound"):
        share.get_file_client("none/f").create_file(1)
    with pytest.raises(Exception, match="ShareNotFound"):
        files.service.get_share_client("never-made").get_file_client("f").download_file()


def test_rename_replaces_a_file_only_with_overwrite(files: Files) -> None:
    share = files.share()
    share.create_directory("d")
    file = share.get_file_client("a")
    file.upload_file(b"mine", metadata={"k": "v"})
    share.get_file_client("d/b").upload_file(b"other")
    with pytest.raises(Exception, match="ResourceAlreadyExists"):
        file.rename_file("d/b")
    with pytest.raises(Exception, match="ParentNotFound"):
        file.rename_file("e/b")
    moved = file.rename_file("d/b", overwrite=True, metadata={"n": "m"})
    assert moved.download_file().readall() == b"mine"
    assert moved.get_file_properties().metadata == {"n": "m"}
    assert not file.exists()
    with pytest.raises(Exception, match="ResourceNotFound"):
        file.rename_file("c")


def test_leased_file_is_changed_by_the_lease_holder_only(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.upload_file(b"x")
    lease = file.acquire_lease()
    for refused in (
        lambda: file.upload_range(b"y", offset=0, length=1),
        lambda: file.set_file_metadata({"a": "b"}),
        file.delete_file,
        lambda: file.create_file(1),
    ):
        with pytest.raises(Exception, match="LeaseIdMissing") as raised:
            refused()
        assert refusal(raised) == (412, "LeaseIdMissing")
    assert file.download_file().readall() == b"x"
    file.upload_range(b"y", offset=0, length=1, lease=lease)
    assert file.get_file_properties().lease.state == "leased"
    lease.break_lease()
    file.delete_file()


def test_a_read_only_file_is_not_changed(files: Files) -> None:
    file = files.share().get_file_client("f")
    file.create_file(1, file_attributes=sdk.NTFSAttributes(read_only=True))
    with pytest.raises(Exception, match="ReadOnlyAttribute") as raised:
        file.upload_range(b"x", offset=0, length=1)
    assert refusal(raised) == (409, "ReadOnlyAttribute")
    file.set_http_headers(sdk.ContentSettings(), file_attributes="None")
    file.upload_range(b"x", offset=0, length=1)


def test_concurrent_writers_of_one_file_lose_nothing(files: Files) -> None:
    file = files.share().get_file_client("f")
    size = 64 * 1024
    file.create_file(32 * size)

    def write(number: int) -> None:
        file.upload_range(bytes([number]) * size, offset=number * size, length=size)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(32)))
    assert file.download_file().readall() == b"".join(bytes([n]) * size for n in range(32))


def test_one_of_many_concurrent_directory_creations_succeeds(files: Files) -> None:
    share = files.share()

    def make(number: int) -> str:
        answer = files.send("PUT", f"/{share.share_name}/d", "restype=directory")
        return "made" if answer.status_code == 201 else code_of(answer)[1]

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(make, range(16)))
    assert sorted(results) == ["ResourceAlreadyExists"] * 15 + ["made"]


def test_creation_of_a_file_accepts_its_first_bytes(files: Files) -> None:
    share = files.share()
    headers = {"x-ms-type": "file", "x-ms-content-length": "6"}
    answer = files.send("PUT", f"/{share.share_name}/f", "", headers, b"abc")
    assert answer.status_code == 201
    assert share.get_file_client("f").download_file().readall() == b"abc\0\0\0"


def test_download_detects_a_file_changed_between_two_parts(files: Files, tmp_path: Path) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.upload_file(b"x" * 100)
    client: Any = sdk.ShareFileClient(
        files.url,
        share.share_name,
        "f",
        credential=share.credential.account_key,
        max_single_get_size=10,
        max_chunk_get_size=10,
        retry_total=0,
    )
    stream = client.download_file()
    file.upload_range(b"y" * 100, offset=0, length=100)
    with pytest.raises(Exception, match="modified"):
        stream.readall()

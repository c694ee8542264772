"""Azure Files: directories, their properties and their contents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.contract.files_service import Files, code_of, refusal, sdk


def names(found: Any) -> list[str]:
    return [one.name for one in found]


def test_directory_has_the_properties_of_its_creation(files: Files) -> None:
    share = files.share()
    made = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)
    directory = share.get_directory_client("data")
    directory.create_directory(
        metadata={"k": "v"},
        file_attributes=sdk.NTFSAttributes(hidden=True, directory=True),
        file_creation_time=made,
        file_last_write_time=made,
    )
    found = directory.get_directory_properties()
    assert found.metadata == {"k": "v"}
    assert set(found.file_attributes.split(" | ")) == {"Hidden", "Directory"}
    assert (found.creation_time, found.last_write_time) == (made, made)
    root = share.get_directory_client().get_directory_properties()
    assert found.parent_id == root.file_id
    assert (files.folder(share) / "data").is_dir()


def test_directory_is_created_once_and_needs_its_parent(files: Files) -> None:
    share = files.share()
    share.create_directory("a")
    with pytest.raises(Exception, match="ResourceAlreadyExists") as raised:
        share.create_directory("a")
    assert refusal(raised) == (409, "ResourceAlreadyExists")
    with pytest.raises(Exception, match="ParentNotFound") as raised:
        share.create_directory("b/c")
    assert refusal(raised) == (404, "ParentNotFound")
    share.get_file_client("f").create_file(0)
    with pytest.raises(Exception, match="ResourceTypeMismatch"):
        share.create_directory("f")
    with pytest.raises(Exception, match="ParentNotFound"):
        share.create_directory("f/c")


def test_only_an_empty_directory_is_deleted(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a")
    directory.upload_file("f", b"x")
    with pytest.raises(Exception, match="DirectoryNotEmpty") as raised:
        directory.delete_directory()
    assert refusal(raised) == (409, "DirectoryNotEmpty")
    directory.delete_file("f")
    directory.delete_directory()
    assert not directory.exists()
    with pytest.raises(Exception, match="ResourceNotFound"):
        directory.delete_directory()


def test_root_directory_cannot_be_deleted(files: Files) -> None:
    share = files.share()
    answer = files.send("DELETE", f"/{share.share_name}", "restype=directory")
    assert answer.status_code == 400
    assert share.get_directory_client().exists()


def test_properties_and_metadata_of_a_directory_can_change(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a")
    before = directory.get_directory_properties()
    directory.set_directory_metadata({"x": "y"})
    written = datetime(2021, 1, 1, tzinfo=UTC)
    directory.set_http_headers(file_attributes="None", file_last_write_time=written)
    after = directory.get_directory_properties()
    assert after.metadata == {"x": "y"}
    assert after.last_write_time == written
    assert after.etag != before.etag


def test_new_file_keeps_the_etag_of_its_directory(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a")
    before = directory.get_directory_properties()
    directory.upload_file("f", b"x")
    assert directory.get_directory_properties().etag == before.etag


def test_directories_and_files_are_listed_by_name_and_page(files: Files) -> None:
    share = files.share()
    for name in ("b", "d"):
        share.create_directory(name)
    for name in ("a.txt", "c.txt", "e.txt"):
        share.get_file_client(name).upload_file(name.encode() * 10)
    pages = [list(page) for page in share.list_directories_and_files(results_per_page=2).by_page()]
    assert [len(page) for page in pages] == [2, 2, 1]
    entries = [entry for page in pages for entry in page]
    assert sorted(names(entries)) == ["a.txt", "b", "c.txt", "d", "e.txt"]
    assert {e.name: e.is_directory for e in entries}["b"] is True
    assert [e.size for e in entries if e.name == "c.txt"] == [50]
    some = share.list_directories_and_files(name_starts_with="C")
    assert names(some) == ["c.txt"]


def test_listing_includes_requested_properties(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.upload_file(b"abc")
    known = file.get_file_properties()
    include = ["timestamps", "Etag", "Attributes", "PermissionKey"]
    (found,) = share.list_directories_and_files(include=include)
    assert found.etag == known.etag
    assert found.last_modified == known.last_modified
    assert found.file_id == known.file_id
    assert found.file_attributes == "Archive"
    assert found.permission_key == known.permission_key
    (bare,) = share.list_directories_and_files()
    assert bare.etag is None


def test_names_invalid_in_xml_are_listed_encoded(files: Files) -> None:
    share = files.share()
    (files.folder(share) / "bell\x07").write_text("x")
    (files.folder(share) / "a&b<c>.txt").write_text("x")
    assert sorted(names(share.list_directories_and_files())) == ["a&b<c>.txt", "bell\x07"]


def test_names_ignore_case_and_keep_it(files: Files) -> None:
    share = files.share()
    share.create_directory("Models")
    share.get_file_client("models/Best.PT").upload_file(b"weights")
    assert (files.folder(share) / "Models" / "Best.PT").read_bytes() == b"weights"
    assert share.get_file_client("MODELS/best.pt").download_file().readall() == b"weights"
    with pytest.raises(Exception, match="ResourceAlreadyExists"):
        share.create_directory("MODELS")
    share.get_file_client("MODELS/BEST.pt").upload_file(b"again")
    assert names(share.list_directories_and_files("models")) == ["Best.PT"]


@pytest.mark.parametrize(
    "name", ["ünïcødé", "日本語.txt", "a b", "100%", "a+b", "~#[]@!$&'()", "a;b=c"]
)
def test_every_valid_name_is_listed_and_stored(files: Files, name: str) -> None:
    share = files.share()
    directory = share.create_directory(name)
    directory.upload_file(name, b"x")
    assert names(share.list_directories_and_files(name)) == [name]
    assert (files.folder(share) / name / name).read_bytes() == b"x"


def test_directory_is_renamed_with_its_contents(files: Files) -> None:
    share = files.share()
    share.create_directory("a")
    share.create_directory("a/b")
    share.get_file_client("a/b/f").upload_file(b"x", metadata={"k": "v"})
    moved = share.get_directory_client("a").rename_directory("z")
    assert moved.directory_path == "z"
    assert moved.exists()
    found = share.get_file_client("z/b/f").get_file_properties()
    assert found.metadata == {"k": "v"}
    assert not share.get_directory_client("a").exists()


def test_rename_into_itself_or_onto_a_directory_is_refused(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a")
    share.create_directory("b")
    with pytest.raises(Exception, match="InvalidInput"):
        directory.rename_directory("a/c")
    with pytest.raises(Exception, match="ResourceAlreadyExists"):
        directory.rename_directory("b")
    with pytest.raises(Exception, match="ResourceTypeMismatch"):
        directory.rename_directory("b", overwrite=True)
    directory.rename_directory("A")
    assert sorted(p.name for p in files.folder(share).iterdir()) == ["A", "b"]


def test_no_open_handles_are_listed(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a")
    assert list(directory.list_handles(recursive=True)) == []
    assert directory.close_all_handles()["closed_handles_count"] == 0


def test_a_read_only_directory_is_not_deleted(files: Files) -> None:
    share = files.share()
    directory = share.create_directory("a", file_attributes="ReadOnly")
    with pytest.raises(Exception, match="ReadOnlyAttribute") as raised:
        directory.delete_directory()
    assert refusal(raised) == (409, "ReadOnlyAttribute")


def test_invalid_include_or_page_size_is_refused(files: Files) -> None:
    share = files.share()
    base = "comp=list&restype=directory"
    for query in (f"{base}&include=everything", f"{base}&maxresults=x", f"{base}&marker=%FF%FE"):
        pairs = "&".join(sorted(query.split("&")))
        answer = files.send("GET", f"/{share.share_name}", pairs)
        assert code_of(answer) == (400, "InvalidQueryParameterValue")
    answer = files.send("GET", f"/{share.share_name}", "comp=list&maxresults=0&restype=directory")
    assert code_of(answer) == (400, "OutOfRangeQueryParameterValue")

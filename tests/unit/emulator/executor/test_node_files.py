from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.executor.node_files import delete, list_files, open_range, properties


@pytest.fixture
def root(tmp_path: Path) -> Path:
    task = tmp_path / "task"
    (task / "wd" / "out dir").mkdir(parents=True)
    (task / "stdout.txt").write_text("hello\n")
    (task / "stderr.txt").write_text("")
    (task / "wd" / "out dir" / "\u00e9.bin").write_bytes(bytes(range(100)))
    (task / "wd" / "run.sh").write_text("#!/bin/sh\n")
    (task / "wd" / "run.sh").chmod(0o755)
    (tmp_path / "secret").write_text("outside")
    return task


def names(root: Path, **options: object) -> list[str]:
    return [e.name for e in list_files(root, **options)]  # type: ignore[arg-type]


def test_listing_shows_the_top_level_only_unless_recursive(root: Path) -> None:
    assert names(root, recursive=False) == ["stderr.txt", "stdout.txt", "wd"]
    assert names(root, recursive=True) == [
        "stderr.txt",
        "stdout.txt",
        "wd",
        "wd/out dir",
        "wd/out dir/\u00e9.bin",
        "wd/run.sh",
    ]


def test_listing_of_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert names(tmp_path / "gone", recursive=True) == []


def test_properties_describe_a_file(root: Path) -> None:
    entry = properties(root, "wd/run.sh")
    assert (entry.size_bytes, entry.is_directory, entry.mode) == (10, False, "0o100755")
    assert entry.modified.tzinfo is UTC
    assert (datetime.now(UTC) - entry.modified).total_seconds() < 60
    assert properties(root, "wd").is_directory
    assert properties(root, "stdout.txt").content_type == "text/plain"


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "../secret",
        "wd/../../secret",
        "/etc/passwd",
        "",
        "..",
        "wd/\0",
        "link",
        "up/secret",
    ],
)
def test_paths_outside_the_root_do_not_exist(root: Path, name: str) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    (root / "up").symlink_to(root.parent)
    with pytest.raises(Fault) as refused:
        properties(root, name)
    assert (refused.value.status, refused.value.code) == (404, "FileNotFound")


def test_links_leaving_the_root_are_not_listed_and_loops_end(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    (root / "broken").symlink_to(root / "nowhere")
    (root / "wd" / "loop").symlink_to(root)
    listed = names(root, recursive=True)
    assert "link" not in listed
    assert "broken" not in listed
    assert "wd/loop" in listed
    assert "wd/loop/stdout.txt" not in listed


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        (None, 0, 100),
        ("bytes=0-9", 0, 10),
        ("bytes=90-", 90, 100),
        ("bytes=90-5000", 90, 100),
        ("bytes=99-99", 99, 100),
    ],
)
def test_ranges_are_parsed(root: Path, header: str | None, start: int, stop: int) -> None:
    found = open_range(root, "wd/out dir/\u00e9.bin", header)
    assert found.length == stop - start
    assert b"".join(found.chunks(7)) == bytes(range(start, stop))
    assert found.entry.size_bytes == 100


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("bytes=100-", 416),
        ("bytes=9-1", 400),
        ("bytes=-5", 400),
        ("0-9", 400),
        ("bytes=0-1,4-5", 400),
    ],
)
def test_invalid_ranges_are_refused(root: Path, header: str, status: int) -> None:
    with pytest.raises(Fault) as refused:
        open_range(root, "wd/out dir/\u00e9.bin", header)
    assert refused.value.status == status


def test_a_directory_cannot_be_read(root: Path) -> None:
    with pytest.raises(Fault) as refused:
        open_range(root, "wd", None)
    assert refused.value.status == 409


def test_file_truncated_during_a_read_ends_early(root: Path) -> None:
    found = open_range(root, "stdout.txt", None)
    (root / "stdout.txt").write_text("he")
    assert b"".join(found.chunks()) == b"he"


def test_files_and_folders_are_deleted(root: Path) -> None:
    delete(root, "stdout.txt", recursive=False)
    assert not (root / "stdout.txt").exists()
    with pytest.raises(Fault) as refused:
        delete(root, "wd", recursive=False)
    assert refused.value.status == 409
    assert "recursive=true" in refused.value.message
    delete(root, "wd", recursive=True)
    assert not (root / "wd").exists()
    with pytest.raises(Fault):
        delete(root, "wd", recursive=True)


def test_deleting_a_link_keeps_its_target(root: Path) -> None:
    (root / "copy").symlink_to(root / "wd")
    delete(root, "copy", recursive=True)
    assert (root / "wd" / "run.sh").exists()
    assert not (root / "copy").is_symlink()


@pytest.mark.parametrize("name", ["..", "../secret", ".", "/"])
def test_deletion_is_limited_to_the_root(root: Path, name: str) -> None:
    with pytest.raises(Fault):
        delete(root, name, recursive=True)
    assert (root / "stdout.txt").exists()
    assert (root.parent / "secret").exists()

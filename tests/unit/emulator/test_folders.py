"""Work below a folder that a task changes meanwhile: nothing outside is read, written, deleted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.faults import Fault
from batch_emulator.executor import node_files, task_containers
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.folders import (
    Owner,
    create_below,
    make_real_folder,
    move_below,
    open_below,
    open_folder,
    read_end_below,
    remove_below,
    stat_below,
    unlink_below,
    write_below,
)
from tests.planted import exchanging, linking, linux_only
from tests.unit.emulator.blob_store import serve
from tests.unit.emulator.launching import Node, in_executor

pytestmark = pytest.mark.attack
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can own files of two users")
TASK_USER = Owner(41999, 41999)
_FOR_S = 0.5


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "d").mkdir(parents=True)
    (folder / "f").write_text("secret")
    (folder / "d" / "hidden").write_text("secret")
    return folder


@pytest.fixture
def top(tmp_path: Path, outside: Path) -> Path:
    """Return a folder where `in/x` is a folder and `in/y` is a link out of it."""
    (tmp_path / "top" / "in" / "x" / "d").mkdir(parents=True)
    (tmp_path / "top" / "in" / "x" / "f").write_text("open")
    (tmp_path / "top" / "in" / "y").symlink_to(outside)
    return tmp_path / "top"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    layout = NodeLayout(tmp_path / "node" / "tasks")
    layout.create()
    return Node(layout)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def read(path: Path, top: Path) -> None:
    with os.fdopen(open_below(path, top)) as file:
        assert file.read() != "secret"


def replace(path: Path, top: Path) -> None:
    os.close(create_below(path, top))


def append(path: Path, top: Path) -> None:
    with os.fdopen(open_below(path, top, os.O_WRONLY | os.O_APPEND), "a") as file:
        file.write("more")


WORK: dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda path, top: read(path / "f", top),
    "append": lambda path, top: append(path / "f", top),
    "replace": lambda path, top: replace(path / "f", top),
    "create": lambda path, top: os.close(create_below(path / "p" / "new", top, make=True)),
    "write": lambda path, top: write_below(path / "f", top, b"x"),
    "unlink": lambda path, top: unlink_below(path / "f", top),
    "remove": lambda path, top: remove_below(path / "d", top),
    "make": lambda path, top: os.close(open_folder(path / "d" / "made", top, make=True)),
    "move": lambda path, top: move_below(path / "f", top, top.with_name("moved")),
    "status": lambda path, top: stat_below(path / "d" / "hidden", top),
}


@pytest.mark.parametrize("work", WORK)
def test_link_in_place_of_a_folder_leads_nowhere(top: Path, outside: Path, work: str) -> None:
    before = content(outside)
    if work == "remove":
        WORK[work](top / "in" / "y", top)
    else:
        with pytest.raises(NotADirectoryError):
            WORK[work](top / "in" / "y", top)
        with pytest.raises(PermissionError):
            WORK[work](top / ".." / "outside", top)
    assert content(outside) == before


@linux_only
@pytest.mark.parametrize("work", [name for name in WORK if name != "status"])
def test_folder_exchanged_with_a_link_leads_nowhere(top: Path, outside: Path, work: str) -> None:
    before = content(outside)
    with exchanging(top / "in" / "x", top / "in" / "y"):
        until = time.monotonic() + _FOR_S
        while time.monotonic() < until:
            with suppress(OSError):
                WORK[work](top / "in" / "x", top)
    assert content(outside) == before


@linux_only
def test_folder_is_made_in_place_of_a_link_that_returns(top: Path, outside: Path) -> None:
    before = content(outside)
    with linking(top / "in" / "new", outside):
        until = time.monotonic() + _FOR_S
        while time.monotonic() < until:
            with suppress(OSError):
                make_real_folder(top / "in" / "new" / "wd", top)
                (top / "in" / "new" / "wd").rmdir()
                (top / "in" / "new").rmdir()
    assert content(outside) == before


@linux_only
def test_api_reads_no_file_through_an_exchanged_link(top: Path) -> None:
    reads = 0
    with exchanging(top / "in" / "x", top / "in" / "y"):
        until = time.monotonic() + 2 * _FOR_S
        late = until + 300
        while time.monotonic() < (until if reads else late):
            with suppress(Fault):
                found = node_files.open_range(top, "in/x/f", None)
                assert b"".join(found.chunks()) == b"open"
                reads += 1
    assert reads


@linux_only
def test_api_lists_no_folder_through_an_exchanged_link(top: Path) -> None:
    with exchanging(top / "in" / "x", top / "in" / "y"):
        until = time.monotonic() + 2 * _FOR_S
        while time.monotonic() < until:
            found = node_files.list_files(top, recursive=True)
            assert not [entry.name for entry in found if "hidden" in entry.name]


@linux_only
@pytest.mark.parametrize(("name", "recursive"), [("in/x/f", False), ("in/x/d", True)])
def test_api_deletes_nothing_through_an_exchanged_link(
    top: Path, outside: Path, name: str, recursive: bool
) -> None:
    before = content(outside)
    with exchanging(top / "in" / "x", top / "in" / "y"):
        until = time.monotonic() + 2 * _FOR_S
        while time.monotonic() < until:
            with suppress(OSError):
                (top / "in" / "x" / "d").mkdir(exist_ok=True)
            with suppress(Fault):
                node_files.delete(top, name, recursive=recursive)
    assert content(outside) == before


@linux_only
def test_log_of_output_files_is_not_written_through_a_link(node: Node, outside: Path) -> None:
    before = content(outside)
    node.run("/bin/true")
    with serve() as blobs:
        output = {
            "filePattern": "*.none",
            "destination": {"container": {"containerUrl": blobs.container_url("out")}},
            "uploadOptions": {"uploadCondition": "taskCompletion"},
        }
        with linking(node.task_dir / "fileuploadout.txt", outside / "f"):
            for _ in range(30):
                node.run("/bin/true", output_files=(output,))
    assert content(outside) == before


@linux_only
def test_resource_file_is_not_written_through_a_link(node: Node, outside: Path) -> None:
    before = content(outside)
    node.run("/bin/true")
    with serve() as blobs:
        blobs.containers["in"] = {"a": b"A"}
        resource = {"httpUrl": blobs.blob_url("in", "a"), "filePath": "a", "fileMode": "0777"}
        with linking(node.working_dir / "a", outside / "f"):
            for _ in range(20):
                node.run("/bin/true", resource_files=(resource,))
    assert content(outside) == before
    assert (outside / "f").stat().st_mode & 0o111 == 0


@linux_only
def test_resource_file_is_not_written_into_an_exchanged_folder(node: Node, outside: Path) -> None:
    before = content(outside)
    (node.working_dir / "x").mkdir(parents=True)
    (node.working_dir / "y").symlink_to(outside)
    with serve() as blobs:
        blobs.containers["in"] = {"a": b"A"}
        resource = {"httpUrl": blobs.blob_url("in", "a"), "filePath": "x/f"}
        with exchanging(node.working_dir / "x", node.working_dir / "y"):
            for _ in range(20):
                node.run("/bin/true", resource_files=(resource,))
    assert content(outside) == before


@linux_only
def test_command_does_not_start_in_a_folder_behind_a_link(node: Node, outside: Path) -> None:
    node.working_dir.mkdir(parents=True)
    (node.task_dir / "aside").symlink_to(outside)
    with exchanging(node.working_dir, node.task_dir / "aside"):
        for _ in range(20):
            node.run("/bin/touch started")
    assert not (outside / "started").exists()


@linux_only
def test_output_files_name_nothing_outside(node: Node, outside: Path) -> None:
    (node.working_dir / "x").mkdir(parents=True)
    (node.working_dir / "y").symlink_to(outside / "d")
    with serve() as blobs:
        blobs.containers["out"] = {}
        output = {
            "filePattern": "**/*",
            "destination": {"container": {"containerUrl": blobs.container_url("out")}},
            "uploadOptions": {"uploadCondition": "taskCompletion"},
        }
        nested = {**output, "filePattern": "x/*"}
        with exchanging(node.working_dir / "x", node.working_dir / "y"):
            for _ in range(20):
                node.run("/bin/true", output_files=(output, nested))
                for name in ("fileuploadout.txt", "fileuploaderr.txt"):
                    assert "hidden" not in (node.task_dir / name).read_text()
        assert blobs.containers["out"] == {}


@linux_only
@pytest.mark.parametrize("size", [0, 10 << 30])
def test_pipe_or_huge_stderr_does_not_hold_up_the_emulator(node: Node, size: int) -> None:
    node.task_dir.mkdir(parents=True)
    stderr = node.task_dir / "stderr.txt"
    if size:
        stderr.touch()
        os.truncate(stderr, size)
    else:
        os.mkfifo(stderr)
    launch = node.launch("true")
    waits = threading.Thread(target=task_containers.refusal, args=(launch, 125), daemon=True)
    began = time.process_time()  # of all threads
    waits.start()
    waits.join(120)
    blocked = waits.is_alive() or time.process_time() - began > 2
    if not size:
        os.close(os.open(stderr, os.O_RDWR | os.O_NONBLOCK))  # end a thread that waits
    assert not blocked
    assert len(read_end_below(stderr, node.layout.root, 100)) <= 100


@needs_root
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND])
def test_hard_link_to_a_file_of_another_user_is_not_opened(
    top: Path, outside: Path, flags: int
) -> None:
    linked = top / "in" / "linked"
    linked.hardlink_to(outside / "f")
    TASK_USER.own(linked.parent)
    with pytest.raises(PermissionError):
        open_below(linked, top, flags)
    replace(linked, top)
    assert (outside / "f").read_text() == "secret"
    assert (outside / "f").stat().st_uid == 0
    assert linked.stat().st_uid == TASK_USER.uid


@needs_root
def test_api_does_not_read_a_hard_link_to_a_file_of_another_user(top: Path, outside: Path) -> None:
    (top / "in" / "linked").hardlink_to(outside / "f")
    TASK_USER.own(top / "in")
    with pytest.raises(Fault) as refused:
        node_files.open_range(top, "in/linked", None)
    assert refused.value.status == 409


@needs_root
def test_output_of_a_second_command_is_not_a_hard_link(node: Node, outside: Path) -> None:
    node.task_dir.mkdir(parents=True)
    (node.task_dir / "stdout.txt").hardlink_to(outside / "f")
    TASK_USER.own(node.task_dir)

    in_executor(lambda e: e.run(node.launch("/bin/echo x", continues=True)))
    assert (outside / "f").read_text() == "secret"
    assert (outside / "f").stat().st_uid == 0


@needs_root
@linux_only
def test_ownership_is_not_given_to_an_exchanged_hard_link(top: Path, outside: Path) -> None:
    (top / "in" / "linked").hardlink_to(outside / "f")
    with exchanging(top / "in" / "linked", top / "in" / "x" / "f"):
        until = time.monotonic() + _FOR_S
        while time.monotonic() < until:
            TASK_USER.give(top / "in")
            for path in (top / "in" / "linked", top / "in" / "x" / "f"):
                with suppress(FileNotFoundError):
                    assert (outside / "f").stat().st_uid == 0
                    os.chown(path, 0, 0)
    assert (outside / "f").stat().st_uid == 0


def test_process_that_left_its_session_is_ended_before_a_retry(node: Node, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f'setsid sh -c "echo \\$\\$ > {pid}; exec sleep 600" & until [ -s {pid} ]; do :; done'
    node.run(f"/bin/sh -c '{script}'")
    left = int(pid.read_text())
    os.kill(left, 0)
    node.run("/bin/true")
    assert not _runs(left)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


@pytest.mark.parametrize("path", ["up/../../x", "other", "topmost/x"])
def test_path_that_is_not_below_the_top_is_refused(top: Path, path: str) -> None:
    with pytest.raises(PermissionError):
        make_real_folder(top.parent / path, top)


def test_relative_top_is_allowed(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top)
    assert make_real_folder(Path("new"), Path())
    assert (top / "new").is_dir()

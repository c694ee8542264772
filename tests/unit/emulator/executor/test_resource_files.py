"""Resource files, fetched over HTTP from a blob store on loopback."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest

from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.validation.task_rules import resource_file_problem
from batch_emulator.executor import blob_client, task_files
from batch_emulator.executor.blob_client import BlobClient
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.folders import create_below
from tests.loopback import reusable_ports
from tests.unit.emulator.blob_store import BlobStore, serve
from tests.unit.emulator.launching import Node, eventually, in_executor

HTTP = "http://h/c/b"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    layout = NodeLayout(tmp_path / "node" / "tasks")
    layout.create()
    return Node(layout)


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.containers["in"] = {
            "a.txt": b"A",
            "data/x 1.txt": b"X",
            "data/sub/\u00e9&.bin": bytes(range(256)),
            "data/z.txt": b"Z",
        }
        yield store


def run(node: Node, *resources: dict[str, Any], command: str = "/bin/true") -> ExecutionOutcome:
    return node.run(command, resource_files=resources)


def failure_of(node: Node, *resources: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    outcome = run(node, *resources, command="/bin/touch started")
    assert outcome.failure is not None
    assert (outcome.exit_code, outcome.retryable) == (None, False)
    assert not (node.working_dir / "started").exists(), "the command must not start"
    assert "s%2Bcret" not in repr(outcome), "a SAS is a secret"
    assert "s+cret" not in repr(outcome)
    return outcome.failure.category, outcome.failure.code, dict(outcome.failure.details)


def test_http_url_is_written_to_file_path_with_mode(node: Node, blobs: BlobStore) -> None:
    url = blobs.blob_url("in", "data/sub/%C3%A9%26.bin")
    outcome = run(
        node,
        {"httpUrl": url, "filePath": "deep/er/f.bin", "fileMode": "0640"},
        {"httpUrl": blobs.blob_url("in", "a.txt"), "filePath": "a.txt"},
        command="/bin/cat a.txt",
    )
    assert (outcome.exit_code, node.stdout()) == (0, "A")
    file = node.working_dir / "deep" / "er" / "f.bin"
    assert file.read_bytes() == bytes(range(256))
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE((node.working_dir / "a.txt").stat().st_mode) == 0o770


def test_container_is_downloaded_page_by_page_with_its_folders(
    node: Node, blobs: BlobStore
) -> None:
    assert run(node, {"storageContainerUrl": blobs.container_url("in")}).exit_code == 0
    found = {
        p.relative_to(node.working_dir).as_posix()
        for p in node.working_dir.rglob("*")
        if p.is_file()
    }
    assert found == {"a.txt", "data/x 1.txt", "data/sub/\u00e9&.bin", "data/z.txt"}
    assert sum(r.endswith(" list") for r in blobs.requests) == 2


def test_prefix_and_file_path_of_a_container_are_respected(node: Node, blobs: BlobStore) -> None:
    run(
        node,
        {
            "storageContainerUrl": blobs.container_url("in"),
            "blobPrefix": "data/s",
            "filePath": "inputs",
        },
    )
    assert (node.working_dir / "inputs/data/sub/\u00e9&.bin").read_bytes() == bytes(range(256))
    assert not (node.working_dir / "inputs/data/z.txt").exists()


def test_blob_named_like_a_folder_creates_no_file(node: Node, blobs: BlobStore) -> None:
    blobs.containers["in"]["folder/"] = b""
    assert run(node, {"storageContainerUrl": blobs.container_url("in")}).exit_code == 0


def test_concurrent_downloads_are_limited(node: Node, blobs: BlobStore) -> None:
    blobs.containers["many"] = {f"{n:03}": b"x" for n in range(60)}
    blobs.page_size = 100
    assert run(node, {"storageContainerUrl": blobs.container_url("many")}).exit_code == 0
    assert blobs.most_at_once <= 8


@pytest.mark.parametrize(
    ("container", "name", "sas", "expected"),
    [
        ("in", "missing", True, ("UserError", "BlobNotFound")),
        ("nowhere", "a.txt", True, ("UserError", "BlobNotFound")),
        ("in", "a.txt", False, ("UserError", "BlobAccessDenied")),
    ],
)
def test_refused_download_fails_the_task(
    node: Node, blobs: BlobStore, container: str, name: str, sas: bool, expected: tuple[str, str]
) -> None:
    url = blobs.blob_url(container, name)
    url = url if sas else url.replace("s%2Bcret", "wrong")
    category, code, details = failure_of(node, {"httpUrl": url, "filePath": "f"})
    assert (category, code) == expected
    assert details["BlobSource"] == f"{blobs.url}/account/{container}/{name}"
    assert details["FilePath"] == str(node.working_dir / "f")
    assert len(blobs.requests) == 1, "what the request did wrong is not tried again"


def test_missing_container_is_not_found(node: Node, blobs: BlobStore) -> None:
    _, code, _ = failure_of(node, {"storageContainerUrl": blobs.container_url("nowhere")})
    assert code == "BlobNotFound"


def test_server_errors_are_retried(node: Node, blobs: BlobStore) -> None:
    blobs.failures["/account/in/a.txt"] = [503, -1, 500]
    assert run(node, {"httpUrl": blobs.blob_url("in", "a.txt"), "filePath": "a"}).exit_code == 0
    assert (node.working_dir / "a").read_bytes() == b"A"
    assert len(blobs.requests) == 4


def test_persistent_server_error_is_a_misc_error(node: Node, blobs: BlobStore) -> None:
    blobs.failures["/account/in/a.txt"] = [503] * 20
    url = blobs.blob_url("in", "a.txt")
    category, code, details = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert (category, code) == ("ServerError", "BlobDownloadMiscError")
    assert details["Message"] == "HTTP 503 Planned"
    assert len(blobs.requests) == blob_client.ATTEMPTS


def test_unreachable_server_is_a_misc_error(node: Node) -> None:
    with serve() as gone:
        url = gone.blob_url("in", "a")
    _, code, details = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert code == "BlobDownloadMiscError"
    assert "ConnectError" in details["Message"]


def test_storage_started_later_is_awaited(tmp_path: Path) -> None:
    tries = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nA")
        writer.close()

    class Counting(BlobClient):
        async def _download_once(self, url: str, create: Callable[[], int]) -> str:
            nonlocal tries
            tries += 1
            return await super()._download_once(url, create)

    async def main() -> None:
        [port] = reusable_ports(1)
        client = Counting(retry_delay_s=0.001, away_s=600)
        download = asyncio.ensure_future(
            client.download(
                f"http://127.0.0.1:{port}/c/a", lambda: create_below(tmp_path / "a", tmp_path)
            )
        )
        await eventually(lambda: tries > 2 * blob_client.ATTEMPTS, "many tries")
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            await download
        await client.close()

    asyncio.run(main())
    assert (tmp_path / "a").read_bytes() == b"A"


def test_busy_local_storage_is_awaited(tmp_path: Path) -> None:
    tries, busy = 0, 2 * blob_client.ATTEMPTS

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        await reader.readuntil(b"\r\n\r\n")
        tries += 1
        status = b"503 Service Unavailable" if tries <= busy else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 1\r\nConnection: close\r\n\r\nA" % status)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/c/a"
            client = BlobClient(retry_delay_s=0.001, away_s=600)
            await client.download(url, lambda: create_below(tmp_path / "a", tmp_path))
            await client.close()

    asyncio.run(main())
    assert (tmp_path / "a").read_bytes() == b"A"
    assert tries == busy + 1


def test_silent_server_is_a_timeout(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_client, "TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        category, code, _ = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert (category, code) == ("ServerError", "BlobDownloadTimedOut")


def test_invalid_listing_is_a_misc_error(node: Node, blobs: BlobStore) -> None:
    blobs.containers["in"]["page"] = b"<html>"
    url = blobs.blob_url("in", "page")
    _, code, _ = failure_of(node, {"storageContainerUrl": url})
    assert code == "BlobDownloadMiscError"


def test_blob_name_leaving_the_folder_is_refused(node: Node, blobs: BlobStore) -> None:
    blobs.containers["evil"] = {"../../../out.txt": b"!"}
    failure_of(node, {"storageContainerUrl": blobs.container_url("evil")})
    assert not list(node.layout.root.rglob("out.txt"))


def test_file_in_the_place_of_a_folder_is_a_directory_failure(node: Node, blobs: BlobStore) -> None:
    url = blobs.blob_url("in", "a.txt")
    node.working_dir.mkdir(parents=True)
    (node.working_dir / "a").write_text("a file")
    category, code, _ = failure_of(node, {"httpUrl": url, "filePath": "a/b"})
    assert (category, code) == ("ServerError", "ResourceDirectoryCreateFailed")


def test_folder_in_the_place_of_a_file_is_a_create_failure(node: Node, blobs: BlobStore) -> None:
    (node.working_dir / "a").mkdir(parents=True)
    url = blobs.blob_url("in", "a.txt")
    _, code, _ = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert code == "ResourceFileCreateFailed"


def test_full_disk_is_disk_full(
    node: Node, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    url = blobs.blob_url("in", "a.txt")
    monkeypatch.setattr(task_files, "create_below", full)
    category, code, _ = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert (category, code) == ("ServerError", "DiskFull")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_filled_during_the_download_is_disk_full(
    node: Node, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_full_disk(*_: object, **__: object) -> int:
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # root would change the device
    monkeypatch.setattr(task_files, "create_below", on_full_disk)
    url = blobs.blob_url("in", "a.txt")
    _, code, _ = failure_of(node, {"httpUrl": url, "filePath": "a"})
    assert code == "DiskFull"


def test_kill_during_a_download_ends_the_launch(node: Node) -> None:
    async def scenario(executor: Executor, url: str) -> ExecutionOutcome:
        launch = node.launch("/bin/true", resource_files=({"httpUrl": url, "filePath": "a"},))
        task = asyncio.create_task(executor.run(launch))
        await eventually((node.task_dir / "certs").exists, "the task has begun")
        await asyncio.sleep(0)
        await executor.kill(launch.key)
        return await asyncio.wait_for(task, 120)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        outcome = in_executor(lambda executor: scenario(executor, url))
    assert outcome.exit_code is None
    assert outcome.failure is not None
    assert outcome.failure.code == "TaskEnded"


@pytest.mark.parametrize(
    ("resource", "problem"),
    [
        ({"httpUrl": HTTP, "filePath": "a/b"}, None),
        ({"storageContainerUrl": "https://h/c?sig=x"}, None),
        (
            {"storageContainerUrl": HTTP, "blobPrefix": "p", "filePath": "d", "fileMode": "0755"},
            None,
        ),
        ({"httpUrl": HTTP, "filePath": "a", "fileMode": "644"}, None),
        ({}, "exactly one"),
        ({"httpUrl": HTTP, "storageContainerUrl": HTTP, "filePath": "a"}, "exactly one"),
        ({"httpUrl": HTTP}, "filePath is required"),
        ({"httpUrl": HTTP, "filePath": "."}, "filePath is required"),
        ({"httpUrl": HTTP, "filePath": "../a"}, "leaves the working directory"),
        ({"httpUrl": HTTP, "filePath": "a/../../b"}, "leaves the working directory"),
        ({"httpUrl": HTTP, "filePath": "/etc/passwd"}, "leaves the working directory"),
        ({"httpUrl": HTTP, "filePath": "a", "blobPrefix": "p"}, "blobPrefix is only valid"),
        ({"httpUrl": HTTP, "filePath": "a", "fileMode": "rwx"}, "not an octal mode"),
        ({"httpUrl": HTTP, "filePath": "a", "fileMode": "0888"}, "not an octal mode"),
        ({"httpUrl": "file:///etc/passwd", "filePath": "a"}, "http or https"),
        ({"httpUrl": "http://[", "filePath": "a"}, "http or https"),
        ({"autoStorageContainerName": "inputs", "blobPrefix": "p", "filePath": "d"}, None),
        ({"autoStorageContainerName": "C"}, "not the name of a container"),
        (
            {"autoStorageContainerName": "inputs", "filePath": "../d"},
            "leaves the working directory",
        ),
        (
            {"httpUrl": HTTP, "filePath": "a", "identityReference": {"resourceId": "r"}},
            "identityReference/resourceId must be",
        ),
    ],
)
def test_invalid_resource_files_have_a_problem(
    resource: dict[str, Any], problem: str | None
) -> None:
    found = resource_file_problem(resource)
    assert found is None if problem is None else problem in str(found)


@pytest.mark.parametrize("inside", ["d", "d/new"])
def test_link_left_by_an_earlier_attempt_is_not_followed(
    node: Node, blobs: BlobStore, tmp_path: Path, inside: str
) -> None:
    (tmp_path / "out").mkdir()
    run(node, command=f"/bin/ln -s {tmp_path}/out d")
    resource = {"httpUrl": blobs.blob_url("in", "a.txt"), "filePath": f"{inside}/a.txt"}
    assert failure_of(node, resource)[:2] == ("UserError", "BlobDownloadMiscError")
    assert list((tmp_path / "out").iterdir()) == []


def test_link_in_place_of_the_working_directory_is_replaced(
    node: Node, blobs: BlobStore, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    run(node, command=f"/bin/sh -c 'rmdir $PWD; ln -s {tmp_path}/out $PWD'")
    run(node, {"httpUrl": blobs.blob_url("in", "a.txt"), "filePath": "a.txt"})
    assert (node.working_dir / "a.txt").read_bytes() == b"A"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("make", ["mkfifo a.txt", "ln -s $AZ_BATCH_NODE_SHARED_DIR/x a.txt"])
def test_pipe_or_link_in_place_of_a_file_is_replaced(
    node: Node, blobs: BlobStore, make: str
) -> None:
    run(node, command=f"/bin/sh -c '{make}'")
    run(node, {"httpUrl": blobs.blob_url("in", "a.txt"), "filePath": "a.txt"})
    assert (node.working_dir / "a.txt").read_bytes() == b"A"
    assert not (node.layout.shared / "x").exists()


def test_sas_is_not_in_the_log(
    node: Node, blobs: BlobStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    url = blobs.blob_url("in", "a.txt")
    assert run(node, {"httpUrl": url, "filePath": "a"}).exit_code == 0
    assert urlsplit(url).query
    assert urlsplit(url).query not in caplog.text

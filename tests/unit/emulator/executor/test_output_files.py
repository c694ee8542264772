"""Output files: patterns, names, conditions and uploads to a blob store on loopback."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.launch import ExecutionOutcome
from batch_emulator.domain.validation.task_rules import output_file_problem
from batch_emulator.executor import blob_client
from batch_emulator.executor.blob_client import BlobClient, redact
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.task_files import (
    PatternError,
    expand_variables,
    find_files,
    has_wildcard,
)
from batch_emulator.folders import open_below
from tests.unit.emulator.blob_store import BlobStore, serve
from tests.unit.emulator.launching import Node, eventually, in_executor


@pytest.fixture
def node(tmp_path: Path) -> Node:
    layout = NodeLayout(tmp_path / "node" / "tasks")
    layout.create()
    return Node(layout)


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.containers["out"] = {}
        yield store


def output(
    url: str, pattern: str, path: str | None = None, condition: str = "taskcompletion", **more: Any
) -> dict[str, Any]:
    container = {"containerUrl": url, **({"path": path} if path else {}), **more}
    return {
        "filePattern": pattern,
        "destination": {"container": container},
        "uploadOptions": {"uploadCondition": condition},
    }


def test_files_are_uploaded_by_pattern(node: Node, blobs: BlobStore) -> None:
    url = blobs.container_url("out")
    outcome = node.run(
        "/bin/sh -c 'echo hi; mkdir -p m/n; printf 1 > m/a.txt;"
        ' printf 2 > "m/n/b 2.txt"; printf 3 > .hidden.txt\'',
        output_files=(
            output(url, "../stdout.txt", "logs/out"),
            output(url, "../std*.txt", "both"),
            output(url, "**/*.txt", "all/"),
            output(url, "m/a.txt"),
            output(url, "nothing*"),
        ),
    )
    assert outcome == ExecutionOutcome(0, None, retryable=False)
    assert blobs.containers["out"] == {
        "logs/out": b"hi\n",
        "both/stdout.txt": b"hi\n",
        "both/stderr.txt": b"",
        "all/m/a.txt": b"1",
        "all/m/n/b 2.txt": b"2",
        "a.txt": b"1",
    }
    log = (node.task_dir / "fileuploadout.txt").read_text()
    assert "no file matches nothing*" in log
    assert "s%2Bcret" not in log
    assert (node.task_dir / "fileuploaderr.txt").read_text() == ""


@pytest.mark.parametrize(
    ("command", "expected"), [("/bin/true", {"ok", "any"}), ("/bin/false", {"bad", "any"})]
)
def test_upload_conditions_select_the_files(
    node: Node, blobs: BlobStore, command: str, expected: set[str]
) -> None:
    url = blobs.container_url("out")
    node.run(
        command,
        output_files=(
            output(url, "../stdout.txt", "ok", "TaskSuccess"),
            output(url, "../stdout.txt", "bad", "taskfailure"),
            output(url, "../stdout.txt", "any"),
        ),
    )
    assert set(blobs.containers["out"]) == expected


def test_no_log_is_written_without_a_matching_condition(node: Node, blobs: BlobStore) -> None:
    url = blobs.container_url("out")
    node.run("/bin/true", output_files=(output(url, "../stdout.txt", "x", "taskfailure"),))
    assert not (node.task_dir / "fileuploadout.txt").exists()


def test_variables_in_patterns_are_expanded(node: Node, blobs: BlobStore) -> None:
    node.run(
        "/bin/sh -c 'echo 1 > model-7.bin'",
        settings={"EPOCH": "7"},
        output_files=(
            output(
                blobs.container_url("out"), "$AZ_BATCH_TASK_WORKING_DIR/model-${EPOCH}.bin", "m"
            ),
        ),
    )
    assert blobs.containers["out"] == {"m": b"1\n"}


def test_headers_of_the_destination_are_sent(node: Node, blobs: BlobStore) -> None:
    headers = [{"name": "x-ms-blob-content-type", "value": "text/plain"}]
    node.run(
        "/bin/true",
        output_files=(
            output(blobs.container_url("out"), "../stdout.txt", "log", uploadHeaders=headers),
        ),
    )
    assert blobs.headers["log"]["x-ms-blob-content-type"] == "text/plain"


@pytest.mark.parametrize(
    ("container", "sas", "expected"),
    [
        ("nowhere", True, ("UserError", "FileUploadContainerNotFound")),
        ("out", False, ("UserError", "FileUploadAccessDenied")),
    ],
)
def test_refused_upload_fails_the_task_but_not_the_other_uploads(
    node: Node, blobs: BlobStore, container: str, sas: bool, expected: tuple[str, str]
) -> None:
    url = blobs.container_url(container)
    url = url if sas else url.replace("s%2Bcret", "wrong")
    outcome = node.run(
        "/bin/true",
        output_files=(
            output(url, "../stdout.txt", "first"),
            output(blobs.container_url("out"), "../stdout.txt", "second"),
        ),
    )
    assert outcome.exit_code == 0
    assert not outcome.retryable
    assert outcome.failure is not None
    assert (outcome.failure.category, outcome.failure.code) == expected
    assert list(blobs.containers["out"]) == ["second"]
    assert expected[1] in (node.task_dir / "fileuploaderr.txt").read_text()
    assert "sig=" not in repr(outcome) + (node.task_dir / "fileuploaderr.txt").read_text()


def test_failed_command_outweighs_failed_upload(node: Node, blobs: BlobStore) -> None:
    outcome = node.run(
        "/bin/false", output_files=(output(blobs.container_url("nowhere"), "../stdout.txt", "x"),)
    )
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.retryable) == ("FailureExitCode", True)


def test_upload_is_retried_and_then_a_misc_error(node: Node, blobs: BlobStore) -> None:
    blobs.failures["/account/out/ok"] = [503, -1]
    blobs.failures["/account/out/never"] = [500] * 20
    url = blobs.container_url("out")
    outcome = node.run(
        "/bin/echo x",
        output_files=(output(url, "../stdout.txt", "ok"), output(url, "../stdout.txt", "never")),
    )
    assert blobs.containers["out"] == {"ok": b"x\n"}
    assert outcome.failure is not None
    assert (outcome.failure.category, outcome.failure.code) == (
        "ServerError",
        "FileUploadMiscError",
    )


def test_large_file_is_uploaded_in_blocks(tmp_path: Path, blobs: BlobStore) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "big").write_bytes(content)

    async def upload() -> None:
        store = BlobClient(retry_delay_s=0.001)
        store._single_put_bytes, store._block_bytes = 1_000_000, 300_000
        try:
            url = blob_client.blob_url(blobs.container_url("out"), "big file")
            done = await store.upload(
                url, tmp_path / "big", {"x-ms-blob-content-type": "a/b"}, top=tmp_path
            )
            assert (done.size, done.etag) == (len(content), blobs.etag("out", "big file"))
        finally:
            await store.close()

    asyncio.run(upload())
    assert blobs.containers["out"]["big file"] == content
    assert blobs.headers["big file"]["x-ms-blob-content-type"] == "a/b"
    assert sum(r.endswith(" block") for r in blobs.requests) == 9


def test_terminated_task_still_uploads_and_a_lost_node_does_not(
    node: Node, blobs: BlobStore
) -> None:
    async def scenario(executor: Executor, kill: str) -> ExecutionOutcome:
        launch = node.launch(
            "/bin/sh -c 'echo begun; echo > ready; sleep 600'",
            output_files=(output(blobs.container_url("out"), "../stdout.txt", kill),),
        )
        (node.working_dir / "ready").unlink(missing_ok=True)
        task = asyncio.create_task(executor.run(launch))
        await eventually((node.working_dir / "ready").exists, "the command has begun")
        await getattr(executor, kill)(launch.key)
        return await asyncio.wait_for(task, 120)

    for kill in ("kill", "kill_now"):
        assert in_executor(lambda executor, kill=kill: scenario(executor, kill)).failure is not None
    assert blobs.containers["out"] == {"kill": b"begun\n"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    task = tmp_path / "task"
    for name in (
        "stdout.txt", "wd/a.gif", "wd/.a.gif", "wd/b.gif", "wd/abc*", "wd/abcd", "wd/d/e/f.txt",
        "wd/d/g.txt", "wd/.h/i.txt", "wd/-x", "wd/]y", "wd/[z",
    ):  # fmt: skip
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text("")
    (tmp_path / "above.txt").write_text("")
    return task


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.gif", ["a.gif", "b.gif"]),
        (".*.gif", [".a.gif"]),
        ("?.gif", ["a.gif", "b.gif"]),
        ("[!a].gif", ["b.gif"]),
        ("[a-c].gif", ["a.gif", "b.gif"]),
        ("[c-z].gif", []),
        ("abc[*]", ["abc*"]),
        ("abc*", ["abc*", "abcd"]),
        ("[[]z", ["[z"]),
        ("[]]y", ["]y"]),
        ("[-]x", ["-x"]),
        ("**/*.txt", ["d/e/f.txt", "d/g.txt"]),
        ("d/**/*.txt", ["e/f.txt", "g.txt"]),
        ("d/**", ["e/f.txt", "g.txt"]),
        ("d", []),
        ("d/g.txt", ["g.txt"]),
        ("./d//g.txt", ["g.txt"]),
        ("../*.txt", ["stdout.txt"]),
        ("../stdout.txt", ["stdout.txt"]),
        ("../**/*.txt", ["stdout.txt", "wd/d/e/f.txt", "wd/d/g.txt"]),
        (".h/*", ["i.txt"]),
        ("missing", []),
        ("missing/*", []),
    ],
)
def test_patterns_select_files(tree: Path, pattern: str, names: list[str]) -> None:
    assert sorted(m.name for m in find_files(pattern, tree / "wd", tree, tree.parent)) == names


@pytest.mark.parametrize(
    "pattern", ["../../*", "../../above.txt", "/etc/passwd", "*/../../x", "", "/", "[z-a]"]
)
def test_invalid_patterns_are_refused(tree: Path, pattern: str) -> None:
    with pytest.raises(PatternError):
        find_files(pattern, tree / "wd", tree, tree.parent)


def test_absolute_pattern_inside_the_task_is_allowed(tree: Path) -> None:
    found = find_files(f"{tree}/wd/*.gif", tree / "wd", tree, tree.parent)
    assert [m.name for m in found] == ["a.gif", "b.gif"]


def test_search_ends_in_a_loop_of_links(tree: Path) -> None:
    (tree / "wd" / "d" / "loop").symlink_to(tree / "wd")
    assert len(find_files("**/*.txt", tree / "wd", tree, tree.parent)) == 2


def test_files_behind_links_leaving_the_node_are_not_found(tree: Path) -> None:
    node, wd = tree, tree / "wd"
    secret = tree.parent / "secret"
    secret.mkdir()
    (secret / "keys.json").write_text("{}")
    (wd / "keys.json").symlink_to(secret / "keys.json")
    (wd / "folder").symlink_to(secret)
    (wd / "inside.json").symlink_to(tree / "stdout.txt")
    assert [m.name for m in find_files("*.json", wd, tree, node)] == ["inside.json"]
    assert find_files("keys.json", wd, tree, node) == []
    assert find_files("*/keys.json", wd, tree, node) == []


def test_files_are_opened_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "top" / "d").mkdir(parents=True)
    (tmp_path / "top" / "d" / "f").write_text("x")
    (tmp_path / "top" / "link").symlink_to("d")
    (tmp_path / "top" / "d" / "last").symlink_to("f")
    os.mkfifo(tmp_path / "top" / "pipe")
    top = tmp_path / "top"
    with os.fdopen(open_below(top / "d" / "f", top)) as file:
        assert file.read() == "x"
    for name in ("link/f", "d/last", "d", "pipe", "missing"):
        with pytest.raises(OSError, match=r"\["):
            open_below(top / name, top)


@pytest.mark.parametrize(
    ("pattern", "wild"),
    [
        ("a*", True),
        ("a?", True),
        ("[ab]", True),
        ("[*]", False),
        ("a[?]b/c", False),
        ("**/a", True),
        ("a[b", False),
    ],
)
def test_wildcards_and_escapes_are_matched(pattern: str, wild: bool) -> None:
    assert has_wildcard(pattern) is wild


def test_unknown_variables_are_kept() -> None:
    assert expand_variables("$A/${B}/$C", {"A": "1", "B": "2"}) == "1/2/$C"


def test_redacted_url_has_no_query_and_no_password() -> None:
    assert redact("https://u:p@h:1/c/b?sig=x#f") == "https://h:1/c/b"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"filePattern": ""}, "filePattern is required"),
        ({"destination": {}}, "destination.container is required"),
        ({"destination": {"container": {"containerUrl": "ftp://h"}}}, "http or https"),
        (
            {
                "destination": {
                    "container": {
                        "containerUrl": "http://h/c",
                        "identityReference": {"resourceId": "r"},
                    }
                }
            },
            "identityReference",
        ),
        ({"uploadOptions": {}}, None),
    ],
)
def test_invalid_output_files_have_a_problem(change: dict[str, Any], problem: str | None) -> None:
    found = output_file_problem({**output("http://h/c?sig=x", "*"), **change})
    assert found is None if problem is None else problem in str(found)

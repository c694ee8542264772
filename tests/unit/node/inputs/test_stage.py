from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.node.failures import StageFailedError
from runner.node.inputs import stage
from runner.node.inputs.stage import InputAccess, InputFetch, fetch_inputs
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from tests.unit.node.agent_task import Task
from tests.unit.node.fake_blob import FakeBlobs, etag
from tests.unit.node.file_server import Web, serve_file

WORDS = random.Random(1).randbytes(3_000_000).hex().encode()  # no two parts are the same

Take = Callable[..., Path]


@pytest.fixture
def take(container: ContainerClient, retry_budget: RetryBudget, tmp_path: Path) -> Take:
    """Fetch one input and return the path that the script gets."""

    def fetch(document: dict[str, Any], work: str = "wd") -> Path:
        access = InputAccess(container, container, {"elsewhere": container}, tmp_path / "mounts")
        (tmp_path / work).mkdir(exist_ok=True)
        how = InputFetch(
            access,
            tmp_path / "shared",
            tmp_path / work,
            retry_budget,
            lambda *_: None,
            lambda: None,
        )
        return Path(fetch_inputs(how, {"my-words": document})["RUNNER_INPUT_MY_WORDS"])

    return fetch


@pytest.fixture
def web() -> Iterator[Web]:
    with serve_file(WORDS) as web:
        yield web


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob(service: FakeBlobs, **files: bytes) -> dict[str, Any]:
    """Return the document of a prefix with these files."""
    for name, data in files.items():
        service.put(f"a/{name}", data)
    listed = [{"name": n, "size_bytes": len(d), "etag": etag(d)} for n, d in files.items()]
    manifest = sha256(json.dumps(listed).encode())
    return {
        "kind": "blob", "container": "elsewhere", "prefix": "a/", "manifest": manifest,
        "single": None, "files": listed,
    }  # fmt: skip


def test_uploaded_folder_is_fetched_once_per_node(take: Take, service: FakeBlobs) -> None:
    service.put("inputs/1/x/a.txt", b"hello")
    files = [{"name": "x/a.txt", "size_bytes": 5, "sha256": sha256(b"hello")}]
    document = {"kind": "path", "prefix": "inputs/1/", "single": None, "files": files}
    assert (take(document) / "x/a.txt").read_text() == "hello"
    asked = len(service.requests)
    take(document, "another-task")
    assert len(service.requests) == asked


def test_single_file_input_is_a_file(take: Take, service: FakeBlobs) -> None:
    service.put("inputs/1/a.txt", b"hello")
    files = [{"name": "a.txt", "size_bytes": 5, "sha256": sha256(b"hello")}]
    document = {"kind": "path", "prefix": "inputs/1/", "single": "a.txt", "files": files}
    assert take(document).read_text() == "hello"


def test_blob_prefix_is_downloaded(take: Take, service: FakeBlobs) -> None:
    folder = take(blob(service, one=b"1", two=b"22"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "one": b"1", "two": b"22",
    }  # fmt: skip


def test_blob_changed_after_submission_is_rejected(take: Take, service: FakeBlobs) -> None:
    document = blob(service, one=b"1")
    service.put("a/one", b"2")
    with pytest.raises(
        StageFailedError, match="changed or deleted since the run was submitted"
    ) as caught:
        take(document)
    assert (caught.value.step, caught.value.code) == ("inputs", "InputMissing")


def test_blob_with_a_wrong_md5_is_rejected(take: Take, service: FakeBlobs) -> None:
    document = blob(service, one=b"1")
    document["files"][0]["md5"] = "1B2M2Y8AsgTpgAmY7PhCfg=="
    with pytest.raises(StageFailedError, match="is damaged: MD5 is"):
        take(document)


def test_container_without_access_is_named(take: Take, service: FakeBlobs) -> None:
    with pytest.raises(StageFailedError, match="no access to the container other"):
        take({**blob(service, one=b"1"), "container": "other"})


def test_url_is_fetched_once_per_version(take: Take, web: Web) -> None:
    document = {"kind": "url", "url": web.url, "sha256": None}
    first = take(document)
    assert first.name == "words.txt"
    assert first.read_bytes() == WORDS
    assert take(document, "another-task") == first
    web.content, web.etag = b"new", '"v2"'
    assert take(document).read_bytes() == b"new"


def test_url_without_a_version_is_cached_per_task(take: Take, web: Web, tmp_path: Path) -> None:
    web.etag = None
    document = {"kind": "url", "url": web.url, "sha256": None}
    assert take(document).is_relative_to(tmp_path / "wd")
    web.content = b"new"
    assert take(document).read_bytes() == b"new"


def test_url_with_hash_is_downloaded_once(take: Take, web: Web) -> None:
    document = {"kind": "url", "url": web.url, "sha256": sha256(WORDS)}
    take(document)
    asked = len(web.requests)
    assert take(document, "another-task").read_bytes() == WORDS
    assert len(web.requests) == asked


def test_url_with_wrong_hash_is_rejected_and_deleted(take: Take, web: Web, tmp_path: Path) -> None:
    with pytest.raises(StageFailedError, match="is damaged: sha256 is"):
        take({"kind": "url", "url": web.url, "sha256": "0" * 64})
    assert not list(tmp_path.rglob("words.txt*"))


@pytest.mark.parametrize("habit", [{}, {"ranges": False}, {"chunked": True}, {"etag": None}])
def test_interrupted_url_transfer_is_completed(take: Take, web: Web, habit: dict[str, Any]) -> None:
    for name, value in habit.items():
        setattr(web, name, value)
    web.cut_after = 100_000
    given = {"kind": "url", "url": web.url, "sha256": sha256(WORDS)}
    assert take(given).read_bytes() == WORDS
    asked = [headers.get("Range") for _, headers in web.requests]
    assert len(asked) == 2
    assert web.chunked or asked[1] == "bytes=100000-"


def test_unversioned_url_transfer_restarts(take: Take, web: Web) -> None:
    answers = iter([None, 100_000, None])
    web.etag = None
    web.on_request = lambda: setattr(web, "cut_after", next(answers))
    assert take({"kind": "url", "url": web.url, "sha256": None}).read_bytes() == WORDS
    assert not any("Range" in headers for _, headers in web.requests)


def test_url_changing_during_download_is_rejected(take: Take, web: Web) -> None:
    answers = iter([('"v1"', None), ('"v1"', 100_000), ('"v2"', None)])

    def next_answer() -> None:
        web.etag, web.cut_after = next(answers)

    web.on_request = next_answer
    with pytest.raises(StageFailedError, match="changed during the download"):
        take({"kind": "url", "url": web.url, "sha256": None})


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refused_url_is_not_retried(take: Take, web: Web, status: int) -> None:
    web.status = status
    with pytest.raises(StageFailedError, match=rf"words\.txt: {status} "):
        take({"kind": "url", "url": web.url, "sha256": None})


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/metadata", "http://example.org/x", "file:///etc/passwd"]
)
def test_redirect_away_from_https_is_rejected(take: Take, web: Web, target: str) -> None:
    web.redirect = target
    with pytest.raises(StageFailedError, match=r"redirected to|could not|not allowed|no answer"):
        take({"kind": "url", "url": web.url, "sha256": None})


def test_too_large_url_is_rejected(take: Take, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "MAX_URL_BYTES", 1000)
    with pytest.raises(StageFailedError, match="larger than"):
        take({"kind": "url", "url": web.url, "sha256": None})


@pytest.mark.parametrize("url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/x"])
def test_url_without_https_is_rejected(take: Take, url: str) -> None:
    with pytest.raises(StageFailedError, match="only https"):
        take({"kind": "url", "url": url, "sha256": None})


def test_share_is_found_below_the_mounts(take: Take, tmp_path: Path) -> None:
    (tmp_path / "mounts/files/sets/cats").mkdir(parents=True)
    (tmp_path / "mounts/fshare-files.log").touch()
    assert take({"kind": "share", "path": "files/sets/cats"}).is_dir()
    assert take({"kind": "share", "path": "sets/cats"}).is_dir()
    with pytest.raises(StageFailedError, match="mounts files; 'dogs' exists in none"):
        take({"kind": "share", "path": "dogs"})


def test_pool_without_mounts_is_named(take: Take) -> None:
    with pytest.raises(StageFailedError, match="mounts no file share"):
        take({"kind": "share", "path": "sets/cats"})


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../../x"])
def test_share_path_outside_the_mounts_is_rejected(take: Take, tmp_path: Path, path: str) -> None:
    (tmp_path / "mounts/files").mkdir(parents=True)
    with pytest.raises(StageFailedError, match="leaves the share"):
        take({"kind": "share", "path": path})


def finished_run(service: FakeBlobs, status: str = "succeeded", **files: bytes) -> None:
    outputs = [
        {"path": n.replace("__", "/"), "size_bytes": len(d), "sha256": sha256(d)}
        for n, d in files.items()
    ]
    for name, data in files.items():
        service.put(f"run-1/output/{name.replace('__', '/')}", data)
    result = {"status": status, "output": "output/", "outputs": outputs}
    service.put("run-1/result.json", json.dumps(result).encode())


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (None, {"m", "d/a", "d/b"}),
        ("d", {"a", "b"}),
        ("d/*", {"d/a", "d/b"}),
        ("m", None),
    ],
)
def test_outputs_of_another_run_are_inputs(
    take: Take, service: FakeBlobs, path: str | None, found: set[str] | None
) -> None:
    finished_run(service, m=b"model", d__a=b"a", d__b=b"b")
    taken = take({"kind": "run", "run_id": "run-1", "path": path})
    if found is None:
        assert taken.read_bytes() == b"model"
    else:
        there = {p.relative_to(taken).as_posix() for p in taken.rglob("*") if p.is_file()}
        assert there == found


def test_missing_output_of_another_run_is_named(take: Take, service: FakeBlobs) -> None:
    finished_run(service, m=b"model")
    with pytest.raises(StageFailedError, match="has no output x; it wrote m"):
        take({"kind": "run", "run_id": "run-1", "path": "x"})


def test_unsuccessful_run_as_input_is_named(take: Take, service: FakeBlobs) -> None:
    with pytest.raises(StageFailedError, match="run-1 has no result yet"):
        take({"kind": "run", "run_id": "run-1", "path": None})
    finished_run(service, "failed", m=b"model")
    with pytest.raises(StageFailedError, match="run-1 failed"):
        take({"kind": "run", "run_id": "run-1", "path": None})


@pytest.mark.feature(42)
def test_merge_task_gets_the_newest_results_of_all_trials(take: Take, service: FakeBlobs) -> None:
    tasks = {
        "1": {"run_id": "run-1", "trial": {"lr": 0.1}},
        "2": {"run_id": "run-2", "trial": {"lr": 0.2}},
        "3": {"run_id": "run-3", "trial": {"lr": 0.3}},
        "merge": {"run_id": "run-4"},
    }
    service.put("groups/swept.json", json.dumps({"tasks": tasks}).encode())
    with pytest.raises(StageFailedError, match="no trial succeeded"):
        take({"kind": "trials", "group": "swept"})
    finished_run(service, model=b"one", logs__a=b"a")
    service.put("run-2/result.json", b'{"status": "failed", "message": "no memory"}')
    later = {"run_id": "run-1", "created": "2026-11-24T12:00:00+00:00"}  # resumed: run-3 failed
    service.put("sweeps/swept/runs/3.2", json.dumps(later).encode())
    command = ["t.py", "--lr", "0.2", "--lr", "0.7", "--seed", "1"]
    run = {"trial": {"params": {"lr": 0.2}}, "command": command}
    service.put("run-2/run.json", json.dumps(run).encode())
    folder = take({"kind": "trials", "group": "swept"})
    found = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*/*") if p.is_file()
    }
    assert found == {
        "1/model": b"one", "1/logs/a": b"a", "3/model": b"one", "3/logs/a": b"a",
    }  # fmt: skip
    listed = json.loads((folder / "trials.json").read_text())
    assert [(each["trial"], each["status"], each["params"]) for each in listed] == [
        ("1", "succeeded", {"lr": 0.1}),
        ("2", "failed", {"lr": 0.7}),
        ("3", "succeeded", {"lr": 0.3}),
    ]
    assert listed[1]["message"] == "no memory"


@pytest.mark.parametrize(
    "document",
    [{}, {"kind": "tape"}, {"kind": "path", "prefix": "x/"}, {"kind": "path", "files": 3}],
)
def test_input_of_unknown_kind_is_rejected(take: Take, document: dict[str, Any]) -> None:
    with pytest.raises(StageFailedError, match="my-words"):
        take(document)


def test_name_outside_the_input_is_rejected(take: Take) -> None:
    files = [{"name": "../../x", "size_bytes": 5, "sha256": "0" * 64}]
    with pytest.raises(StageFailedError, match="not a name inside"):
        take({"kind": "path", "prefix": "inputs/1/", "single": None, "files": files})


@pytest.mark.slow
def test_script_gets_its_inputs(task: Task, web: Web) -> None:
    finished_run(task.service, m=b"model")
    script = """
import os
print(open(os.environ["RUNNER_INPUT_BASE"]).read())
print(len(open(os.environ["RUNNER_INPUT_WORD_LIST"]).read()))
"""
    task.submit(
        script,
        inputs={
            "base": {"kind": "run", "run_id": "run-1", "path": "m"},
            "word-list": {"kind": "url", "url": web.url, "sha256": None},
        },
    )
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == f"model\n{len(WORDS)}\n"
    assert "inputs" in task.json("result.json")["stages_s"]


def test_missing_input_fails_the_run_by_name(task: Task) -> None:
    task.submit("print(1)", inputs={"base": {"kind": "run", "run_id": "run-1", "path": "m"}})
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("inputs", "InputMissing")
    assert result["message"].startswith("input base: run run-1 has no result yet")


@pytest.mark.parametrize(
    "url", ["http://me:hunter2@example.org/x?sig=hunter2", "ftp://example.org/x?sig=hunter2"]
)
def test_secrets_in_urls_are_not_printed(take: Take, url: str) -> None:
    with pytest.raises(StageFailedError, match=r"example\.org/x\?\*\*\*") as caught:
        take({"kind": "url", "url": url, "sha256": None})
    assert "hunter2" not in caught.value.message

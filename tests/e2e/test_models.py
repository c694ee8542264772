"""The registry of models against real services: register, list, get, alias, remove.

Feature row 47 of the reference: model registry with versions.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import BlobClient

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage import blobs
from runner.azure.storage.blobs import BlobContainer, BlobStore
from runner.azure.storage.model_container import ModelContainer
from runner.azure.storage.stores import StoredFile
from runner.core.planning.plan import StorageScopes, storage_scopes
from runner.core.progress import Progress, ignore_progress
from runner.core.settings import load_settings
from runner.flows.local_files import part_of
from runner.flows.models.download import download_files
from runner.flows.models.register import (
    default_request,
    describe_models,
    ensure_registered,
    load_run_models,
    register_run,
)
from runner.flows.models.remove import remove_versions
from runner.flows.models.versions import (
    drop_alias,
    find_version,
    list_models,
    load_model,
    open_model_registry,
    set_alias,
)
from runner.node.agent.model_registration import AgentModelStore
from runner.node.agent.model_registration import register_model as settle_agent
from runner.node.script.redaction import Redactor
from runner.node.settings import load_access, load_models
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.protocol import models
from runner.protocol.errors import RunnerError
from runner.protocol.models import ModelBlobs, ModelRequest, draft_version, model_document_bytes
from runner.protocol.paths import RunPaths, make_run_id
from runner.protocol.run_spec import RunSpec, parse_run

pytestmark = pytest.mark.smoke  # most of its tests take milliseconds
Make = Callable[..., RunSpec]


@pytest.fixture
def connection(session_home: Path, tmp_path: Path) -> Connection:
    return connect(
        load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(session_home), "HOME": "/"})
    )


@pytest.fixture
def runs(connection: Connection) -> BlobContainer:
    return BlobContainer(connection.blob_service(), connection.outputs.container_runs)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def make(runs: BlobContainer, name: str) -> Make:
    """Return a function that writes an ended run, as its agent does."""
    made: list[str] = []

    def run(
        files: dict[str, bytes], status: str | None = "succeeded", model: Any = None, **metrics: Any
    ) -> RunSpec:
        suffix = f"{name[:2]}{len(made):02d}"
        made.append(suffix)
        run_id = make_run_id(f"r{name}", datetime.now(UTC), suffix)
        document = {
            "format": 1,
            "run_id": run_id,
            "experiment": "x",
            "created": datetime.now(UTC).isoformat(),
            "recipe": {"name": "digits", "description": "", "source": "folder"},
            "code": {"sha256": "c" * 64, "git_revision": "f00", "git_dirty": True},
            "agent": {"sha256": "a" * 64},
            "command": ["python", "train.py"],
            "params": {"epochs": 5},
            "data": {"name": "mnist", "source": "cache", "prefix": f"mnist/{'d' * 64}/"},
            "metrics": {"primary": "acc", "goal": "max"},
            "batch": {"pool": "local", "spot": True, "job_id": "no-job", "task_id": run_id},
            "model": model,
        }
        runs.create(RunPaths(run_id).run, document)
        for path, content in files.items():
            runs.create_bytes(RunPaths(run_id).output(1) + path, content, "x/y")
        outputs = [
            {"path": p, "size_bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()}
            for p, c in files.items()
        ]
        if status is not None:
            result = {"format": 1, "run_id": run_id, "status": status, "attempt": 1}
            runs.create(RunPaths(run_id).result, {**result, "outputs": outputs, "metrics": metrics})
        return parse_run(json.dumps(document).encode(), run_id)

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def register(connection: Connection, spec: RunSpec, name: str, **asked: Any) -> int:
    return register_run(connection, spec, ModelRequest(name, **asked)).version


def test_registered_version_is_downloaded_unchanged_with_its_origin(
    connection: Connection, make: Make, name: str, tmp_path: Path, runs: BlobContainer
) -> None:
    files = {"model.bin": bytes(range(256)) * 5000, "sub/ä b.txt": b"x", "empty.txt": b""}
    spec = make(files, acc=0.9)
    assert register(connection, spec, name) == 1
    version = find_version(connection, f"{name}@latest")
    document = version.document or {}
    assert document["run_id"] == spec.run_id
    assert document["metrics"] == {"acc": 0.9}
    lineage = document["lineage"]
    assert lineage["code"]["git_revision"] == "f00"
    assert lineage["data"]["manifest_sha256"] == "d" * 64
    assert (lineage["params"], lineage["command"]) == ({"epochs": 5}, ["python", "train.py"])
    assert [model.version for model in load_run_models(runs, spec.run_id)] == [1]
    gotten = download_files(connection, version, tmp_path / "m", ignore_progress)
    assert (gotten.downloaded, content(tmp_path / "m")) == (3, files)
    again = download_files(connection, version, tmp_path / "m", ignore_progress)
    assert again.downloaded == 0


def test_model_with_damaged_aliases_hides_no_other_model(
    connection: Connection, make: Make, name: str
) -> None:
    register(connection, make({"model": b"x"}), name)
    store, broken = ModelContainer(connection), f"{name}-broken"
    store.create(f"{broken}/aliases.json", b"{")
    try:
        listed = {model.name: model for model in list_models(connection)}
    finally:
        store.delete(
            f"{broken}/aliases.json", (store.read(f"{broken}/aliases.json") or ("", ""))[1]
        )
    assert [version.problem for version in listed[name].versions] == [""]
    [problem] = listed[broken].versions
    assert problem.problem.startswith(f"{broken}/aliases.json cannot be read")


def test_registering_again_returns_the_version_or_refuses_other_files(
    connection: Connection, make: Make, name: str
) -> None:
    spec = make({"model.bin": b"model", "log.txt": b"log"})
    first = register_run(connection, spec, ModelRequest(name))
    second = register_run(connection, spec, ModelRequest(name))
    assert (first.new, second.new, second.version) == (True, False, first.version)
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name, path="*.bin")
    assert caught.value.code == "R-MODEL-OTHER-FILES"
    assert register(connection, make({"model.bin": b"model"}), name) == 2


def test_ten_concurrent_registrations_of_a_run_create_one_version(
    connection: Connection, make: Make, name: str
) -> None:
    spec = make({f"{n}.bin": bytes([n]) * 1000 for n in range(5)})
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(register(connection, spec, name)))
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 10
    assert open_model_registry(connection, name).numbers() == [1]


def test_best_version_is_chosen_by_the_primary_metric_ignoring_nan(
    connection: Connection, make: Make, name: str
) -> None:
    for value in (0.5, 0.9, "NaN", 0.7, "Infinity"):
        register(connection, make({"m": str(value).encode()}, acc=value), name)
    assert find_version(connection, f"{name}@best").version == 2
    assert find_version(connection, name).version == 5
    best = {model.name: model.best for model in list_models(connection)}[name]
    assert best is not None
    assert best.aliases == ("best",)


def test_alias_can_move_and_blocks_removal_of_its_version(
    connection: Connection, make: Make, name: str
) -> None:
    for text in (b"1", b"2"):
        register(connection, make({"same": b"both have it", "own": text}), name)
    assert set_alias(connection, f"{name}@1", "production")[1] is None
    assert set_alias(connection, f"{name}@2", "@production")[1] == 1
    assert find_version(connection, f"{name}@production").version == 2
    with pytest.raises(RunnerError) as caught:
        drop_alias(connection, f"{name}@1", "production")
    assert caught.value.code == "R-MODEL-ALIAS-MOVED"
    model = load_model(connection, name)
    with pytest.raises(RunnerError) as caught:
        remove_versions(connection, model, [2], force=False)
    assert caught.value.code == "R-MODEL-IN-USE"
    removed = remove_versions(connection, model, [2], force=True)
    assert (removed.versions, removed.files) == ((2,), 1), "what both have stays"
    assert find_version(connection, name).version == 1
    with pytest.raises(RunnerError) as caught:
        find_version(connection, f"{name}@2")
    assert caught.value.code == "R-MODEL-DELETED"
    with pytest.raises(RunnerError, match="@7 not found") as caught:
        find_version(connection, f"{name}@7")
    assert caught.value.why == f"the newest is {name}@1", "not the one that was removed"
    with pytest.raises(RunnerError):
        drop_alias(connection, name, "production")
    assert register(connection, make({"own": b"3"}), name) == 3, "numbers are not given again"


def test_removed_version_is_registered_again_only_manually(
    connection: Connection, make: Make, name: str
) -> None:
    spec = make({"own": b"1"})
    register(connection, spec, name)
    remove_versions(connection, load_model(connection, name), [1], force=False)
    assert register_run(connection, spec, ModelRequest(name)).deleted
    assert register_run(connection, spec, ModelRequest(name), anew=True).version == 2
    assert find_version(connection, name).version == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(None, "R-MODEL-RUN"), ("failed", "R-MODEL-RUN"), ("cancelled", "R-MODEL-RUN")],
)
def test_unsuccessful_run_is_refused(
    connection: Connection, make: Make, name: str, status: str | None, code: str
) -> None:
    spec = make({"m": b"1"}, status=status)
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name)
    assert (caught.value.code, bool(caught.value.fix)) == (code, True)
    assert open_model_registry(connection, name).numbers() == []


def test_missing_and_changed_files_are_refused(
    connection: Connection, make: Make, name: str, runs: BlobContainer
) -> None:
    spec = make({"m.bin": b"1"})
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name, path="*.keras")
    assert "m.bin" in caught.value.why
    blob = RunPaths(spec.run_id).output(1) + "m.bin"
    runs.delete(blob)
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name)
    assert caught.value.code == "R-MODEL-CHANGED"
    runs.create_bytes(blob, b"2", "x/y")
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name)
    assert caught.value.code == "R-MODEL-CHANGED"
    assert open_model_registry(connection, name).numbers() == []


def test_version_of_a_newer_format_is_reported_and_stops_registration(
    connection: Connection, make: Make, name: str
) -> None:
    spec = make({"m.bin": b"1"})
    store = ModelContainer(connection)
    store.create(ModelBlobs(name).version(1), model_document_bytes({"format": 2, "surprise": True}))
    with pytest.raises(RunnerError) as caught:
        register(connection, spec, name)
    assert caught.value.code == "R-MODEL-FORMAT"
    model = load_model(connection, name)
    assert "format 2" in model.versions[0].problem
    with pytest.raises(RunnerError) as caught:
        find_version(connection, name)
    assert caught.value.code == "R-MODEL-UNREADABLE"


def test_lost_file_is_restored_by_registering_again(
    connection: Connection, make: Make, name: str, tmp_path: Path
) -> None:
    spec = make({"m.bin": b"1"})
    register(connection, spec, name)
    version = find_version(connection, name)
    store = ModelContainer(connection)
    [blob] = store.list(ModelBlobs(name).files)
    assert store.delete(blob.name, blob.etag)
    with pytest.raises(RunnerError) as caught:
        download_files(connection, version, tmp_path / "m", ignore_progress)
    assert caught.value.code == "R-MODEL-HASH"
    assert spec.run_id in caught.value.fix
    assert content(tmp_path) == {}
    register(connection, spec, name)
    assert download_files(connection, version, tmp_path / "m", ignore_progress).downloaded == 1


def test_existing_file_is_replaced_only_with_force(
    connection: Connection, make: Make, name: str, tmp_path: Path
) -> None:
    register(connection, make({"a": b"1", "b": b"2"}), name)
    version = find_version(connection, name)
    (tmp_path / "b").write_bytes(b"mine")
    with pytest.raises(RunnerError) as caught:
        download_files(connection, version, tmp_path, ignore_progress)
    assert caught.value.code == "R-MODEL-OVERWRITE"
    assert content(tmp_path) == {"b": b"mine"}
    download_files(connection, version, tmp_path, ignore_progress, force=True)
    assert content(tmp_path) == {"a": b"1", "b": b"2"}


def test_interrupted_download_resumes_in_small_ranges(
    connection: Connection,
    make: Make,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blobs, "BLOCK_BYTES", 10_000)
    data = bytes(range(251)) * 1000
    register(connection, make({"m.bin": data}), name)
    version = find_version(connection, name)
    part = part_of(tmp_path / "m.bin", hashlib.sha256(data).hexdigest())
    part.write_bytes(data[:123_456])
    reads: list[int] = []
    read_range: Any = BlobStore._read_range

    def counted(self: BlobStore, file: StoredFile, first: int, length: int) -> bytes:
        reads.append(first)
        return read_range(self, file, first, length)

    monkeypatch.setattr(BlobStore, "_read_range", counted)
    seen: list[Progress] = []
    download_files(connection, version, tmp_path, seen.append)
    assert min(reads) == 123_456
    assert content(tmp_path) == {"m.bin": data}
    assert (seen[-1].state, seen[-1].done) == ("end", len(data))
    (tmp_path / "m.bin").unlink()
    for repeats in (10_000, 100_000):  # shorter and longer than the file
        part.write_bytes(b"something else" * repeats)
        download_files(connection, version, tmp_path, ignore_progress)
        assert content(tmp_path) == {"m.bin": data}
        (tmp_path / "m.bin").unlink()


def test_download_continues_while_the_content_is_registered_again(
    connection: Connection,
    make: Make,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blobs, "BLOCK_BYTES", 100_000)
    data = bytes(range(251)) * 1000
    register(connection, make({"m.bin": data}), name)
    version = find_version(connection, name)
    store = ModelContainer(connection)
    [blob] = store.list(ModelBlobs(name).files)
    read_range: Any = BlobStore._read_range

    def touching(self: BlobStore, file: StoredFile, first: int, length: int) -> bytes:
        assert store.touch(blob.name)
        return read_range(self, file, first, length)

    monkeypatch.setattr(BlobStore, "_read_range", touching)
    download_files(connection, version, tmp_path, ignore_progress)
    assert content(tmp_path) == {"m.bin": data}


def test_concurrent_downloads_to_one_folder_do_not_mix(
    connection: Connection, make: Make, name: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 20_000
    register(connection, make({"m.bin": data}), name)
    version = find_version(connection, name)
    failed: list[Exception] = []

    def fetch() -> None:
        try:
            download_files(connection, version, tmp_path, ignore_progress, force=True)
        except RunnerError as err:
            failed.append(err)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert content(tmp_path) == {"m.bin": data}


def test_hostile_path_and_link_are_refused(
    connection: Connection, make: Make, name: str, tmp_path: Path
) -> None:
    spec = make({"link/x": b"1"})
    register(connection, spec, name)
    version = find_version(connection, name)
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(RunnerError) as caught:
        download_files(connection, version, folder, ignore_progress, force=True)
    assert caught.value.code == "R-MODEL-PATH"
    document = json.loads(json.dumps(version.document))
    document["files"][0]["path"] = "../../outside"
    hostile = type(version)(name, 1, document)
    with pytest.raises(RunnerError) as caught:
        download_files(connection, hostile, folder, ignore_progress)
    assert caught.value.code == "R-MODEL-PATH"


def test_large_file_is_copied_in_blocks_by_the_service(
    connection: Connection, make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.azure.storage.model_container.COPY_BLOCK_BYTES", 100_000)
    data = bytes(range(256)) * 1000
    spec = make({"m.bin": data})
    register(connection, spec, name)
    sha256 = hashlib.sha256(data).hexdigest()
    assert ModelContainer(connection).digest(ModelBlobs(name).file(sha256)) == (len(data), sha256)
    assert models.COPY_BLOCK_BYTES == 64 * 1024 * 1024


def agents_view(connection: Connection, *specs: RunSpec) -> tuple[ContainerClient, ContainerClient]:
    """Return the containers with the access of the tasks of these runs."""
    scopes = sum((storage_scopes(spec.to_json()) for spec in specs), StorageScopes(()))
    storage = connection.node_storage(scopes, timedelta(hours=1))
    access = {"RUNNER_STORAGE": json.dumps(storage)}
    runs = load_access(access, RetryBudget(20.0), Redactor()).runs
    models = load_models(access, RetryBudget(20.0))
    assert models is not None
    return runs, models


def test_agents_and_clients_registering_one_run_create_one_version(
    connection: Connection, make: Make, name: str, runs: BlobContainer, tmp_path: Path
) -> None:
    files = {"model.bin": bytes(range(256)) * 300, "empty": b"", "log": b"x"}
    asked = {"name": name, "aliases": ["next"], "path": None}
    spec = make(files, model=asked, acc=1.0)

    def agent() -> None:
        settle_agent(*agents_view(connection, spec), RunPaths(spec.run_id), Redactor())

    def person() -> None:
        ensure_registered(connection, spec)

    threads = [threading.Thread(target=body) for body in (agent, person, agent, agent, person)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model = load_model(connection, name)
    assert [version.version for version in model.versions] == [1]
    assert model.versions[0].aliases == ("latest", "best", "next")
    assert [str(found) for found in describe_models(connection, spec)] == [f"{name}@1"]
    download_files(connection, find_version(connection, name), tmp_path, ignore_progress)
    assert content(tmp_path) == files


def test_agent_copies_large_files_in_blocks(
    connection: Connection, make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "COPY_BLOCK_BYTES", 100_000)
    data = bytes(range(256)) * 1000
    spec = make({"ä b%20#?.bin": data}, model={"name": name})
    settle_agent(*agents_view(connection, spec), RunPaths(spec.run_id), Redactor())
    [file] = find_version(connection, name).files
    assert (file["path"], file["size_bytes"]) == ("ä b%20#?.bin", len(data))
    assert ModelContainer(connection).digest(file["blob"]) == (len(data), file["sha256"])


def test_killed_copy_is_completed_by_agent_or_client(
    connection: Connection, make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"name": name}
    first, second = (make({"m.bin": text * 100}, model=asked) for text in (b"1", b"2"))
    runs, models = agents_view(connection, first, second)
    sent = models.transport.send

    def dies_before_the_commit(method: str, blob: str, **more: Any) -> Any:
        if (more.get("query") or {}).get("comp") == "blocklist":
            raise KeyboardInterrupt
        return sent(method, blob, **more)

    def source(spec: RunSpec) -> str:
        return RunPaths(spec.run_id).output(1) + "m.bin"

    def blob(content: bytes) -> str:
        return ModelBlobs(name).file(hashlib.sha256(content).hexdigest())

    monkeypatch.setattr(models.transport, "send", dies_before_the_commit)
    with pytest.raises(KeyboardInterrupt):
        AgentModelStore(models, runs).copy(source(first), blob(b"1" * 100), 100, replace=False)
    assert register(connection, first, name) == 1
    monkeypatch.setattr(models.transport, "send", sent)
    with monkeypatch.context() as patch:
        patch.setattr(BlobClient, "commit_block_list", lambda *_, **__: None)
        ModelContainer(connection).copy(source(second), blob(b"2" * 100), 100, replace=False)
    assert AgentModelStore(models, runs).copy(source(second), blob(b"2" * 100), 100, replace=False)
    assert register(connection, second, name) == 2


def test_failed_registration_is_explained_and_can_be_completed(
    connection: Connection, make: Make, name: str, runs: BlobContainer
) -> None:
    spec = make({"m": b"1"}, model={"name": name})
    assert "did not register it" in str(describe_models(connection, spec)[0])
    blob = RunPaths(spec.run_id).output(1) + "m"
    runs.delete(blob)
    settle_agent(*agents_view(connection, spec), RunPaths(spec.run_id), Redactor())
    [found] = describe_models(connection, spec)
    assert (found.version, "changed or deleted" in found.problem) == (None, True)
    settled = ensure_registered(connection, spec)
    assert settled is not None
    assert settled.version is None
    runs.create_bytes(blob, b"1", "x/y")
    register_run(connection, spec, ModelRequest(name))
    assert [str(model) for model in describe_models(connection, spec)] == [f"{name}@1"]
    remove_versions(connection, load_model(connection, name), [1], force=False)
    assert [str(m) for m in describe_models(connection, spec)] == [f"{name}@1 (deleted)"]


def test_default_request_equals_the_registration_of_the_agent(make: Make, name: str) -> None:
    spec = make({"m": b"1"}, model={"name": name, "aliases": ["next"], "path": "m*"})
    assert default_request(spec, None, None, (), "") == ModelRequest(name, ("next",), "m*")
    assert default_request(spec, "other", None, (), "") == ModelRequest("other")
    assert (
        draft_version(
            ModelRequest(name, (), "m*"),
            spec.raw,
            {"outputs": []} | {"outputs": [{"path": "m", "size_bytes": 1, "sha256": "0" * 64}]},
        )["name"]
        == name
    )

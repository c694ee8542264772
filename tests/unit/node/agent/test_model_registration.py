"""The agent and the registry of models: a good run stays good."""

from __future__ import annotations

import json
import math
import time

import pytest

from runner.node.agent import model_registration
from runner.node.agent.model_registration import AgentModelStore, register_model
from runner.node.script.redaction import Redactor
from runner.node.storage.auth import ManagedIdentityCredential, SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageUnreachableError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.models import (
    ModelError,
    ModelRequest,
    check_alias,
    check_name,
    draft_version,
    model_document_bytes,
    parse_aliases,
    parse_version,
    parse_version_summary,
)
from runner.protocol.paths import RunPaths, is_selected_output
from tests.repetition import slow_after
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import CONTAINER, FakeBlobs
from tests.unit.node.races import output

SCRIPT = """
import os, pathlib
(pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"]) / "model").write_text("model")
"""


@pytest.mark.slow
def test_run_without_access_to_models_succeeds_with_a_notice(task: Task) -> None:
    task.submit(SCRIPT, model={"name": "cats", "aliases": [], "path": None})
    assert task.run() == 0
    assert task.json("result.json")["status"] == "succeeded"
    record = task.json("models/cats.json")
    assert record["version"] is None
    assert "no access" in record["problem"]
    assert record["fix"] == f"runner models register {RUN}"
    last = task.lines("attempts/1/events.jsonl")[-1]
    assert (last["stage"], last["state"], last["message"]) == ("model", "failed", record["problem"])
    assert task.run() == 0, "and again, as Batch may start it"


@pytest.mark.parametrize(
    ("run", "measured", "ranked"),
    [
        ({"metrics": {"primary": "acc", "goal": "max"}}, {"acc": 1, "loss": 2}, ("acc", "max")),
        (
            {"trial": {"metric": "regret", "goal": "min"}},
            {"loss": 1, "regret": 2},
            ("regret", "min"),
        ),
        (
            {"trial": {"metric": "regret", "goal": "min"}, "metrics": {"primary": "acc"}},
            {"acc": 1},
            ("acc", "max"),
        ),
        ({"trial": {"metric": "regret"}}, {"loss": 1}, ("regret", "max")),
        ({}, {"Batch size": 32, "val_loss": 1}, ("val_loss", "min")),
        ({"params": {"score": 1}}, {"score": 1}, (None, "max")),
        ({}, {}, (None, "max")),
    ],
)
def test_version_is_ranked_by_the_metric_of_its_sweep_its_recipe_or_a_clear_one(
    run: dict[str, object], measured: dict[str, float], ranked: tuple[str | None, str]
) -> None:
    file = {"path": "m", "size_bytes": 1, "sha256": "a" * 64}
    result = {"outputs": [file], "metrics": measured}
    document = draft_version(ModelRequest("cats"), {"run_id": "r", **run}, result)
    assert (document["primary_metric"], document["goal"]) == ranked
    chosen = ModelRequest("cats", ranked_by=("time", "min"))
    document = draft_version(chosen, {"run_id": "r", **run}, result)
    assert (document["primary_metric"], document["goal"]) == ("time", "min")


@pytest.mark.parametrize(
    "wrong", slow_after(1, [{"name": "No Name"}, {"nothing": 1}, "cats", [1], 7])
)
def test_run_with_an_invalid_request_succeeds(task: Task, wrong: object) -> None:
    task.submit(SCRIPT, model=wrong)
    assert task.run() == 0
    assert task.json("result.json")["status"] == "succeeded"


def test_failed_run_registers_no_model(task: Task) -> None:
    task.submit("raise SystemExit(3)", model={"name": "cats"})
    assert task.run() == 3
    assert not task.has("models/cats.json")


@pytest.mark.slow
def test_reproduction_registers_no_model(task: Task) -> None:
    task.submit(SCRIPT, model={"name": "cats", "aliases": ["production"], "register": False})
    assert task.run() == 0
    assert task.json("result.json")["status"] == "succeeded"
    assert not task.has("models/cats.json")


def test_copy_requests_authorize_their_source(
    service: FakeBlobs, retry_budget: RetryBudget
) -> None:
    signed = Transport(service.url, SasCredential("sv=1&sig=s"), retry_budget).copy_source(
        "r/ä b?#"
    )
    assert signed == {"x-ms-copy-source": f"{service.url}/r/%C3%A4%20b%3F%23?sv=1&sig=s"}
    host = service.url.removesuffix(CONTAINER)
    identity = ManagedIdentityCredential("client", f"{host}/metadata/token")
    named = Transport(service.url, identity, retry_budget).copy_source("r/x")
    assert named["x-ms-copy-source"] == f"{service.url}/r/x"
    assert named["x-ms-copy-source-authorization"].startswith("Bearer token-")


def test_copy_without_progress_ends_within_its_own_limit(
    service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_registration, "COPY_RETRY_S", 0.5)
    container = ContainerClient(Transport(service.url, SasCredential("s"), RetryBudget(600.0)))
    service.faults.extend([500] * 1000)  # the service cannot read the source, but answers
    started = time.monotonic()
    with pytest.raises(StorageUnreachableError):
        AgentModelStore(container, container).copy("run/output/a", "cats/a", 5, replace=False)
    assert time.monotonic() - started < 300
    service.faults.clear()
    service.faults.extend([500, 503])
    service.put("run/output/a", b"model")
    assert AgentModelStore(container, container).copy("run/output/a", "cats/a", 5, replace=False)


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "a.b", "a" * 64, "ä", "a@3", "a\n"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_name(name)
    assert caught.value.fix


@pytest.mark.parametrize("alias", ["", "latest", "best", "3", "A", "a" * 64, "a\n"])
def test_invalid_alias_is_refused(alias: str) -> None:
    with pytest.raises(ModelError):
        check_alias(alias)


def test_request_without_valid_name_or_alias_is_refused() -> None:
    for wrong in ({"aliases": []}, "cats", [1], {"name": "cats", "aliases": ["best"]}):
        with pytest.raises(ModelError):
            ModelRequest.from_json(wrong).check()


def test_outputs_are_chosen_by_path_glob_or_folder() -> None:
    outputs = [output(path, b"x") for path in ("model.bin", "sub/a", "sub/b", "subs")]

    def chosen(path: str | None) -> list[str]:
        return [file["path"] for file in outputs if is_selected_output(file["path"], path)]

    assert chosen(None) == ["model.bin", "sub/a", "sub/b", "subs"]
    assert chosen("model*") == ["model.bin"]
    assert chosen("sub") == chosen("sub/") == ["sub/a", "sub/b"]
    assert chosen("sub/b") == ["sub/b"]
    assert chosen("[") == []
    with pytest.raises(ModelError) as caught:
        draft_version(ModelRequest("cats", (), "x*"), {"run_id": "r"}, {"outputs": outputs})
    assert "model.bin" in caught.value.why


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"path": "a", "size_bytes": 1, "sha256": "short", "blob": "b"}]},
        {"files": [{"path": 3, "size_bytes": 1, "sha256": "0" * 64, "blob": "b"}]},
        {"files": None},
        {"version": "1"},
        {"run_id": None},
        {"format": 2},
        {"format": None},
        {"format": math.inf},
        {"created": "yesterday"},
        {"created": 7},
        {"metrics": [1]},
        {"primary_metric": ["loss"]},
    ],
)
def test_damaged_or_newer_version_is_refused(change: dict[str, object]) -> None:
    good = {"format": 1, "name": "cats", "version": 1, "run_id": "r", "files": []}
    assert parse_version(model_document_bytes(good), "b")["version"] == 1
    with pytest.raises(ModelError):
        parse_version(model_document_bytes({**good, **change}), "b")


def test_secret_in_a_registration_problem_is_redacted(
    service: FakeBlobs, retry_budget: RetryBudget
) -> None:
    redactor = Redactor()
    redactor.add("hunter2-hunter2")
    runs = ContainerClient(Transport(service.url, SasCredential("s"), retry_budget))
    run = {"run_id": RUN, "model": {"name": "hunter2-hunter2"}}
    service.put(f"{RUN}/run.json", json.dumps(run).encode())
    result = {"status": "succeeded", "attempt": 1, "outputs": [{"path": "hunter2-hunter2"}]}
    service.put(f"{RUN}/result.json", json.dumps(result).encode())
    register_model(runs, None, RunPaths(RUN), redactor)
    events = service.text(f"{RUN}/attempts/1/events.jsonl")
    assert "registering the model ***" in events
    assert "hunter2" not in events


@pytest.mark.parametrize("entry", [[1], 3, {"version": "2"}, {"version": 1, "applied": math.inf}])
def test_damaged_alias_is_reported_by_its_document(entry: object) -> None:
    body = model_document_bytes({"format": 1, "aliases": {"prod": entry}})
    with pytest.raises(ModelError, match=r"cats/aliases\.json cannot be read"):
        parse_aliases(body, "cats/aliases.json")


@pytest.mark.parametrize("change", [{"created": 7}, {"metrics": [1]}, {"file_count": None}])
def test_invalid_summary_is_ignored(change: dict[str, object]) -> None:
    good = {"format": 1, "run_id": "r", "size_bytes": 5, "file_count": 1, "metrics": {"loss": 1}}
    assert parse_version_summary(json.dumps(good)) == good
    assert parse_version_summary(json.dumps({**good, **change})) is None

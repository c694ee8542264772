"""Which variables a record may make a person send."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.progress import ignore_progress
from runner.flows.submit import consent, reproduce
from runner.flows.submit.consent import Consent, remember
from runner.flows.submit.pipeline import RepeatRequest
from runner.protocol.codec import DAMAGED
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpec
from tests.unit.core.recipe_maker import outputs

pytestmark = pytest.mark.attack

RECORD: dict[str, Any] = {
    "run_id": "mnist-1",
    "experiment": "mnist",
    "created": "2026-11-20T10:00:00+00:00",
    "code": {"sha256": "a" * 64, "size_bytes": 1},
    "agent": {"sha256": "b" * 64},
    "command": ["python", "train.py", "--to", "https://mine"],
    "params": {"lr": 0.1},
    "secrets": ["TOKEN"],
    "secret_refs": {"TOKEN": {"env": "MY_TOKEN"}},
    "batch": {"pool": "local", "job_id": "job", "task_id": "mnist-1"},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def connection() -> Connection:
    return Connection(outputs(), {})


def spec(**changes: Any) -> RunSpec:
    return RunSpec.from_json(json.loads(json.dumps({**RECORD, **changes})))


def is_refused(connection: Connection, run: RunSpec, agreed: Consent = consent.NOTHING) -> bool:
    try:
        agreed.require(connection, run)
    except RunnerError as err:
        return err.code == "R-SECRET-SEND"
    return False


def test_own_submission_is_repeated_without_a_question(connection: Connection, home: Path) -> None:
    assert is_refused(connection, spec())
    remember(connection, [spec()])
    assert not is_refused(connection, spec())
    # The same from another run, a schedule, or after a move of its job.
    moved = {"pool": "local", "job_id": "other", "task_id": "x"}
    assert not is_refused(connection, spec(run_id="mnist-2", batch=moved, unknown=1))
    assert stat.S_IMODE((home / "submissions").stat().st_mode) == 0o600
    (home / "submissions").unlink()
    assert is_refused(connection, spec())


@pytest.mark.parametrize(
    "changes",
    [
        {"secret_refs": {"TOKEN": {"env": "AZURE_CLIENT_SECRET"}}},
        {"secret_refs": {"TOKEN": {"env": "MY_TOKEN"}, "B": {"env": "OTHER"}}},
        {"secret_refs": {"OTHER": {"env": "MY_TOKEN"}}},
        {"code": {"sha256": "c" * 64, "size_bytes": 1}},
        {"command": ["python", "train.py", "--to", "https://theirs"]},
        {"params": {"lr": 0.2}},
        {"template": ["--to", None]},
        {"env": {"HTTPS_PROXY": "https://theirs"}},
        {"packages": ["theirs"]},
        {"requirements": {"file": "r.txt", "sha256": "c" * 64}},
        {"requirements": {"constraints": ["numpy @ https://theirs/numpy.whl"]}},
        {"requirements": {"file": "theirs.txt"}},
        {"image": {"name": "theirs"}},
        {"prepare": "curl https://theirs"},
        {"inputs": {"x": {"kind": "url", "url": "https://theirs"}}},
        {"data": {"name": "x", "prefix": "y/", "files": []}},
        {"resume_from": {"run_id": "theirs", "checkpoint": 1}},
        {"launcher": "mpi"},
        {"batch": {**RECORD["batch"], "pool": "theirs"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_changed_record_is_refused(changes: dict[str, Any], connection: Connection) -> None:
    remember(connection, [spec()])
    assert is_refused(connection, spec(**changes))


def test_run_that_moved_in_its_list_of_pools_is_known(connection: Connection) -> None:
    def in_pool(pool: str, *pools: str) -> RunSpec:
        rule = {"pools": list(pools), "after_s": 60, "evictions": 3}
        return spec(batch={**RECORD["batch"], "pool": pool, "fallback": rule})

    remember(connection, [in_pool("spot", "spot", "t4", "a100")])
    assert not is_refused(connection, in_pool("a100", "spot", "t4", "a100"))
    assert is_refused(connection, in_pool("theirs", "spot", "t4", "a100"))
    assert is_refused(connection, in_pool("theirs", "spot", "t4", "theirs"))


@pytest.mark.parametrize("name", ["storage_account", "blob_endpoint", "batch_endpoint"])
def test_same_record_in_another_account_is_refused(name: str, connection: Connection) -> None:
    remember(connection, [spec()])
    other = Connection(replace(connection.outputs, **{name: "https://theirs"}), {})
    assert is_refused(other, spec())


def test_only_named_variables_are_sent_without_a_question(connection: Connection) -> None:
    both = spec(secret_refs={"TOKEN": {"env": "MY_TOKEN"}, "B": {"env": "OTHER"}})
    assert is_refused(connection, both, Consent(frozenset({"MY_TOKEN"})))
    assert not is_refused(connection, both, Consent(frozenset({"MY_TOKEN", "OTHER"})))


def test_question_names_the_variables_and_is_asked_once_per_sweep(connection: Connection) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return "OTHER" not in question

    agreed = Consent((), ask, "runner retry mnist-1", lambda: "no", "sweep-1")
    for run_id in ("a", "b"):
        assert not is_refused(connection, spec(run_id=run_id, group="sweep-1"), agreed)
    assert len(asked) == 1
    assert "$MY_TOKEN" in asked[0]
    with pytest.raises(RunnerError) as caught:
        agreed.require(connection, spec(group="sweep-1", secret_refs={"T": {"env": "OTHER"}}))
    assert "runner retry mnist-1 --send-env OTHER" in caught.value.fix


def test_answer_for_a_run_is_none_for_another_that_claims_its_group(connection: Connection) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return question.startswith("mine ")

    agreed = Consent(ask=ask, again="runner retry {run}", why=lambda: "no")
    assert not is_refused(connection, spec(run_id="mine", group="sweep-1"), agreed)
    theirs = spec(run_id="theirs", group="sweep-1", command=["curl", "https://theirs"])
    with pytest.raises(RunnerError) as caught:
        agreed.require(connection, theirs)
    assert "runner retry theirs --send-env MY_TOKEN" in caught.value.fix
    assert len(asked) == 2


def test_every_value_of_a_record_that_a_node_reads_is_a_part_of_the_digest(
    connection: Connection,
) -> None:
    """For each key, also in parts of the document: another value is refused, or means the same."""
    model = {"name": "m", "version": 1}
    whole = spec(
        model=model,
        data={"name": "x", "prefix": "y/", "files": [{"name": "a", "size_bytes": 1}]},
        requirements={"file": "r", "sha256": "s", "constraints": ["a==1"]},
        image={"name": "i"},
        resume_from={"run_id": "a", "checkpoint": 1},
    )
    remember(connection, [whole])
    checked = 0
    for path in _paths({**whole.to_json(), **dict.fromkeys(("prepare", "launcher"))}):
        for value in (
            "theirs",
            ["theirs"],
            {"file": "theirs"},
            {"constraints": ["a @ b"]},
            7,
            None,
        ):
            try:
                changed = RunSpec.from_json(_changed(whole.to_json(), path, value))
                refused = is_refused(connection, changed)
            except DAMAGED:  # it cannot be read, and is not submitted
                continue
            checked += 1
            same = {
                f.name
                for f in fields(RunSpec)
                if getattr(changed, f.name) != getattr(whole, f.name)
            }
            assert refused or same <= {*consent._IDENTITY}, (path, value, same)
    assert checked > 100


def _paths(document: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        if (*above, key)[0] not in ("secrets", "secret_refs"):
            yield (*above, key)
            if isinstance(value, dict):
                yield from _paths(value, (*above, key))


def _changed(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(document))
    part = copy
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return copy


def test_reproduction_takes_versions_only(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {
        **{"numpy": "2.1.0+cpu", "a-b.c": "1!2.0.dev1"},
        **{"numpy @ https://theirs/numpy.whl #": "1", "x\n-e https://theirs\ny": "1", "z": "1 # "},
        **{"q": ["1"], "--index-url": "https://theirs"},
    }
    requests: list[RepeatRequest] = []
    monkeypatch.setattr(reproduce, "load_environment", lambda *_: {"packages": packages})
    monkeypatch.setattr(reproduce, "submit_again", lambda _, request, __: requests.append(request))
    reproduce.reproduce_run(connection, spec(), None, ignore_progress)
    assert requests[0].asked.constraints == ("numpy==2.1.0+cpu", "a-b.c==1!2.0.dev1")


def test_run_without_variables_asks_nothing(connection: Connection) -> None:
    vault = {"TOKEN": {"keyvault": "https://v.vault.azure.net/secrets/x"}}
    assert not is_refused(connection, spec(secret_refs=vault))
    assert not is_refused(connection, spec(secrets=[], secret_refs={}))


def test_file_of_submissions_does_not_grow_without_end(
    connection: Connection, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, "_LARGEST_BYTES", 650)
    for number in range(40):
        remember(connection, [spec(params={"lr": number})])
    assert (home / "submissions").stat().st_size <= 650
    assert not is_refused(connection, spec(params={"lr": 39}))
    assert is_refused(connection, spec(params={"lr": 0}))


def test_link_in_place_of_the_file_is_not_followed(connection: Connection, home: Path) -> None:
    home.mkdir()
    (home / "submissions").symlink_to(home / "elsewhere")
    remember(connection, [spec()])
    assert not (home / "elsewhere").exists()


@pytest.mark.parametrize(
    ("own_notify", "asked"), [(False, "$HOOK, $MY_TOKEN"), (True, "$MY_TOKEN")]
)
def test_named_webhook_replaces_that_of_the_record_but_no_secret(
    connection: Connection, own_notify: bool, asked: str
) -> None:
    run = spec(notify={"url": {"env": "HOOK"}})
    with pytest.raises(RunnerError) as caught:
        consent.NOTHING.require(connection, run, own_notify=own_notify)
    assert caught.value.what.endswith(f": {asked}")
    same = spec(notify={"url": {"env": "MY_TOKEN"}})
    with pytest.raises(RunnerError):
        consent.NOTHING.require(connection, same, own_notify=True)
    consent.NOTHING.require(
        connection,
        spec(notify=same.to_json()["notify"], secret_refs={}, secrets=[]),
        own_notify=True,
    )

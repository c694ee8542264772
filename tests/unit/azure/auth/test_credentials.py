from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from azure.core.credentials import TokenCredential
from azure.storage.blob import BlobServiceClient, UserDelegationKey

from runner.azure.auth.credentials import STORAGE_SCOPE, CachedTokens, Connection, connect
from runner.contract import SHARED_TEAM, StackOutputs, TeamOutput
from runner.core.home import HomePaths
from runner.core.planning.plan import StorageScopes
from runner.core.settings import AZURE, Settings, load_settings
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import ExitCode, RunnerError
from tests.unit.azure.auth.fake_credential import FakeCredential

KEY = base64.b64encode(b"k" * 64).decode()
HOUR = timedelta(hours=1)


@pytest.fixture
def outputs() -> StackOutputs:
    return local_outputs(LocalState(batch_port=1111, blob_port=2222, nodes=1, slots=1))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    env = {"RUNNER_HOME": str(tmp_path / "home"), "RUNNER_CONFIG": str(tmp_path / "none.yaml")}
    (tmp_path / "none.yaml").touch()
    return load_settings({}, cwd=tmp_path, env=env)


@pytest.fixture
def local(settings: Settings, outputs: StackOutputs) -> Connection:
    paths = HomePaths(settings.home)
    paths.local.mkdir(parents=True)
    paths.local_outputs.write_text(outputs.to_json())
    paths.keys.write_text(json.dumps({"batch": KEY, "storage": KEY}))
    return connect(settings)


def test_local_nodes_get_a_signature_for_their_scopes_that_expires(local: Connection) -> None:
    scopes = StorageScopes(("rlaw~r-1/", "w=index/r-1"), ("r~mnist/1/",), inputs={"own": ("r~x/",)})
    storage = local.node_storage(scopes, HOUR)
    assert storage["identity_client_id"] is None
    assert storage["runs"]["url"] == "http://127.0.0.1:2222/runnerlocal/runs"
    assert storage["inputs"]["own"]["url"] == "http://127.0.0.1:2222/runnerlocal/own"
    entries = (storage["runs"], storage["data"], storage["models"], storage["inputs"]["own"])
    signed = [parse_qs(one["sas"], keep_blank_values=True) for one in entries]
    shown = ["rlaw~r-1/,w=index/r-1", "r~mnist/1/", "", "r~x/"]
    assert [one["scope"][0] for one in signed] == shown
    assert len({one["sig"][0] for one in signed}) == 4
    ends = datetime.fromisoformat(signed[0]["se"][0])
    assert timedelta(minutes=59) < ends - datetime.now(UTC) <= HOUR


def test_local_resource_file_has_a_read_sas_of_one_blob(local: Connection) -> None:
    file = local.resource_file("code/abc", "code.tar.gz", HOUR)
    url = urlsplit(file.http_url or "")
    assert url.path == "/runnerlocal/code/code/abc"
    assert parse_qs(url.query)["sp"] == ["r"]
    assert parse_qs(url.query)["sr"] == ["b"]
    assert file.identity_reference is None


@pytest.mark.attack
def test_access_of_a_run_contains_no_signature_for_code(local: Connection) -> None:
    assert "/runnerlocal/code" not in json.dumps(local.node_storage(StorageScopes(()), HOUR))
    adds_tasks = StorageScopes((), code=("r=code/abc",))
    signed = local.node_storage(adds_tasks, HOUR)["code"]["sas"]
    assert parse_qs(signed)["scope"] == ["r=code/abc"]


def test_outputs_of_version_1_refuse_submissions_with_a_fix(outputs: StackOutputs) -> None:
    old = replace(outputs, container_code=None, contract_version=1)
    deployed = replace(old, location="eastus")
    keys = {"batch": KEY, "storage": KEY}
    for found, fix in (
        (Connection(old, keys), "runner local up"),
        (Connection(deployed, None), "runner up"),
    ):
        with pytest.raises(RunnerError) as caught:
            found.resource_file("code/abc", "code.tar.gz", HOUR)
        assert (caught.value.code, caught.value.fix) == ("R-STACK-NO-CODE", fix)


def test_signed_url_reads_one_blob_whatever_its_name(local: Connection) -> None:
    name = "r/a b#1 50%25 grüße?.txt"
    expiry = datetime.now(UTC) + HOUR
    url = urlsplit(local.sign_reads("runs", expiry)(name))
    signed = parse_qs(url.query)
    assert unquote(url.path) == f"/runnerlocal/runs/{name}"
    assert (signed["sp"], signed["sr"]) == (["r"], ["b"])
    assert datetime.fromisoformat(signed["se"][0]) == expiry.replace(microsecond=0)
    assert signed["rsct"] == ["text/plain; charset=utf-8"]


def test_azure_signs_all_urls_with_one_user_delegation_key(
    outputs: StackOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[datetime, datetime]] = []

    def give(_: Any, start: datetime, expiry: datetime) -> UserDelegationKey:
        asked.append((start, expiry))
        key = UserDelegationKey()
        key.signed_oid, key.signed_tid, key.signed_service = "user", "tenant", "b"
        key.signed_start, key.signed_expiry = start.isoformat(), expiry.isoformat()
        key.signed_version, key.value = "2025-01-05", KEY
        return key

    monkeypatch.setattr(BlobServiceClient, "get_user_delegation_key", give)
    azure = Connection(replace(outputs, blob_endpoint="https://a.blob.core.windows.net"), None)
    for lifetime in (HOUR, timedelta(days=7)):
        sign = azure.sign_reads("runs", datetime.now(UTC) + lifetime)
        signed = parse_qs(urlsplit(sign("r/model.bin")).query)
        assert sign("r/other.bin") != sign("r/model.bin")
        assert (signed["skoid"], signed["spr"]) == (["user"], ["https"])
        assert (signed["sp"], signed["sr"]) == (["r"], ["b"])
    assert len(asked) == 2
    assert all(expiry - start <= timedelta(days=7) for start, expiry in asked)
    assert asked[0][0] < datetime.now(UTC) - timedelta(minutes=4), "the clocks may differ"


def test_clients_are_created_once(local: Connection) -> None:
    assert local.batch_client() is local.batch_client()
    assert local.blob_service() is local.blob_service()
    assert local.blob_service().account_name == "runnerlocal"


def test_azure_nodes_use_their_identity_and_no_key(outputs: StackOutputs) -> None:
    azure = Connection(
        replace(outputs, identity_client_id="client", identity_resource_id="/id/of/it"), None
    )
    storage = azure.node_storage(StorageScopes(()), HOUR)
    assert storage["runs"]["sas"] is None
    assert storage["identity_client_id"] == "client"
    file = azure.resource_file("code/abc", "code.tar.gz", HOUR)
    assert "?" not in (file.http_url or "")
    assert file.identity_reference is not None
    assert file.identity_reference.resource_id == "/id/of/it"


def test_stack_without_identity_is_rejected(outputs: StackOutputs) -> None:
    with pytest.raises(RunnerError) as caught:
        Connection(outputs, None).node_storage(StorageScopes(()), HOUR)
    assert caught.value.code == "R-STACK-IDENTITY"


def test_missing_setup_names_the_command(settings: Settings) -> None:
    with pytest.raises(RunnerError) as caught:
        connect(settings)
    assert (caught.value.code, caught.value.fix) == ("R-STACK-MISSING", "runner local up")
    assert caught.value.exit_code == ExitCode.PREFLIGHT


def test_missing_or_damaged_keys_are_an_access_error(local: Connection, settings: Settings) -> None:
    assert local is not None
    for text in ("{", "[]", '{"batch": "x"}'):
        HomePaths(settings.home).keys.write_text(text)
        with pytest.raises(RunnerError) as caught:
            connect(settings)
        assert caught.value.exit_code == ExitCode.ACCESS


def test_damaged_outputs_name_the_field(local: Connection, settings: Settings) -> None:
    assert local is not None
    HomePaths(settings.home).local_outputs.write_text('{"location": 3}')
    with pytest.raises(RunnerError) as caught:
        connect(settings)
    assert caught.value.code == "R-STACK-OUTPUTS"
    assert caught.value.fix == "runner local up"
    assert "location" in caught.value.why


def test_outputs_of_a_later_version_ask_for_an_upgrade(
    local: Connection, settings: Settings
) -> None:
    assert local is not None
    HomePaths(settings.home).local_outputs.write_text('{"contract_version": 3}')
    with pytest.raises(RunnerError) as caught:
        connect(settings)
    assert caught.value.why == "contract_version is 3, this runner reads 2"
    assert "pip install --upgrade" in caught.value.fix


def cached(credential: FakeCredential) -> CachedTokens:
    return CachedTokens(cast("TokenCredential", credential))


def test_threads_and_clients_share_one_token() -> None:
    tokens = cached(FakeCredential())
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: tokens.get_token(STORAGE_SCOPE).token, range(100)))
    assert found == {"home-1"}
    assert tokens.get_token("https://batch.core.windows.net//.default").token == "home-2"


def test_expiring_or_refused_token_is_replaced() -> None:
    tokens = cached(FakeCredential(lifetime_s=200))
    assert [tokens.get_token("s").token for _ in range(2)] == ["home-1", "home-2"]
    credential = FakeCredential()
    tokens = cached(credential)
    assert tokens.get_token("s").token == "home-1"
    assert tokens.get_token("s", claims="c").token == "home-2"
    assert tokens.get_token("s").token == "home-2"
    assert credential.requests[1]["claims"] == "c"


@pytest.fixture
def with_teams(settings: Settings, outputs: StackOutputs) -> Settings:
    teams = tuple(
        TeamOutput(name, f"runs-{name}", f"models-{name}", f"code-{name}", f"{name}-id", f"/{name}")
        for name in ("vision", "audio")
    )
    path = HomePaths(settings.home).stack_outputs("dev")
    path.parent.mkdir(parents=True)
    deployed = replace(
        outputs,
        blob_endpoint="https://dev.blob.core.windows.net",
        identity_client_id="shared-id",
        teams=teams,
    )
    path.write_text(deployed.to_json())
    return replace(settings, target=AZURE)


@pytest.mark.attack
def test_nodes_of_a_team_get_only_its_identity_and_containers(with_teams: Settings) -> None:
    scopes = StorageScopes((), code=("r=code/abc",))
    storage = connect(replace(with_teams, team="vision")).node_storage(scopes, HOUR)
    kinds = ("runs", "models", "code", "data")
    names = [storage[kind]["url"].rpartition("/")[2] for kind in kinds]
    assert names == ["runs-vision", "models-vision", "code-vision", "data"]
    assert storage["identity_client_id"] == "vision-id"
    assert "audio" not in json.dumps(storage)
    shared = connect(with_teams).node_storage(StorageScopes(()), HOUR)
    assert shared["identity_client_id"] == "shared-id"
    assert "vision" not in json.dumps(shared)


@pytest.mark.parametrize("team", [None, "vision", SHARED_TEAM])
def test_connection_reaches_every_part_if_asked(with_teams: Settings, team: str | None) -> None:
    parts = connect(replace(with_teams, team=team)).parts()
    containers = [part.outputs.container_runs for part in parts]
    assert containers == ["runs", "runs-vision", "runs-audio"]
    assert len({id(part.blob_service()) for part in parts}) == 1


def test_unknown_team_is_refused_with_the_teams_of_the_stack(
    with_teams: Settings, outputs: StackOutputs
) -> None:
    origins = {**with_teams.origins, "team": "RUNNER_TEAM"}
    wrong = replace(with_teams, team="visoin", origins=origins)
    with pytest.raises(RunnerError) as caught:
        connect(wrong)
    assert caught.value.code == "R-TEAM-UNKNOWN"
    assert caught.value.why == "its teams: vision, audio; the team is set by RUNNER_TEAM"
    assert caught.value.fix.startswith("--team vision; ")
    HomePaths(wrong.home).stack_outputs("dev").write_text(outputs.to_json())
    with pytest.raises(RunnerError, match="no team 'visoin'"):
        connect(wrong)


def test_local_target_ignores_the_team_of_a_settings_file(
    local: Connection, settings: Settings
) -> None:
    assert connect(replace(settings, team="vision")).outputs == local.outputs

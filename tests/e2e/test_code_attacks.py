"""Attacks on the agent and the code of later runs, with the access that a run has to storage."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.planning.plan import storage_scopes
from runner.flows.local.state import ensure_keys
from runner.flows.removal import RunSelection, plan_removal, remove_runs
from runner.flows.runs.documents import code_container, runs_container
from runner.protocol.paths import RunPaths, code_blob
from runner.protocol.run_spec import RunSpec, parse_run
from tests.e2e.conftest import Cli, show_ended

Write = Callable[..., Path]
pytestmark = pytest.mark.attack

GOOD = 'print("the code of the run")'
EVIL = 'print("EXECUTED", flush=True)\n'
GATED = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)
"""


def evil_agent() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("__main__.py", EVIL)
    return packed.getvalue()


def evil_code() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = len(EVIL)
        archive.addfile(member, io.BytesIO(EVIL.encode()))
    return packed.getvalue()


# Tries each signature that its agent has on both containers. It gets them in a file, because it
# cannot read the memory of the agent where the kernel permits namespaces.
THIEF = r"""
import json, pathlib, urllib.error, urllib.request

def send(method, url, body=None):
    request = urllib.request.Request(url, body, method=method)
    request.add_header("x-ms-version", "2021-12-02")
    request.add_header("x-ms-blob-type", "BlockBlob")
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as err:
        return err.code

storage = json.loads(pathlib.Path("storage.json").read_text())
signatures = [one["sas"] for one in storage.values() if isinstance(one, dict) and "sas" in one]
account = storage["runs"]["url"].rpartition("/")[0]
for file in pathlib.Path("replacements").iterdir():
    for container in ("runs", "code"):
        for signature in signatures:
            url = f"{account}/{container}/code/{file.name}?{signature}"
            print("tried", container, send("DELETE", url), send("PUT", url, file.read_bytes()))
"""


def connection(cli: Cli) -> Connection:
    paths = HomePaths(cli.home)
    return Connection(parse_stack_outputs(paths.local_outputs.read_text()), ensure_keys(paths))


def spec_of(cli: Cli, run_id: str) -> RunSpec:
    content = runs_container(connection(cli)).read(RunPaths(run_id).run)
    return parse_run(content or b"", run_id)


def train(cli: Cli, folder: Path) -> str:
    return cli.json("train", folder)["run_id"]


def test_script_cannot_replace_agent_and_code_of_later_runs(cli: Cli, script: Write) -> None:
    good = spec_of(cli, train(cli, script(GOOD)))
    thief = script(THIEF)
    (thief / "replacements").mkdir()
    lent = connection(cli).node_storage(storage_scopes(good.to_json()), timedelta(hours=1))
    (thief / "storage.json").write_text(json.dumps(lent))
    for sha256, content in ((good.agent_sha256, evil_agent()), (good.code.sha256, evil_code())):
        (thief / "replacements" / sha256).write_bytes(content)
    printed = [line.split() for line in cli.ok("logs", train(cli, thief)).splitlines()]
    tried = [words for words in printed if words[:1] == ["tried"]]
    assert len(tried) == 12, "3 signatures, 2 containers, 2 blobs"
    (thief / "replacements").rename(thief.parent / "replacements")
    (thief / "storage.json").unlink()
    again = train(cli, script(GOOD))
    assert spec_of(cli, again).code == good.code
    assert cli.ok("logs", again).strip() == "the code of the run"
    assert {tuple(words[2:]) for words in tried if words[1] == "code"} == {("403", "403")}


@pytest.mark.parametrize("part", ["agent", "code"])
def test_replaced_blob_is_not_executed_and_is_stored_again(
    cli: Cli, script: Write, tmp_path: Path, part: str
) -> None:
    """Whoever has the key of the account can replace every blob."""
    gate = tmp_path / "gate"
    gated = script(GATED, "gated.py")
    train_gated = ("train", gated / "gated.py", "-d", "-o", "json", "--", gate)
    first = json.loads(cli.ok(*train_gated))["run_id"]
    spec = spec_of(cli, train(cli, script(GOOD)))
    victim = cli.json("train", script(GOOD), "--detach", "--after", first)["run_id"]
    sha256, evil = {
        "agent": (spec.agent_sha256, evil_agent()),
        "code": (spec_of(cli, victim).code.sha256, evil_code()),
    }[part]
    store = code_container(connection(cli))
    store.blob(code_blob(sha256)).upload_blob(evil, overwrite=True)
    gate.write_text("0")
    shown = show_ended(cli, victim)
    assert shown["state"] == "failed"
    assert "EXECUTED" not in cli.run("logs", victim).stdout
    done = cli.run("why", victim)
    assert "differs from the submitted" in done.stdout + done.stderr

    again = cli.run("train", script(GOOD), "-o", "json")
    assert f"code/code/{sha256} was replaced by other content: it is stored again" in again.stderr
    assert cli.ok("logs", json.loads(again.stdout)["run_id"]).strip() == "the code of the run"
    assert hashlib.sha256(store.read(code_blob(sha256)) or b"").hexdigest() == sha256


@pytest.mark.fix("R-STACK-NO-CODE")
def test_outputs_and_runs_of_version_1_are_read_and_repeated(own_cli: Cli, script: Write) -> None:
    cli = own_cli
    old, damaged = train(cli, script(GOOD)), train(cli, script(GOOD + "\nprint()"))
    earlier = connection(cli)
    store, runs = code_container(earlier), runs_container(earlier)
    for blob in store.list(""):
        runs.write(blob.name, store.read(blob.name) or b"", None)
    store.client.delete_container()
    outputs = HomePaths(cli.home).local_outputs
    document = json.loads(outputs.read_text())
    del document["container_code"]
    outputs.write_text(json.dumps({**document, "contract_version": 1}))
    HomePaths(cli.home).stored_code.unlink()

    assert cli.ok("logs", old).strip() == "the code of the run"
    assert {row["run_id"] for row in cli.json("ps", "-a")} == {old, damaged}
    assert cli.json("show", old)["state"] == "succeeded"
    refused = cli.run("reproduce", old)
    assert refused.returncode == 3
    assert "R-STACK-NO-CODE" in refused.stderr
    assert "fix: runner local up" in refused.stderr

    cli.ok("local", "up")
    runs.blob(spec_of(cli, damaged).code.blob).upload_blob(evil_code(), overwrite=True)
    assert cli.run("reproduce", old).stdout.startswith("the code of the run")
    refused = cli.run("reproduce", damaged)
    assert "R-REPEAT-CODE" in refused.stderr
    assert "EXECUTED" not in refused.stdout + refused.stderr


def code_names(container: BlobContainer) -> set[str]:
    return {blob.name for blob in container.list("code/")}


def test_removal_deletes_code_of_no_other_run_in_either_layout(own_cli: Cli, script: Write) -> None:
    cli = own_cli
    gone, stays = train(cli, script(GOOD)), train(cli, script(GOOD + "\nprint()"))
    known = connection(cli)
    store, runs = code_container(known), runs_container(known)
    [lost, kept] = [code_blob(spec_of(cli, each).code.sha256) for each in (gone, stays)]
    agent = code_blob(spec_of(cli, stays).agent_sha256)
    assert code_names(store) == {lost, kept, agent}
    for name in (lost, kept, agent):  # where version 1 has them
        runs.write(name, store.read(name) or b"", None)

    def remove(place: Connection, run_id: str) -> None:
        later = datetime.now(UTC) + timedelta(days=40)
        plan = plan_removal(place, RunSelection(references=(run_id,)), later)
        assert [each.run_id for each in plan.runs] == [run_id]
        remove_runs(place, plan, lambda _: None, later)

    remove(known, gone)
    assert code_names(store) == code_names(runs) == {kept, agent}
    assert cli.run("reproduce", stays).stdout.startswith("the code of the run")

    # A client with outputs of version 1 deletes nothing of the container that it does not know.
    old = replace(known.outputs, container_code=None, contract_version=1)
    again = {row["run_id"] for row in cli.json("ps", "-a")} - {stays}
    for run_id in (*again, stays):
        remove(Connection(old, known._keys), run_id)
    assert code_names(runs) == set()
    assert code_names(store) == {kept, agent}


def test_services_of_an_older_version_get_the_container_by_themselves(
    own_cli: Cli, script: Write
) -> None:
    cli = own_cli
    cli.ok("local", "up")
    code_container(connection(cli)).client.delete_container()
    outputs = HomePaths(cli.home).local_outputs
    document = json.loads(outputs.read_text())
    del document["container_code"]
    outputs.write_text(json.dumps({**document, "contract_version": 1}))
    assert cli.ok("logs", train(cli, script(GOOD))).strip() == "the code of the run"
    assert json.loads(outputs.read_text())["contract_version"] == 2

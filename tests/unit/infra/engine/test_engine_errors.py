"""Errors of the engine before it starts, as users read them; `pulumi` is a script here."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pulumi.automation import CommandResult
from pulumi.automation.errors import CommandError

from runner.protocol.errors import RunnerError
from runner_infra.engine import automation, state_folder, unfinished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def engine_that_says(folder: Path, text: str) -> automation.PulumiStack:
    """Return a stack in which all commands except `version` fail with `text` on stderr."""
    cli = folder / "cli/bin/pulumi"
    cli.parent.mkdir(parents=True)
    cli.write_text(
        '#!/bin/sh\n[ "$1" != version ] || { echo v3.250.0; exit; }\n'
        f"echo {shlex.quote(text)} >&2\nexit 1\n"
    )
    cli.chmod(0o755)
    (folder / "project").mkdir()
    (folder / "project/Pulumi.yaml").write_text("name: runner\nruntime: python\n")
    found = automation.auto.PulumiCommand(root=str(folder / "cli"))
    return automation.PulumiStack(folder / "project", "dev", found)


def refused(folder: Path, text: str) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        automation.preview(engine_that_says(folder, text), lambda _: None)
    return caught.value


def test_a_single_line_of_the_engine_is_the_reason(home: Path) -> None:
    err = refused(home, "error: the state is somewhere else")
    assert err.code == "R-PULUMI-FAILED"
    assert err.why == "the state is somewhere else"


def test_line_without_an_error_prefix_is_the_reason(home: Path) -> None:
    assert refused(home, "no space left on device").why == "no space left on device"


def test_partially_written_state_is_read_again() -> None:
    half = "error: failed to load checkpoint: EOF"
    said = iter([half, half, "error: no stack named dev"])

    def read() -> None:
        raise CommandError(CommandResult(stdout="", stderr=next(said), code=255))

    with pytest.raises(CommandError, match="no stack named dev"):
        unfinished.read_state(read)
    assert list(said) == []


def test_persistently_damaged_state_names_its_backup(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "_PAUSES_S", (0, 0))
    err = refused(home, "error: failed to load checkpoint: unexpected EOF")
    assert err.code == "R-PULUMI-STATE"
    assert ".json.bak" in (err.fix or "")


def test_wrong_passphrase_is_reported_with_a_fix(home: Path) -> None:
    err = refused(
        home, "error: could not create secrets manager for new stack: incorrect passphrase"
    )
    assert err.code == "R-PULUMI-PASSPHRASE"
    assert "encryptionsalt" in (err.why or "")
    assert "PULUMI_CONFIG_PASSPHRASE" in (err.fix or "")


@pytest.mark.parametrize(
    ("backend", "what", "fix"),
    [
        ("foo://x", "cannot keep state at 'foo://x'", "azblob://CONTAINER?storage_account=ACCOUNT"),
        ("AZBLOB://state", "cannot keep state at 'AZBLOB://state'", "file:///PATH"),
        ("s3://", "cannot keep state at 's3://'", "file:///PATH"),
        ("https://pulumi.example", "not signed in to", "`pulumi login https://pulumi.example`"),
        (None, "not signed in to its backend", "`pulumi login`"),
    ],
)
def test_backend_that_pulumi_does_not_know_is_named(
    home: Path, backend: str | None, what: str, fix: str
) -> None:
    said = "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions"
    stack = replace(engine_that_says(home, said), backend=backend)
    with pytest.raises(RunnerError) as caught:
        automation.list_stacks(stack)
    assert what in caught.value.what
    assert fix in (caught.value.fix or "")


def test_passphrase_of_the_environment_takes_precedence(home: Path) -> None:
    own = automation.state_settings(home, {})
    assert Path(own["PULUMI_CONFIG_PASSPHRASE_FILE"]).is_file()
    given = automation.state_settings(home, {"PULUMI_CONFIG_PASSPHRASE": "mine"})
    assert given == {"PULUMI_BACKEND_URL": own["PULUMI_BACKEND_URL"]}


def test_replacement_of_a_data_resource_is_refused_by_name(home: Path) -> None:
    urn = "urn:pulumi:dev::runner::runner:infra:DataStore$azure-native:storage"
    said = f'error: unable to replace resource "{urn}:StorageAccount::storage" as part of replacing'
    err = refused(
        home, f'{said} "{urn}:BlobContainer::runs" as it is currently marked for protection'
    )
    assert err.code == "R-PULUMI-PROTECTED"
    assert "replaces storage, runs" in err.why
    assert "runner down --stack dev --everything" in err.fix


@pytest.mark.parametrize("is_running", [True, False])
def test_state_that_another_engine_writes_is_locked_and_not_damaged(
    home: Path, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    monkeypatch.setattr(unfinished, "_PAUSES_S", (0, 0))
    monkeypatch.setattr(state_folder, "_is_running", lambda _: is_running)
    stack = engine_that_says(home, "error: failed to load checkpoint: unexpected EOF")
    lock = home / ".pulumi/locks/organization/runner/dev/0b6f.json"
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"pid": 1, "hostname": socket.gethostname()}))
    with pytest.raises(RunnerError) as caught:
        automation.preview(replace(stack, backend=home.as_uri()), lambda _: None)
    assert caught.value.code == ("R-PULUMI-LOCKED" if is_running else "R-PULUMI-STATE")


@pytest.mark.parametrize(
    ("said", "code", "fix"),
    [
        ('error: Status=409 Code="ScopeLocked" Message="locked"', "R-AZURE-LOCKED", "az lock list"),
        ('error: Code="SkuNotAvailable" Message="no"', "R-AZURE-CAPACITY", "`runner skus`"),
        ('error: Code="PoolQuotaReached" Message="100"', "R-QUOTA", "request more in the portal"),
        ('error: Code="Teapot" Message="short"', "R-PULUMI-FAILED", "az monitor activity-log"),
        ("error: the disk is full", "R-PULUMI-FAILED", "add --debug"),
        ("error: azure-native: failed to download plugin", "R-PULUMI-FAILED", "get.pulumi.com"),
    ],
)
def test_refusal_of_azure_has_the_fix_of_its_code(
    home: Path, said: str, code: str, fix: str
) -> None:
    err = refused(home, said)
    assert err.code == code
    assert fix in err.fix
    assert "correct the cause" not in err.fix
    assert "were created" not in err.fix  # a preview creates nothing


def test_each_of_several_refusals_is_shown(home: Path) -> None:
    lines = [f'error: Code="Teapot" Message="number {number}"' for number in range(4)]
    err = refused(home, "\n".join([*lines, 'error: Code="ScopeLocked" Message="locked"']))
    assert err.code == "R-AZURE-LOCKED"
    assert "Teapot: number 2; and 2 more" in err.why


def test_refused_sign_in_says_how_to_install_az_where_it_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'error: Code="ExpiredAuthenticationToken" Message="expired"'
    monkeypatch.setenv("PATH", str(home))  # has no `az`
    assert refused(home, said).fix.startswith("install the Azure CLI (https://")

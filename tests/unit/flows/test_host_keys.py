"""Host keys of nodes: a real ssh against a server that has the right or another key."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.azure.batch.node_users import Address, TaskPlace
from runner.flows import shell
from runner.flows.host_keys import TrustedHost, check_host_key, trust_host
from runner.node.agent.records import find_host_keys
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptStart
from tests.unit.flows.fake_sshd import FakeSshd, serve_fake_sshd

ACCOUNT = "https://Mine.westeurope.batch.azure.com"
PLACE = TaskPlace("T4", "tvm-1_2-p", None)
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client")


@pytest.fixture
def sshd() -> Generator[FakeSshd]:
    with serve_fake_sshd() as server:
        yield server


def trust(home: Path, port: int, *keys: str, booted: str = "2026-11-28T10:00:00") -> TrustedHost:
    return trust_host(home, ACCOUNT, PLACE, Address("127.0.0.1", port, booted), keys)


def connect(home: Path, sshd: FakeSshd, host: TrustedHost) -> None:
    """Run ssh as `runner ssh` does. Raise RunnerError if it refused the key."""
    key = shell.make_key(home, datetime.now(UTC) + timedelta(hours=1))
    argv = shell.ssh_command(
        user=key.user, host="127.0.0.1", port=sshd.port, key=str(key.private), node=host,
        terminal=False,
    )  # fmt: skip
    login = shell.Login((*argv, "true"), None, over_ssh=True, node=host)
    code, _, _ = shell.capture_login(login, None)
    assert code == 255, "the server ends after the key exchange"


@needs_ssh
def test_key_that_the_node_wrote_to_storage_is_accepted(tmp_path: Path, sshd: FakeSshd) -> None:
    connect(tmp_path, sshd, trust(tmp_path, sshd.port, sshd.public))
    assert sshd.accepted
    assert all(sshd.accepted)


@needs_ssh
@pytest.mark.attack
def test_server_in_place_of_the_node_is_refused(tmp_path: Path, sshd: FakeSshd) -> None:
    host = trust(tmp_path, sshd.port, FakeSshd().public)
    with pytest.raises(RunnerError) as caught:
        connect(tmp_path, sshd, host)
    assert caught.value.code == "R-REACH-HOST-KEY"
    assert "wrote to storage" in caught.value.why
    assert f"ssh-keygen -R {host.name} -f {host.file}" in caught.value.fix
    assert sshd.accepted
    assert not any(sshd.accepted)


@needs_ssh
@pytest.mark.attack
def test_first_key_is_kept_for_runs_without_a_recorded_one(tmp_path: Path, sshd: FakeSshd) -> None:
    connect(tmp_path, sshd, trust(tmp_path, sshd.port))
    connect(tmp_path, sshd, trust(tmp_path, sshd.port))
    assert all(sshd.accepted)
    with serve_fake_sshd() as other:
        with pytest.raises(RunnerError) as caught:
            connect(tmp_path, other, trust(tmp_path, other.port))
        assert caught.value.code == "R-REACH-HOST-KEY"
        assert not any(other.accepted)
        # A node that was started since then has new keys.
        connect(tmp_path, other, trust(tmp_path, other.port, booted="2026-11-28T11:00:00"))
        assert other.accepted[-1]


@needs_ssh
def test_advice_of_the_error_lets_the_node_in(tmp_path: Path, sshd: FakeSshd) -> None:
    host = trust(tmp_path, sshd.port, FakeSshd().public)
    command = ["ssh-keygen", "-R", host.name, "-f", str(host.file)]
    subprocess.run(command, check=True, capture_output=True)
    connect(tmp_path, sshd, trust(tmp_path, sshd.port, sshd.public))
    assert sshd.accepted == [True, True]


@pytest.mark.attack
def test_record_with_another_key_than_before_is_refused(tmp_path: Path) -> None:
    """By somebody who can write the records of runs."""
    first, other = FakeSshd().public, FakeSshd().public
    trust(tmp_path, 22, first)
    trust(tmp_path, 22, first)
    with pytest.raises(RunnerError) as caught:
        trust(tmp_path, 22, other)
    assert caught.value.code == "R-REACH-HOST-KEY"
    [file] = (tmp_path / "ssh").iterdir()
    assert file.name == "known_hosts.mine.westeurope.batch.azure.com"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == f"t4.tvm-1_2-p.2026-11-28t10-00-00 {first}\n"


@pytest.mark.attack
@pytest.mark.parametrize(
    "key",
    [
        "", "ssh-ed25519", "ssh-ed25519 AAAA", "* ssh-ed25519 " + "A" * 68,
        "ssh-ed25519 " + "A" * 68 + "\n* ssh-rsa " + "B" * 68,
        "ssh-ed25519 " + "A" * 68 + "\n@cert-authority * ssh-rsa " + "B" * 68,
        "@cert-authority * " + "A" * 68,
    ],
)  # fmt: skip
def test_record_adds_no_other_entries_and_does_not_turn_checks_off(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        trust(tmp_path, 22, key)
    assert caught.value.code == "R-REACH-HOST-KEY"
    assert not list(tmp_path.rglob("known_hosts*"))


def test_other_failures_of_ssh_are_not_called_a_wrong_key(tmp_path: Path) -> None:
    host = trust(tmp_path, 22)
    for argv in (["false"], ["no-such-program"], ["sh", "-c", "echo closed >&2; exit 255"]):
        check_host_key(argv, host)
    assert not host.is_recorded


def test_agent_records_the_public_keys_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@node\n")
    (tmp_path / "ssh_host_rsa_key.pub").write_text("ssh-rsa BBBB\n")
    (tmp_path / "ssh_host_bad_key.pub").write_bytes(b"\xff")
    (tmp_path / "ssh_host_rsa_key").write_text("secret")
    assert find_host_keys(tmp_path) == ("ssh-ed25519 AAAA", "ssh-rsa BBBB")
    assert find_host_keys(tmp_path / "none") == ()


def test_recorded_keys_reach_the_client() -> None:
    keys = ("ssh-ed25519 AAAA", "ssh-rsa BBBB")
    start = AttemptStart(
        attempt=1, node="tvm-1", started="2026-11-28T10:00:00+00:00", host_keys=keys
    )
    found = AttemptStart.load(json.dumps(start.to_json()).encode())
    assert found == start
    older = AttemptStart.load(json.dumps(replace(start, host_keys=()).to_json()).encode())
    assert older is not None
    assert older.host_keys == ()

"""Commands on nodes and the call of ssh; a program in place of ssh records its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.node_users import Address, TaskPlace
from runner.flows import shell
from runner.flows.host_keys import TrustedHost
from runner.flows.shell import make_key, prune_keys, shell_command
from runner.flows.task_shell import TaskFolder
from runner.node.script.workspace import write_shell_file
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpec
from runner.protocol.task import SHELL_FILE

HOSTILE = {
    "QUOTES": 'it\'s "so" `date` $(date) $HOME',
    "LINES": "a\nb\n",
    "EMPTY": "",
    "LATIN": b"\xff".decode("utf-8", "surrogateescape"),
    "not a name": "x",
    "BASH_FUNC_x%%": "() { :; }",
}


REMOTE = TrustedHost("tvm-1", Path("/home/known_hosts.account"), "pool.tvm-1", is_recorded=True)


def remote_key(home: Path) -> shell.NodeKey:
    """Return a new key for a node that is not this machine."""
    return replace(make_key(home, datetime.now(UTC) + timedelta(hours=1)), node=REMOTE)


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    """Return the folder of a task, as an attempt leaves it."""
    folder = tmp_path / "a job's" / "wd"
    for name in ("code", "logs"):
        (folder / name).mkdir(parents=True)
    write_shell_file(folder / "logs", {**HOSTILE, "TOKEN": "hush"}, {"TOKEN"})
    return folder


def place() -> shell.RunLocation:
    task = TaskPlace("pool", "tvm-1", None, "workitems/job/job-1/mnist-1")
    return shell.RunLocation("mnist-1", task, datetime.now(UTC) + timedelta(hours=1))


@pytest.fixture
def node_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the task of `place` on a node whose root is a temporary folder."""
    root = tmp_path / "batch"
    script = shell._script
    changed = script("switch")
    for each in ("/mnt/batch", "/mnt/resource/batch", "/opt/batch/data"):
        assert f" {each}/tasks {each}" in changed
        changed = changed.replace(each, str(root))
    monkeypatch.setattr(
        shell, "_script", lambda name: {"switch": changed}.get(name) or script(name)
    )
    folder = root / "tasks" / "workitems" / "job" / "job-1" / "mnist-1" / "wd"
    for name in ("code", "logs"):
        (folder / name).mkdir(parents=True)
    write_shell_file(folder / "logs", HOSTILE)
    return folder


def test_shell_gets_every_variable_unchanged_except_secrets(work_dir: Path) -> None:
    show = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    argv = shell_command(str(work_dir), [sys.executable, "-c", show])
    done = subprocess.run(argv, env={}, capture_output=True, text=True, check=True)
    cwd, environment = json.loads(done.stdout)
    assert cwd == str(work_dir / "code")
    for name in ("QUOTES", "LINES", "EMPTY", "LATIN"):
        assert environment[name] == HOSTILE[name]
    assert "TOKEN" not in environment
    text = (work_dir / "logs" / "environment.sh").read_text(errors="surrogateescape")
    assert "hush" not in text
    assert "# TOKEN is omitted: it is a secret" in text
    assert (work_dir / "logs" / "environment.sh").stat().st_mode & 0o777 == 0o600


def test_run_continues_without_a_file_for_shells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_shell_file(tmp_path / "gone", {"A": "1"})
    assert "cannot write the environment for a shell" in caplog.text


def test_shell_reads_the_file_that_the_agent_writes() -> None:
    assert f"then . ./logs/{SHELL_FILE};" in shell._script("enter")


def test_shell_starts_in_the_task_folder_before_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        shell_command(str(tmp_path), ["pwd"]), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path)


def test_missing_folder_is_an_error_without_a_command(tmp_path: Path) -> None:
    _, *argv = shell_command(str(tmp_path / "gone"), ["echo", "ran"])
    done = subprocess.run(
        ["/bin/sh", *argv], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    assert done.returncode != 0


# Becomes the user, if the test runs as root; else it is that user.
_SUDO = """
import os, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print(" ".join(words[:3]), file=log)
assert words.pop(0) == "-n"
if words[0] == "-u":
    uid = int(words[1].removeprefix("#"))
    del words[:2]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
os.execvp(words[0], words)
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake ssh, which runs its last argument in a shell. Return its log of arguments."""
    programs = tmp_path / "programs"
    programs.mkdir()
    said = tmp_path / "said.json"
    program = programs / "ssh"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump(sys.argv[1:], open({str(said)!r}, 'w'))\n"
        "os.execvpe('sh', ['sh', '-c', sys.argv[-1]], {'PATH': os.environ['PATH']})\n"
    )
    program.chmod(0o755)
    sudo = programs / "sudo"
    sudo.write_text(f"#!{sys.executable}\n{_SUDO.format(log=str(tmp_path / 'sudo.log'))}")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return said


def test_ssh_signs_in_with_the_new_key_only_and_quotes_what_it_runs(
    node_folder: Path, tmp_path: Path, fake_ssh: Path
) -> None:
    key = remote_key(tmp_path / "home")
    owned_by_task(node_folder)
    target = node_folder / "code" / "got"
    program = f"printf '%s|' \"$@\" > '{target}'"
    command = ["sh", "-c", program, "sh", "a b", "$(x)", "it's", "*"]
    address = Address("node.example", 50003)
    login = shell._login(key, address, tmp_path, place(), command, terminal=False)
    assert shell.run_login(login) == 0
    assert target.read_text() == "a b|$(x)|it's|*|"
    words = json.loads(fake_ssh.read_text())
    assert words[words.index("-i") + 1] == str(key.private)
    assert words[words.index("-p") + 1] == "50003"
    assert f"{key.user}@node.example" in words
    for option in ("IdentitiesOnly=yes", f"UserKnownHostsFile={REMOTE.file}"):
        assert option in words
    assert shell.ssh_failed(login, 255)


def test_ports_are_forwarded_and_a_used_one_ends_the_login(
    node_folder: Path, tmp_path: Path, fake_ssh: Path
) -> None:
    owned_by_task(node_folder)
    key = remote_key(tmp_path / "home")
    forwards = [shell.parse_forward("8888"), shell.parse_forward("9000:6006")]
    address = Address("node.example", 50003)
    login = shell._login(
        key, address, tmp_path, place(), ["true"], terminal=False, forwards=forwards
    )
    assert shell.run_login(login) == 0
    words = json.loads(fake_ssh.read_text())
    given = [words[n + 1] for n, word in enumerate(words) if word == "-L"]
    assert given == ["127.0.0.1:8888:127.0.0.1:8888", "127.0.0.1:9000:127.0.0.1:6006"]
    assert "ExitOnForwardFailure=yes" in words


@pytest.mark.parametrize("text", ["", "x", "8888:", "0", "70000", "1:2:3", "-1"])
def test_invalid_forward_is_refused(text: str) -> None:
    with pytest.raises(RunnerError) as caught:
        shell.parse_forward(text)
    assert caught.value.code == "R-REACH-FORWARD"


ENGINE = '#!/bin/sh\n[ "$1" = inspect ] && exit 0\necho "$1 $2 $3"; shift 3; exec "$@"\n'
NO_ENGINE = "#!/bin/sh\nexit 1\n"


@pytest.mark.parametrize(
    ("docker", "podman", "code", "said"),
    [
        (ENGINE, NO_ENGINE, 0, f"exec -i c0ffee\n{HOSTILE['QUOTES']}\n"),
        (NO_ENGINE, ENGINE, 0, f"exec -i c0ffee\n{HOSTILE['QUOTES']}\n"),
        (NO_ENGINE, NO_ENGINE, 69, ""),
    ],
)
def test_container_of_a_task_is_entered_with_its_id(
    work_dir: Path, tmp_path: Path, docker: str, podman: str, code: int, said: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("docker", docker), ("podman", podman), ("sudo", NO_ENGINE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    argv = shell._container_command("c0ffee", ["sh", "-c", 'echo "$QUOTES"'])
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "AZ_BATCH_TASK_WORKING_DIR": str(work_dir),  # of the container
        },
    )
    assert (done.returncode, done.stdout) == (code, said)
    assert code == 0 or "c0ffee" in done.stderr


def test_keys_are_private_and_deleted_after_their_expiry(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first, second = (make_key(tmp_path, now + timedelta(hours=hours)) for hours in (1, 3))
    assert first.user != second.user
    for folder in (first.folder.parent, first.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert first.private.stat().st_mode & 0o777 == 0o600
    assert first.public.startswith("ssh-rsa ")
    prune_keys(tmp_path, now + timedelta(hours=2))
    assert (first.folder.exists(), second.folder.exists()) == (False, True)


def test_unwritable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("a file")
    with pytest.raises(RunnerError) as caught:
        make_key(tmp_path, datetime.now(UTC))
    assert caught.value.code == "R-HOME-WRITE"


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("::1", True), ("20.1.2.3", False), ("a.b", False)]
)
def test_only_loopback_addresses_are_local(
    host: str, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address(host, 22)
    key = remote_key(tmp_path)
    found = TaskFolder(tmp_path, None)
    monkeypatch.setattr(shell, "find_task_folder", lambda *_: found)
    login = shell._login(key, address, tmp_path, place(), ["true"], terminal=False)
    assert login.over_ssh is not here
    assert (login.argv[0] == "ssh") is not here


TASK_UID = 41234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def owned_by_task(folder: Path) -> None:
    """Give a folder to the user of tasks, and let it be reached."""
    if os.geteuid() != 0:
        return
    above = Path(tempfile.gettempdir())
    for parent in [*folder.relative_to(above).parents][:-1]:  # pytest made them for root alone
        (above / parent).chmod(0o755)
    for each in (folder, *folder.rglob("*")):
        os.chown(each, TASK_UID, TASK_UID)


def remote(folder: str, command: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as on a node, with the fake sudo."""
    path = f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}"
    argv = shell._remote_command(folder, command)
    env = {"PATH": path}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.attack
@needs_root
def test_command_on_a_node_never_runs_as_the_administrator(
    node_folder: Path, tmp_path: Path, fake_ssh: Path
) -> None:
    owned_by_task(node_folder)
    (node_folder / "logs" / "environment.sh").write_text("SOURCED_AS=$(id -u); export SOURCED_AS\n")
    done = remote("workitems/job/job-1/mnist-1", ["sh", "-c", "id -u; echo $SOURCED_AS"], tmp_path)
    assert done.stdout.split() == [str(TASK_UID)] * 2, done.stderr
    os.chown(node_folder, 0, 0)
    done = remote("workitems/job/job-1/mnist-1", ["id", "-u"], tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert "belongs to root" in done.stderr


@pytest.mark.attack
@pytest.mark.parametrize("part", ["mnist-1", "mnist-1/wd", "../job-1"])
def test_folder_of_a_node_is_not_entered_through_a_link(
    part: str, node_folder: Path, tmp_path: Path, fake_ssh: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    moved = node_folder.parent.parent / part
    real = Path(os.path.normpath(moved))
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    done = remote("workitems/job/job-1/mnist-1", ["echo", "ran"], tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert "through a link" in done.stderr


def test_only_folders_that_the_service_names_are_entered(
    node_folder: Path, tmp_path: Path, fake_ssh: Path
) -> None:
    done = remote("workitems/job/job-1/other", ["echo", "ran"], tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert "no folder" in done.stderr


@pytest.mark.parametrize("later", [2, None], ids=["has started again", "waits for a node"])
def test_run_that_loses_its_node_while_jupyterlab_starts_has_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, later: int | None
) -> None:
    attempts = [1, 1, later]  # the first is that of the login

    def find(*_: object) -> shell.RunLocation:
        if (attempt := attempts.pop(0)) is None:
            raise RunnerError("R-REACH-WAITING", "mnist-1 is not on a node: queued")
        return replace(place(), attempt=attempt)

    monkeypatch.setattr(shell, "find_location", find)
    monkeypatch.setattr(shell, "open_login", lambda *_args, **_: nullcontext())
    monkeypatch.setattr(shell, "capture_login", lambda *_: (69, "", "sh: 1: cd: can't cd to wd"))
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)
    monkeypatch.setattr(shell, "time", clock)
    assert shell.find_jupyter(cast("Connection", None), tmp_path, cast("RunSpec", None)) is None
    assert attempts == []

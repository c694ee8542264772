"""`runner exec` and `runner ssh` (feature 37): in the folder of a run, with its environment."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.conftest import RUNNER, Cli, until

_SCRIPT = """
import os, pathlib, time
output = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(output / "seen.txt").write_text("by the script")
print("begun", flush=True)
while not (output / "stop").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def running(cli: Cli, script: Callable[[str], Path]) -> Generator[str]:
    """Yield a run that continues until a command on its node stops it."""
    [line] = [
        each
        for each in cli.ok("train", script(_SCRIPT), "--detach", "-o", "tsv").splitlines()
        if each.startswith("run_id")
    ]
    run_id = line.split("\t")[1]
    until(lambda: "begun" in cli.run("logs", run_id).stdout, timeout_s=120)
    yield run_id
    cli.run("cancel", run_id)


@pytest.mark.smoke
@pytest.mark.feature(37)
def test_exec_runs_in_the_folder_and_environment_of_the_run(cli: Cli, running: str) -> None:
    show = 'pwd; printf "%s\\n" "$RUNNER_RUN_ID" "$VIRTUAL_ENV" "$HOME"; command -v python; ls'
    folder, run_id, venv, home, python, *files = cli.ok(
        "exec", running, "--", "sh", "-c", show
    ).splitlines()
    assert (run_id, python) == (running, f"{venv}/bin/python")
    assert folder == f"{home}/code"
    assert files == ["logs", "outputs", "train.py"]
    seen = cli.ok("exec", running, "--", "sh", "-c", 'cat "$RUNNER_OUTPUT_DIR/seen.txt"')
    assert seen == "by the script"


def test_exec_passes_arguments_input_output_and_exit_code_unchanged(cli: Cli, running: str) -> None:
    hostile = ["a b", "$(echo no)", "it's", "--node", "", "*", "é\n"]
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    shown = cli.ok("exec", running, "--", "python", "-c", code, *hostile)
    assert json.loads(shown) == hostile
    command = ("exec", running, "--", "sh", "-c", "cat; echo oops >&2; exit 7")
    done = subprocess.run(
        [str(RUNNER), *command],
        env=cli.env,
        cwd=cli.cwd,
        input="through",
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "through", "oops\n")
    killed = cli.run("exec", running, "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137


def test_shell_has_neither_secrets_nor_variables_of_the_agent(cli: Cli, running: str) -> None:
    shown = cli.ok("exec", running, "--", "env", env={"AZURE_CLIENT_SECRET": "ours-alone"})
    assert "RUNNER_RUN_ID=" in shown
    assert "AZ_BATCH_NODE_ID=" in shown
    for secret in ("RUNNER_STORAGE", "sig=", "ours-alone"):
        assert secret not in shown
    mode = cli.ok("exec", running, "--", "stat", "-c", "%a", "../logs/environment.sh")
    assert mode.strip() == "600"


def test_shell_runs_commands_and_leaves_no_key_and_no_user(
    cli: Cli, running: str, session_home: Path
) -> None:
    done = subprocess.run(
        [str(RUNNER), "ssh", running],
        env=cli.env,
        cwd=cli.cwd,
        input='basename "$PWD"\ntouch "$RUNNER_OUTPUT_DIR/stop"\nexit 3\n',
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (3, "code\n"), done.stderr
    assert list((session_home / "ssh").iterdir()) == []
    until(lambda: cli.run("show", running).stdout.count("succeeded"))
    over = cli.run("exec", running, "--", "true")
    assert (over.returncode, "R-REACH-ENDED" in over.stderr) == (2, True)
    assert f"runner logs {running}" in over.stderr


def test_printed_ssh_command_works_in_a_plain_shell_and_keeps_its_key(
    cli: Cli, running: str, session_home: Path
) -> None:
    line = cli.ok("exec", running, "--print", "--", "sh", "-c", "echo $RUNNER_RUN_ID '$x'")
    done = subprocess.run(["sh", "-c", line], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{running} $x\n"
    [key] = (session_home / "ssh").iterdir()
    assert key.stat().st_mode & 0o777 == 0o700
    assert (key / "id").stat().st_mode & 0o777 == 0o600
    (key / "expires").write_text("2020-01-01T00:00:00+00:00")
    cli.ok("exec", running, "--", "true")
    assert not key.exists(), "an expired key goes with the next call"


def test_unreachable_runs_are_refused_with_the_reason(
    cli: Cli, running: str, script: Callable[[str], Path]
) -> None:
    wrong = cli.run("exec", running, "--node", "7", "--", "true")
    assert (wrong.returncode, "R-REACH-WHICH" in wrong.stderr) == (2, True)
    assert "0: tvm" in wrong.stderr
    assert cli.ok("exec", running, "--node", "0", "--", "echo", "in") == "in\n"
    missing = cli.run("exec", running)
    assert (missing.returncode, "R-USAGE" in missing.stderr) == (2, True)
    absent = cli.run("exec", running, "--", "no-such-program")
    assert absent.returncode == 127


@pytest.mark.slow
@pytest.mark.feature(38)
def test_dev_node_ends_by_itself_and_keeps_written_files(cli: Cli) -> None:
    (cli.cwd / "project").mkdir()
    (cli.cwd / "project" / "notes.txt").write_text("one\n")
    made = cli.json("dev", "project", "--for", "15s")
    write = "cat notes.txt; echo two >> notes.txt; echo model > model.txt"
    assert cli.ok("exec", made["run_id"], "--", "sh", "-c", write) == "one\n"
    cli.run("attach", made["run_id"])
    shown = cli.json("show", made["run_id"])
    assert shown["state"] == "succeeded"
    ended = datetime.fromisoformat(shown["result"]["ended"])
    assert abs(ended - datetime.fromisoformat(made["ends"])) < timedelta(seconds=30)
    cli.ok("files", "get", made["run_id"])
    kept = {p.name: p.read_text() for p in (cli.cwd / "outputs").rglob("*.txt")}
    assert kept == {"notes.txt": "one\ntwo\n", "model.txt": "model\n"}


@pytest.mark.slow
@pytest.mark.feature(38)
def test_jupyterlab_on_a_node_requires_the_token_of_its_run(cli: Cli) -> None:
    (cli.cwd / "notebooks").mkdir()
    (cli.cwd / "notebooks" / "notes.txt").write_text("one\n")
    made = cli.json("dev", "notebooks", "--jupyter", "--for", "3m")
    server, _, token = made["jupyter"].partition("/lab?token=")
    with urllib.request.urlopen(f"{server}/api/contents/notes.txt?token={token}") as answer:
        assert json.load(answer)["content"] == "one\n"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server}/api/contents/notes.txt")
    assert refused.value.code == 403
    cli.ok("cancel", made["run_id"])
    assert token not in cli.run("logs", made["run_id"], "--stderr").stdout


def test_dev_node_needs_a_folder_and_a_time_limit(cli: Cli) -> None:
    for words, text in ((("nowhere",), "no folder 'nowhere'"), (("--for", "1y"), "--for")):
        refused = cli.run("dev", *words)
        assert (refused.returncode, text in refused.stderr) == (2, True), refused.stderr


_FAILS = """
import pathlib
pathlib.Path("state.txt").write_text("7")
raise ValueError("no such class: 12")
"""


def fail_and_keep(cli: Cli, folder: Path, time: str) -> tuple[str, str]:
    """Train a script that fails. Return the run, and what the command printed."""
    failed = cli.run("train", folder, "--keep-node", time, "--no-download", "-o", "json")
    assert failed.returncode == 1, failed.stderr
    return json.loads(failed.stdout)["run_id"], failed.stderr


def kept(cli: Cli, run_id: str) -> dict[str, object] | None:
    return cli.json("show", run_id)["kept_node"]


@pytest.mark.smoke
@pytest.mark.feature(37)
def test_node_of_a_failed_run_is_kept_until_it_is_released(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    run_id, said = fail_and_keep(cli, script(_FAILS), "10m")
    assert "node kept until" in said
    assert f"`runner cancel {run_id}` releases it" in said
    assert cli.ok("exec", run_id, "--", "cat", "state.txt") == "7"
    [row] = [row for row in cli.json("ps", "-n", "1") if row["run_id"] == run_id]
    assert (row["state"], "node_kept_until" in row) == ("failed", True)
    assert "kept until" in cli.ok("why", run_id)
    assert "it has failed and keeps its node" in cli.run("rm", run_id, "--yes").stderr
    again = cli.json("retry", run_id, "--keep-node", "off", "--detach")["run_id"]
    assert cli.json("show", again)["run"].get("keep_node_s") is None
    assert cli.json("cancel", run_id) == {
        "run_id": run_id, "state": "failed", "changed": False, "released": True,
    }  # fmt: skip
    until(lambda: kept(cli, run_id) is None)
    cli.run("attach", again)  # got the slot
    refused = cli.run("exec", run_id, "--", "true")
    assert "R-REACH-ENDED" in refused.stderr
    assert cli.json("show", run_id)["result"]["status"] == "failed"


def test_whatever_waits_for_a_kept_node_names_it(cli: Cli, script: Callable[[str], Path]) -> None:
    run_id, _ = fail_and_keep(cli, script(_FAILS), "10m")
    releases = f"{run_id} keeps its node until "
    node = cli.json("show", run_id)["attempts"][0]["node"]
    for other in cli.json("pool", "nodes", "local"):
        if other["node"] != node:
            cli.ok("pool", "disable", "local", other["node"])
    waits = cli.json("train", script("print('got the slot')"), "--detach")["run_id"]
    found = until(lambda: cli.json("why", waits)["evidence"])
    assert any(releases in each["text"] for each in found)
    assert cli.json("why", waits)["command"] == f"runner cancel {run_id}"
    drain = cli.start("pool", "drain", "local")
    assert drain.stderr is not None
    said = next(line for line in drain.stderr if releases in line)  # it has begun to wait
    assert cli.json("why", waits)["cause"] == "JobDisabled"
    cli.json("cancel", run_id)
    later = drain.stderr.read()
    assert drain.wait(240) == 0, said + later
    assert releases not in later
    assert f"`runner cancel {run_id}` releases it" in said + later
    assert kept(cli, run_id) is None, "the drain waited for the node"
    cli.ok("pool", "enable", "local")
    assert cli.run("attach", waits).returncode == 0
    assert cli.json("why", waits)["evidence"] == []


def test_hold_ends_by_itself_and_an_eviction_does_not_start_the_run_again(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    folder = script(_FAILS)
    run_id, _ = fail_and_keep(cli, folder, "5s")
    until(lambda: kept(cli, run_id) is None)
    evicted, _ = fail_and_keep(cli, folder, "10m")
    cli.ok("local", "evict", cli.json("show", evicted)["attempts"][0]["node"], "--notice", "5")
    until(lambda: kept(cli, evicted) is None)
    shown = cli.json("show", evicted)
    assert (shown["state"], len(shown["attempts"])) == ("failed", 1)

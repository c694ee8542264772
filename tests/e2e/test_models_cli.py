"""`runner train` to `runner models`, with the installed command against local services.

Feature rows 47 and 48 of the reference: registry with versions, models exported on success.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, until

Write = Callable[..., Path]

SCRIPT = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(out / "sub").mkdir()
(out / "sub" / "model.bin").write_bytes(bytes(range(256)) * 1000)
(out / "notes.txt").write_text("notes")
value = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    file.write(json.dumps({"acc": value}) + "\\n")
"""
MODEL = bytes(range(256)) * 1000
MEGABYTES = 60  # of a model that takes long enough to be killed halfway


def recipe(folder: Path, text: str) -> Path:
    (folder / "train.yaml").write_text(text)
    return folder


def model_rows(cli: Cli, name: str) -> list[dict[str, Any]]:
    """Return the rows of a model in the list, which also has models of other tests."""
    return [row for row in cli.json("models", "ls") if row["model"] == name]


def killed_half_way(cli: Cli) -> list[int]:
    """Kill a download. Return the sizes of its parts; empty if it had ended before."""
    here = cli.cwd / "here"
    shutil.rmtree(here, ignore_errors=True)

    def sizes() -> list[int]:
        with suppress(FileNotFoundError):
            return [size for path in here.glob(".big.*.part") if (size := path.stat().st_size)]
        return []

    process = cli.start("models", "get", "big", "here")
    until(lambda: sizes() or process.poll() is not None, every_s=0.005)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return [] if (here / "big").exists() else sizes()


@pytest.mark.smoke
@pytest.mark.feature(47)
def test_version_of_a_run_is_downloaded_unchanged(cli: Cli, script: Write) -> None:
    folder = recipe(
        script(SCRIPT),
        "model: {name: digits, aliases: [staging], path: sub}\nmetrics: {primary: acc}\n",
    )
    first = cli.run("train", folder, "--no-download", "--", "0.9")
    assert first.returncode == 0, first.stderr
    assert "registered digits@1" in first.stderr
    done = cli.run("train", folder, "--no-download", "-o", "json", "--", "nan")
    assert json.loads(done.stdout)["model"] == {"name": "digits", "version": 2, "problem": ""}
    [row] = model_rows(cli, "digits")
    assert {key: row[key] for key in ("model", "versions", "latest", "best", "value")} == {
        "model": "digits", "versions": 2, "latest": 2, "best": 1, "value": 0.9,
    }  # fmt: skip
    versions = {row["version"]: row for row in cli.json("models", "ls", "digits")}
    assert versions[2]["aliases"] == ["latest", "staging"]
    shown = cli.json("models", "show", "digits@best")
    run_id = shown["run_id"]
    assert shown["lineage"]["code"]["sha256"] == cli.json("show", run_id)["run"]["code"]["sha256"]
    assert cli.json("show", run_id)["models"][0]["version"] == 1
    assert "digits@1" in cli.ok("show", run_id)
    assert cli.ok("models", "get", "digits@best").strip() == "digits-1"
    got = {p.relative_to(cli.cwd): p.read_bytes() for p in cli.cwd.glob("digits-1/**/*.*")}
    assert got == {Path("digits-1/sub/model.bin"): MODEL}
    assert shown["files"][0]["sha256"] == hashlib.sha256(MODEL).hexdigest()
    stages = cli.json("show", run_id)["run"]["model"]
    assert stages == {"name": "digits", "aliases": ["staging"], "path": "sub", "description": ""}


def test_register_command_creates_a_version_and_refuses_invalid_runs(
    cli: Cli, script: Write
) -> None:
    run_id = cli.json("train", script(SCRIPT), "--no-download")["run_id"]
    made = cli.run("models", "register", run_id, "hand", "--path", "*.txt", "--alias", "prod")
    assert (made.returncode, made.stdout) == (0, "hand@1\n")
    again = cli.run("models", "register", run_id, "hand", "--path", "*.txt")
    assert (again.returncode, again.stdout) == (0, "hand@1\n")
    assert "is already registered as hand@1" in again.stderr
    cli.ok("models", "get", "hand@prod", "here")
    assert (cli.cwd / "here" / "notes.txt").read_text() == "notes"
    for words, code, exit_code in (
        (("register", "nope", "hand"), "R-RUN-UNKNOWN", 2),
        (("register", run_id, "Hand"), "R-MODEL-NAME", 2),
        (("register", run_id, "other", "--path", "x*"), "R-MODEL-FILES", 2),
        (("register", run_id, "hand"), "R-MODEL-OTHER-FILES", 2),
        (("register", run_id, "other", "--alias", "best"), "R-MODEL-ALIAS", 2),
        (("get", "hnad"), "R-MODEL-UNKNOWN", 2),
        (("get", "hand@7"), "R-MODEL-VERSION", 2),
        (("get", "hand@prd"), "R-MODEL-ALIAS-UNKNOWN", 2),
        (("get", "hand@"), "R-MODEL-REFERENCE", 2),
        (("rm", "hand@1"), "R-MODEL-IN-USE", 2),
        (("rm", "hand"), "R-MODEL-DECLINED", 2),
    ):
        refused = cli.run("models", *words, "-o", "json")
        error = json.loads(refused.stdout)["error"]
        assert (error["code"], refused.returncode) == (code, exit_code), words
        assert error["fix"], words
    (cli.cwd / "here" / "notes.txt").write_text("mine")
    kept = cli.run("models", "get", "hand", "here")
    assert (kept.returncode, "R-MODEL-OVERWRITE" in kept.stderr) == (2, True)
    assert (cli.cwd / "here" / "notes.txt").read_text() == "mine"
    cli.ok("models", "rm", "hand", "--yes", "--force")
    gone = cli.run("models", "get", "hand@1")
    assert "R-MODEL-DELETED" in gone.stderr
    assert model_rows(cli, "hand") == []
    assert cli.json("models", "ls", "hand", "--all")[0]["deleted"]
    anew = cli.run("models", "register", run_id, "hand")
    assert anew.stdout == "hand@2\n"


def test_running_or_failed_run_is_refused(cli: Cli, script: Write) -> None:
    cli.run("train", script("raise SystemExit(3)"), "--no-download")
    failed = cli.run("models", "register", "@last", "x")
    assert (failed.returncode, "R-MODEL-RUN]" in failed.stderr) == (1, True)
    cli.ok("train", script("import time; time.sleep(600)"), "--detach")
    running = cli.run("models", "register", "@last", "x")
    assert (running.returncode, "has not ended" in running.stderr) == (2, True)
    cli.ok("cancel", "@last")
    cancelled = cli.run("models", "register", "@last", "x")
    assert "was cancelled" in cancelled.stderr
    assert model_rows(cli, "x") == []


@pytest.mark.slow
def test_killed_download_leaves_no_partial_file_and_resumes(cli: Cli, script: Write) -> None:
    text = "import os; f = open(os.environ['RUNNER_OUTPUT_DIR'] + '/big', 'wb')\n"
    text += f"for n in range({MEGABYTES}): f.write(bytes([n % 251]) * 1_000_000)\n"
    folder = recipe(script(text), "model: big\n")
    cli.ok("train", folder, "--no-download")
    sizes = until(lambda: killed_half_way(cli))
    assert 0 < sizes[0] < MEGABYTES * 1_000_000
    cli.ok("models", "get", "big", "here")
    expected = hashlib.sha256()
    for n in range(MEGABYTES):
        expected.update(bytes([n % 251]) * 1_000_000)
    with (cli.cwd / "here" / "big").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").digest() == expected.digest()
    assert [path.name for path in (cli.cwd / "here").iterdir()] == ["big"]
    cli.ok("models", "rm", "big", "--yes")

"""The `runner` commands that an error prints work in the situation that printed it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, show_ended
from tests.unit.command_lines import commands_in
from tests.unit.fix_situations import SERVED, FixCase

pytestmark = pytest.mark.slow  # a minute: two commands or more per situation
_SCRIPT = """\
import os, pathlib, sys
if len(sys.argv) > 1:
    sys.exit("failed on purpose")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text("1")
with open(os.environ["RUNNER_METRICS_FILE"], "a") as metrics:
    metrics.write('{"step": 1, "loss": 0.5}\\n')
"""


@pytest.fixture(scope="module")
def runs(session_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The IDs of a run that succeeded, one that failed, one that a model needs, and a sweep."""
    folder = tmp_path_factory.mktemp("fixes")
    cli = Cli(session_home, folder)
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    words = ("train", "./train.py", "--detach", "-o", "json")
    failed = json.loads(cli.ok(*words, "--", "fail"))["run_id"]
    done = json.loads(cli.ok(*words))["run_id"]
    kept = json.loads(cli.ok(*words))["run_id"]
    spare = json.loads(cli.ok(*words))["run_id"]
    assert show_ended(cli, failed)["state"] == "failed"
    assert show_ended(cli, kept)["state"] == "succeeded"
    assert show_ended(cli, done)["state"] == "succeeded"
    assert show_ended(cli, spare)["state"] == "succeeded"
    varied = cli.ok("sweep", "start", "./train.py", "-p", "mode=fail", "--detach", "-o", "json")
    cli.ok("models", "register", kept, "needed")
    cli.ok("models", "register", done, "fixes")
    cli.ok("models", "register", done, "ours")
    for run in (done, spare):
        cli.ok("models", "register", run, "used")
    cli.ok("models", "alias", "used@1", "live")
    cli.ok("data", "put", "train.py", "fixes/train.py")
    return {"done": done, "failed": failed, "kept": kept, "sweep": json.loads(varied)["sweep"]}


def filled(words: str, runs: Mapping[str, str], case: FixCase) -> list[str]:
    values = {name: value.format(**runs) for name, value in case.values.items()}
    return [values.get(word, word) for word in shlex.split(words)]


def error_of(cli: Cli, words: list[str]) -> dict[str, str]:
    done = cli.run(*words)
    if done.returncode == 0:
        return {}
    code = done.stderr.partition("error[")[2].partition("]")[0]
    fix = done.stderr.partition("  fix: ")[2].partition("\n")[0]
    return {"code": code, "fix": fix, "shown": f"{done.returncode}\n{done.stdout}\n{done.stderr}"}


@pytest.mark.parametrize("code", SERVED)
def test_printed_command_works_on_the_services(
    cli: Cli, runs: Mapping[str, str], code: str
) -> None:
    case = SERVED[code]
    for name, text in case.files.items():
        (cli.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.cwd / name).write_text(text, encoding="utf-8")
    err = error_of(cli, shlex.split(case.words.format(**runs)))
    assert err.get("code") == code, err
    printed = [each for each in commands_in(err["fix"]) if each.startswith("runner ")]
    assert printed, err
    for command in printed:
        again = error_of(cli, filled(command, runs, case)[1:])
        assert again.get("code", "") in ("", *case.beyond), (command, again)


def test_failed_run_without_a_checkpoint_is_started_over_by_retry(
    cli: Cli, runs: Mapping[str, str]
) -> None:
    err = error_of(cli, ["resume", runs["failed"]])
    (command,) = commands_in(err["fix"])
    assert command == f"runner retry {runs['failed']}"
    again = error_of(cli, shlex.split(command)[1:])
    assert again["code"] == "", again  # it started, and fails again on purpose
    assert "✓ submit" in again["shown"]

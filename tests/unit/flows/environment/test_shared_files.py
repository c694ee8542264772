"""`runner init --state`, `--secrets` and `--ci`: which files they write, and what they keep."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from runner.cli.main import main
from runner_infra.config.stack_file import load_stack_config
from runner_infra.engine.shared_state import backend_variables, read_secrets_provider

pytest.importorskip("pulumi")
_SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
_STATE = "azblob://state?storage_account=contosostate"
_KEY = "azurekeyvault://contoso-state.vault.azure.net/keys/pulumi"
_SHARED = ("--state", _STATE, "--secrets", _KEY)
_CI = ("--ci", "github", "--repository", "contoso/training")
_WORKFLOW = ".github/workflows/azure-environment.yml"
_ID = f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/state/providers"
_LISTED = {
    "storage": f"{_ID}/Microsoft.Storage/storageAccounts/contosostate",
    "keyvault": f"{_ID}/Microsoft.KeyVault/vaults/Contoso-State",
}
_STACK = f"""\
# the team's environment
config:
  azure-native:location: westeurope  # near the data
  azure-native:subscriptionId: {_SUBSCRIPTION}
  runner:pools:
    - id: t4
      vm_size: Standard_NC4as_T4_v3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a project without a terminal, with a stand-in of `az`. Return its folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: runner\nruntime: python  # ours\n")
    (folder / "Pulumi.dev.yaml").write_text(_STACK)
    programs = tmp_path / "bin"
    programs.mkdir()
    listed = "".join(
        f'[ $1 = {kind} ] && echo \'[{{"id": "{id_}"}}]\' && exit\n'
        for kind, id_ in _LISTED.items()
    )
    (programs / "az").write_text(f"#!/bin/sh\n{listed}echo '[]'\n")
    (programs / "az").chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").touch()
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    return folder


def load(file: Path) -> Any:
    return YAML(typ="safe").load(file)


def test_settings_and_comments_of_an_existing_stack_stay(folder: Path) -> None:
    assert main(["init", *_SHARED, *_CI]) == 0
    text = (folder / "Pulumi.dev.yaml").read_text()
    assert all(line in text for line in _STACK.splitlines())
    config = load_stack_config(folder / "Pulumi.dev.yaml", env={})
    assert config.ci is not None
    assert config.ci.github == "contoso/training"
    assert (config.ci.state_account, config.ci.key_vault) == tuple(_LISTED.values())
    assert read_secrets_provider(folder / "Pulumi.dev.yaml") == _KEY
    assert "# ours" in (folder / "Pulumi.yaml").read_text()
    assert backend_variables(folder, {}) == {"PULUMI_BACKEND_URL": _STATE}
    assert backend_variables(folder, {"PULUMI_BACKEND_URL": "file:///own"}) == {}


def test_new_stack_gets_its_questions_and_the_workflow(folder: Path) -> None:
    (folder / "Pulumi.dev.yaml").unlink()
    asked = ("--subscription", _SUBSCRIPTION, "--no-check")
    assert main(["init", *asked, *_SHARED, *_CI]) == 0
    assert load_stack_config(folder / "Pulumi.dev.yaml", env={}).ci is not None
    assert (folder / _WORKFLOW).is_file()


def test_actions_are_githubs_own_and_pinned_and_jobs_have_no_secret(folder: Path) -> None:
    assert main(["init", *_SHARED, *_CI]) == 0
    text = (folder / _WORKFLOW).read_text()
    jobs = load(folder / _WORKFLOW)["jobs"]
    used = {step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step}
    assert used
    for each in used:
        name, _, commit = each.partition("@")
        assert name.startswith("actions/")
        assert len(commit) == 40
    ours = (Path(__file__).parents[4] / ".github/workflows/ci.yml").read_text()
    assert all(each in ours for each in used)
    assert "secrets." not in text
    assert "@" not in text.replace("actions/checkout@", "").replace("actions/setup-python@", "")
    assert jobs["deploy"]["environment"] == "azure"
    assert all("environment" not in job for name, job in jobs.items() if name != "deploy")


def test_passphrase_is_a_secret_of_the_repository_without_a_key(folder: Path) -> None:
    assert main(["init", "--state", _STATE, *_CI]) == 0
    assert "${{ secrets.PULUMI_CONFIG_PASSPHRASE }}" in (folder / _WORKFLOW).read_text()


def test_existing_workflow_is_kept_without_force(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".github/workflows").mkdir(parents=True)
    (folder / _WORKFLOW).write_text("name: ours\n")
    before = {path: path.read_text() for path in folder.glob("*.yaml")}
    assert main(["init", *_SHARED, *_CI]) == 2
    assert "R-INIT-EXISTS" in capsys.readouterr().err
    assert (folder / _WORKFLOW).read_text() == "name: ours\n"
    assert {path: path.read_text() for path in folder.glob("*.yaml")} == before
    assert main(["init", *_SHARED, *_CI, "--force"]) == 0
    assert "jobs:" in (folder / _WORKFLOW).read_text()
    assert "# near the data" in (folder / "Pulumi.dev.yaml").read_text()


def test_workflow_is_at_the_top_of_the_repository_of_the_remote(folder: Path) -> None:
    top = folder.parent
    subprocess.run(["git", "init", "-q", str(top)], check=True)
    remote = "git@github.com:contoso/models.git"
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=top, check=True)
    assert main(["init", *_SHARED, "--ci", "github"]) == 0
    workflow = load(top / _WORKFLOW)
    assert workflow["defaults"]["run"]["working-directory"] == "project"
    config = load_stack_config(folder / "Pulumi.dev.yaml", env={})
    assert config.ci is not None
    assert config.ci.github == "contoso/models"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--state", "azblob://state"], "R-INIT-VALUE"),
        (["--state", "s3://state?storage_account=contoso"], "R-INIT-VALUE"),
        (["--secrets", "azurekeyvault://contoso/keys/pulumi"], "R-INIT-VALUE"),
        (["--secrets", "https://contoso.vault.azure.net/keys/pulumi"], "R-INIT-VALUE"),
        ([*_SHARED, "--ci", "gitlab"], "R-INIT-VALUE"),
        ([*_SHARED, "--ci", "github"], "R-INIT-VALUE"),  # no remote
        ([*_SHARED, "--ci", "github", "--repository", "training"], "R-INIT-VALUE"),
        ([*_CI], "R-INIT-STATE"),
    ],
)
def test_invalid_options_change_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: str
) -> None:
    before = {path: path.read_text() for path in folder.rglob("*.y*ml")}
    assert main(["init", *words]) == 2
    assert f"error[{code}]" in capsys.readouterr().err
    assert {path: path.read_text() for path in folder.rglob("*.y*ml")} == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("native:location", "native:region", "azure-native:region: unknown key"),
        ("  azure-native:location: westeurope  # near the data\n", "", "the location is missing"),
        ("config:\n", "config:\n  runner:storage: {file_share_gib: 100}\n", "account key"),
        ("config:\n", "config:\n  runner:network: {}\n", "storage_from"),
        ("config:\n", "config:\n  runner:ci: {github: contoso}\n", "is not a repository"),
    ],
)
def test_stack_that_the_workflow_cannot_deploy_changes_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    file = folder / "Pulumi.dev.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    before = {path: path.read_text() for path in folder.rglob("*.y*ml")}
    assert main(["init", *_SHARED, *_CI]) != 0
    shown = capsys.readouterr()
    assert says in " ".join(shown.err.split())
    assert "wrote" not in shown.out + shown.err
    assert {path: path.read_text() for path in folder.rglob("*.y*ml")} == before
    file.write_text(_STACK)  # what the error asks for; nothing is in the way then
    assert main(["init", *_SHARED, *_CI]) == 0


def test_only_ids_that_the_state_needs_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bin/az").write_text("#!/bin/sh\necho '[]'\n")
    state = ("--state", "azblob://state?storage_account=contosostate")
    assert main(["init", *state, *_CI]) == 0
    shown = capsys.readouterr().err
    assert "add state_account to runner:ci" in shown
    assert "key_vault" not in shown
    assert main(["init", *_SHARED, *_CI, "--force"]) == 0
    assert "add key_vault to runner:ci" in capsys.readouterr().err


def test_key_of_a_deployed_stack_is_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, home = folder / "Pulumi.dev.yaml", folder / "home"
    monkeypatch.setenv("RUNNER_HOME", str(home))
    monkeypatch.setattr(Path, "home", lambda: folder)  # nobody has run `pulumi login`
    file.write_text(f"encryptionsalt: v1:abc\n{_STACK}")
    assert main(["init", *_SHARED]) != 0
    shown = capsys.readouterr().err
    assert "R-INIT-SECRETS" in shown
    assert f"PULUMI_BACKEND_URL={(home / 'pulumi').as_uri()} " in shown
    assert f"PULUMI_CONFIG_PASSPHRASE_FILE={home}/pulumi/passphrase " in shown
    assert f"pulumi stack change-secrets-provider --stack dev '{_KEY}'" in shown
    assert "if nothing was deployed yet, remove encryptionsalt" in " ".join(shown.split())
    assert "secretsprovider" not in file.read_text()
    assert "backend" not in (folder / "Pulumi.yaml").read_text()


def test_workflow_can_be_added_later_and_written_again(folder: Path) -> None:
    assert main(["init", *_SHARED]) == 0
    file = folder / "Pulumi.dev.yaml"
    assert "runner:ci" not in file.read_text()
    assert main(["init", *_CI]) == 0
    text = file.read_text()
    assert all(each in text for each in _LISTED.values())
    assert "PULUMI_CONFIG_PASSPHRASE" not in (folder / _WORKFLOW).read_text()
    file.write_text(text.replace("runner:ci:", "runner:ci:\n    branch: release"))
    assert main(["init", *_CI, "--force"]) == 0
    config = load_stack_config(file, env={})
    assert config.ci is not None
    assert (config.ci.branch, config.ci.key_vault) == ("release", _LISTED["keyvault"])
    assert load(folder / _WORKFLOW)["jobs"]["deploy"]["if"].count("refs/heads/release") == 1


# Stands in for `gh`: the comments of a pull request, in a file of JSON.
_GH = """\
import json, os, subprocess, sys
from pathlib import Path
file, words = Path(os.environ["COMMENTS"]), sys.argv[1:]
comments = json.loads(file.read_text())
if words[:2] == ["pr", "comment"]:
    body = Path(words[words.index("--body-file") + 1]).read_text()
    comments.append({"id": 100 + len(comments), "user": {"login": BOT}, "body": body})
elif "PATCH" in words:
    number = int(words[1].rpartition("/")[2])
    (one,) = [each for each in comments if each["id"] == number]
    one["body"] = words[words.index("--raw-field") + 1].removeprefix("body=")
else:
    query = words[words.index("--jq") + 1]
    subprocess.run(["jq", "-r", query], input=file.read_text(), text=True, check=True)
file.write_text(json.dumps(comments))
"""


@pytest.mark.skipif(shutil.which("jq") is None, reason="the filter of the step is in jq's language")
def test_workflow_edits_its_own_comment_only(folder: Path, tmp_path: Path) -> None:
    assert main(["init", *_SHARED, *_CI]) == 0
    job = load(folder / _WORKFLOW)["jobs"]["plan"]
    (step,) = [each for each in job["steps"] if each.get("name") == "comment"]
    bot = "github-actions[bot]"
    marker = step["env"]["MARKER"]
    others = [
        {"id": 1, "user": {"login": "eve"}, "body": f"{marker} written by a person"},
        {"id": 2, "user": {"login": bot}, "body": "coverage: 80 %"},
        {"id": 3, "user": {"login": bot}, "body": marker.replace("stack dev", "stack prod")},
        {"id": 4, "user": {"login": bot}, "body": f"a quote: {marker}"},
    ]
    comments = tmp_path / "comments.json"
    comments.write_text(json.dumps(others))
    program = tmp_path / "bin/gh"
    program.write_text(f"#!{sys.executable}\n{_GH.replace('BOT', repr(bot))}")
    program.chmod(0o755)
    filled = {"GH_REPO": "contoso/training", "PULL_REQUEST": "7", "MARKER": marker}
    for commit in ("c0ffee", "decade"):
        (folder / "plan.txt").write_text(f"plan of {commit}\n")
        env = {**os.environ, **filled, "COMMIT": commit, "COMMENTS": str(comments)}
        subprocess.run(["bash", "-e", "-c", step["run"]], env=env, check=True)
        *kept, own = json.loads(comments.read_text())
        assert kept == others
        assert f"plan of {commit}" in own["body"]
        assert own["body"].startswith(f"{marker}\n### Azure environment dev: changes by {commit}")

"""The workflow that `runner init --ci github` writes: its steps, over the real engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.engine.deployed import make_project, run_in
from tests.engine.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
_WORKFLOW = ".github/workflows/azure-environment.yml"
_EXPRESSION = re.compile(r"\$\{\{ *([\w.]+) *\}\}")
# What GitHub puts in place of expressions.
_VALUES = {
    "vars.AZURE_TENANT_ID": "tenant",
    "vars.AZURE_PLAN_CLIENT_ID": "of-the-plan",
    "vars.AZURE_DEPLOY_CLIENT_ID": "of-the-deployment",
    "github.token": "token-of-the-job",
    "github.repository": "contoso/training",
    "github.event.pull_request.number": "7",
    "github.event.pull_request.head.sha": "c0ffee",
    "secrets.PULUMI_CONFIG_PASSPHRASE": "a passphrase of the tests",
}
_PROGRAMS = {
    "runner": f'exec "{sys.executable}" -m runner "$@"',
    "pip": 'echo "pip $*" >> "$LOG"',
    "gh": 'echo "gh $*" >> "$LOG"; [ "$1" = pr ] || exit 0; cp comment.md "$BODY"',
}


class Machine:
    """A machine of GitHub: executes the steps of a job as `run` of a workflow."""

    def __init__(self, stage: Stage, project: Path) -> None:
        self.project, self._stage = project, stage
        self.log, self.body = stage.folder / "log", stage.folder / "comment"
        programs = stage.folder / "programs"
        programs.mkdir()
        for name, text in _PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        self._env = {
            **stage.environment,
            "PATH": f"{programs}{os.pathsep}{stage.environment['PATH']}",
            "RUNNER_HOME": str(stage.folder / "home-of-the-machine"),
            "LOG": str(self.log),
            "BODY": str(self.body),
        }
        self.workflow: dict[str, Any] = YAML(typ="safe").load(project / _WORKFLOW)

    def run(self, job: str) -> tuple[int, str]:
        """Execute the scripts of a job until one fails. Return its exit code, and all output."""
        definition = self.workflow["jobs"][job]
        kind = "deploy" if job == "deploy" else "plan"
        for each in map(self._stage.azure.get, self._stage.azure.ids()):
            if each and each["id"].endswith(f"/id-ci-{kind}-runner-dev"):
                self._stage.azure.sign_in(each["outputs"]["principalId"], "app")
        printed, failed = "", 0
        for step in definition["steps"]:
            if "run" not in step or (failed and step.get("if") != "always()"):
                continue
            env = {**self.workflow["env"], **definition["env"], **step.get("env", {})}
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=self.project,
                env={**self._env, **{name: self._fill(text) for name, text in env.items()}},
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            printed += done.stdout + done.stderr
            failed = failed or done.returncode
        return failed, printed

    def _fill(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: _VALUES[found[1]], text)


@pytest.fixture
def project(stage: Stage) -> Path:
    """Return a deployed project with a workflow."""
    folder = make_project(stage)
    written = run_in(
        stage,
        *("init", "--ci", "github", "--repository", "contoso/training"),
        *("--state", "azblob://state?storage_account=contosostate"),
    )
    assert written.returncode == 0, written.stderr
    return folder


@pytest.mark.feature(1)
def test_plan_is_a_comment_and_deployment_changes_azure(stage: Stage, project: Path) -> None:
    machine = Machine(stage, project)
    # The variable of the tests replaces the container that Pulumi.yaml names.
    assert "azblob://state" in (project / "Pulumi.yaml").read_text()
    failed, printed = machine.run("deploy")
    assert failed == 0, printed
    credentials = {each for each in stage.azure.ids() if "federatedIdentityCredentials" in each}
    assert len(credentials) == 3

    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace("max_spot: 4", "max_spot: 2"))
    before = stage.azure.journal()
    failed, printed = machine.run("plan")
    assert failed == 0, printed
    comment = machine.body.read_text()
    assert "changes by c0ffee" in comment
    assert re.search(r"~ update +(batch:)?Pool +pool-t4", comment), comment
    assert comment.count("~~~~") == 2
    assert "gh pr comment 7 --body-file comment.md" in machine.log.read_text()
    assert stage.azure.journal() == before, "a plan changes nothing"

    failed, printed = machine.run("deploy")
    assert failed == 0, printed
    changed = [found for found in stage.azure.journal()[len(before) :] if found[0] == "update"]
    assert any(resource.endswith("/pools/t4") for _, resource in changed)


def test_failed_plan_fails_the_job_and_is_in_the_comment(stage: Stage, project: Path) -> None:
    file = project / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace("Standard_NC4as_T4_v3", "Standard_NC9"))
    machine = Machine(stage, project)
    failed, _ = machine.run("plan")
    assert failed != 0
    assert "R-MACHINE-UNKNOWN" in machine.body.read_text()


def test_nightly_job_fails_if_azure_differs(stage: Stage, project: Path) -> None:
    machine = Machine(stage, project)
    failed, printed = machine.run("deploy")
    assert failed == 0, printed
    failed, printed = machine.run("drift")
    assert failed == 0, printed
    (pool,) = [each for each in stage.azure.ids() if each.endswith("/pools/t4")]
    stage.azure.delete(pool)
    failed, printed = machine.run("drift")
    assert failed == 1, printed

"""Stages on which `runner up` has run: deployed once, and copied for each test that needs one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import warm
from tests.e2e.conftest import RUNNER
from tests.engine.stage import ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

_TIMEOUT_S = 600
# The folders that a deployment writes: Azure, Pulumi's state, RUNNER_HOME, and the settings of the
# stack, which then contain the salt of its secrets.
_LEFT = ("azure", "state", "runner", "project")


def make_project(stage: Stage, more: str = "") -> Path:
    """Create a project, with `more` lines in the settings of stack `dev`. Return its folder."""
    folder = stage.folder / "project"
    folder.mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    (folder / "infra").mkdir()  # the engine enters the folder of `main`; the code is installed
    text = (ROOT / "Pulumi.dev.yaml").read_text()
    text += f"  azure-native:location: westeurope\n  azure-native:subscriptionId: {SUBSCRIPTION}\n"
    (folder / "Pulumi.dev.yaml").write_text(text + more)
    return folder


def run_in(stage: Stage, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `runner` in the project of the stage."""
    given = {**stage.environment, "RUNNER_HOME": str(stage.folder / "runner"), **env}
    return warm.run(RUNNER, words, given, stage.folder / "project", timeout_s=_TIMEOUT_S)


class DeployedOnce:
    """The deployed stages of a session, by the additional lines in their settings."""

    def __init__(self, new: Callable[[Path], Stage], folders: pytest.TempPathFactory) -> None:
        self._new = new
        self._folders = folders
        self._made: dict[str, tuple[Path, Any]] = {}

    def copy_to(self, stage: Stage, more: str = "") -> Any:
        """Copy a deployed stage to this one. Return the output of its `runner up -o json`."""
        if more not in self._made:
            first = self._new(self._folders.mktemp("deployed"))
            make_project(first, more)
            done = run_in(first, "up", "-y", "--no-check", "-o", "json")
            assert done.returncode == 0, done.stderr
            self._made[more] = first.folder, json.loads(done.stdout)
        folder, printed = self._made[more]
        for name in _LEFT:
            shutil.copytree(folder / name, stage.folder / name, dirs_exist_ok=True)
        return printed

"""The project as a user has it: its Pulumi.yaml, its program, and the policies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engine.deployed import run_in
from tests.engine.stage import CONFIG, ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
POLICY = ("--policy-pack", str(ROOT / "infra/runner_infra/policy"))


@pytest.fixture
def project(stage: Stage) -> Path:
    """Return a copy of the project, so that the settings are not written into the repository."""
    folder = stage.folder / "project"
    folder.mkdir()
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml"):
        shutil.copy(ROOT / name, folder)
    for name in ("infra", "custom_image"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    stage.run("stack", "init", "dev", cwd=folder)
    for key, value in CONFIG.items():
        stage.run("config", "set", key, value, cwd=folder)
    return folder


def test_plain_pulumi_previews_the_project_within_its_policies(stage: Stage, project: Path) -> None:
    stage.take_policy_packs()
    shown = stage.run("preview", *POLICY, cwd=project, check=False)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "azure-native:batch:Pool" in shown.stdout
    assert "[mandatory]" not in shown.stdout


def test_plain_pulumi_previews_what_init_writes(stage: Stage) -> None:
    folder = stage.folder / "project"
    folder.mkdir()
    words = ("--subscription", SUBSCRIPTION, "--location", "West Europe", "--no-check", "--yes")
    written = run_in(stage, "init", *words)
    assert written.returncode == 0, written.stderr
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"Pulumi.yaml", "Pulumi.dev.yaml", "runner_stack/__main__.py"}

    stage.run("stack", "init", "dev", cwd=folder)
    stage.take_policy_packs()
    shown = stage.run("preview", *POLICY, cwd=folder, check=False)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "azure-native:batch:Pool" in shown.stdout
    assert "[mandatory]" not in shown.stdout


def test_plain_pulumi_creates_fixed_pools(stage: Stage, project: Path) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text()
    assert "max_spot: 4\n" in text
    file.write_text(text.replace("max_spot: 4\n", "max_spot: 4\n      scenario: fixed\n"))

    stage.take_policy_packs()
    made = stage.run("up", "--yes", *POLICY, cwd=project, check=False)

    assert made.returncode == 0, made.stdout + made.stderr
    assert stage.azure.ids() == stage.ids_in_state()

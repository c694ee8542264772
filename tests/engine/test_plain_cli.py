"""Plain `pulumi` on a project with `Pulumi.yaml`: real CLI, engine and language host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.stage import CONFIG, ROOT, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
POLICY = ("--policy-pack", str(ROOT / "infra/runner_infra/policy"))
_PROGRAM = """from tests.engine.small_program import Settings, program
program(Settings())()
"""


@pytest.fixture
def project(stage: Stage) -> Path:
    """Return a project with a Python program and a stack `dev`."""
    folder = stage.folder / "project"
    (folder / "program").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text("name: runner\nmain: program\nruntime: python\n", "utf-8")
    (folder / "program/__main__.py").write_text(_PROGRAM, "utf-8")
    stage.run("stack", "init", "dev", cwd=folder)
    for key, value in CONFIG.items():
        stage.run("config", "set", key, value, cwd=folder)
    return folder


def test_plain_pulumi_previews_creates_and_destroys(stage: Stage, project: Path) -> None:
    assert "+ 6 to create" in stage.run("preview", cwd=project).stdout
    running, stage.port = stage.port, None  # the engine starts the provider, as any plugin
    assert "+ 6 created" in stage.run("up", "--yes", cwd=project).stdout
    stage.port = running
    assert stage.azure.ids() == stage.ids_in_state()
    assert "6 unchanged" in stage.run("up", "--yes", cwd=project).stdout
    shown = stage.run("stack", "output", "endpoint", cwd=project).stdout
    assert shown.strip() == "runnerdev.westeurope.batch.azure.com"
    assert "- 6 deleted" in stage.run("destroy", "--yes", cwd=project).stdout
    assert stage.azure.ids() == set()


def test_policy_pack_fails_a_preview_and_names_each_rule(stage: Stage, project: Path) -> None:
    stage.take_policy_packs()
    stopped = stage.run("preview", *POLICY, cwd=project, check=False)

    assert stopped.returncode != 0
    for rule in (
        "budget-present",
        "entra-only",
        "keys-only-for-the-share",
        "no-public-blob-access",
        "tagged",
    ):
        assert f"[mandatory]  {rule}" in stopped.stdout
    assert "pools-scale-to-zero" not in stopped.stdout
    assert "nothing-retired" not in stopped.stdout


def test_failed_program_shows_its_line(stage: Stage, project: Path) -> None:
    (project / "program/__main__.py").write_text("import pulumi\n1 / 0\n", "utf-8")

    failed = stage.run("preview", cwd=project, check=False)

    assert failed.returncode != 0
    assert "ZeroDivisionError" in failed.stdout
    assert "line 2" in failed.stdout

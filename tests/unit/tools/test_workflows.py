"""The workflows and forms below .github/, as far as no linter checks them (see `make lint`)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.unit.source_tree import ROOT, assert_none

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PINNED = re.compile(r"^ *(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$")


def load(path: Path) -> dict[str, Any]:
    """Return a file of .github/."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def jobs() -> list[tuple[str, dict[str, Any]]]:
    """Return every job of every workflow with its name."""
    return [
        (f"{path.name}:{name}", job)
        for path in WORKFLOWS
        for name, job in load(path)["jobs"].items()
    ]


def test_actions_are_pinned_to_a_commit_with_its_version() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text("utf-8").splitlines()]
    used = [line for line in lines if "uses:" in line]
    assert len(used) > 8
    assert_none([line for line in used if not PINNED.match(line)], "actions without a commit")


def test_one_job_may_publish_and_the_others_only_read() -> None:
    assert all(load(path)["permissions"] == {} for path in WORKFLOWS)
    permissions = {name: job["permissions"] for name, job in jobs()}
    assert permissions.pop("release.yml:publish") == {"id-token": "write"}
    assert all(given == {"contents": "read"} for given in permissions.values())
    publish = dict(jobs())["release.yml:publish"]
    assert publish["environment"] == "pypi"
    assert publish["needs"] == ["test", "build"]
    assert "secrets." not in "".join(path.read_text("utf-8") for path in WORKFLOWS)


def test_workflows_run_commands_that_also_run_on_a_laptop() -> None:
    ran = {step["run"] for _, job in jobs() for step in job["steps"] if "run" in step}
    assert ".ci/run" in ran
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ran:
        program, *words = command.split()
        if program == "make":
            assert all(re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words), command
        else:
            assert (ROOT / program).is_file(), command


def test_both_distributions_are_built_and_published() -> None:
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndist:", 1)[1].split("\n\n")[0]
    folders = [
        step["with"]["packages-dir"]
        for step in dict(jobs())["release.yml:publish"]["steps"]
        if "pypi-publish" in step["uses"]
    ]
    assert folders == ["dist/batch-emulator", "dist/azure-batch-runner"]
    assert all(f"--out-dir {folder} " in rule for folder in folders)


def test_forms_ask_for_a_report_and_their_answers_have_names() -> None:
    forms = {path.name: load(path) for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))}
    assert forms.pop("config.yml") == {"blank_issues_enabled": False}
    assert {"bug.yml", "feature.yml"} == set(forms)
    for name, form in forms.items():
        asked = [field for field in form["body"] if field["type"] != "markdown"]
        ids = [field["id"] for field in asked]
        assert len(set(ids)) == len(ids), name
        assert all(field["attributes"]["label"] for field in asked), name
    bug = str(forms["bug.yml"])
    assert "runner bug-report" in bug
    assert "runner explain" in bug


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a folder with both distributions of version 1.2.0 and a changelog."""
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "check_release.sh"
    script.write_bytes((ROOT / "tools/check_release.sh").read_bytes())
    for name in ("batch-emulator", "azure-batch-runner"):
        folder = tmp_path / "dist" / name
        folder.mkdir(parents=True)
        for end in ("-1.2.0-py3-none-any.whl", "-1.2.0.tar.gz"):
            (folder / f"{name.replace('-', '_')}{end}").touch()
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.0] - 2026-12-01\n", encoding="utf-8")
    return tmp_path


def check(release: Path, tag: str) -> tuple[int, str]:
    """Return exit code and error of the check of a tag."""
    script = str(release / "tools" / "check_release.sh")
    done = subprocess.run(["bash", script, tag], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_tag_of_the_built_version_is_accepted(release: Path) -> None:
    assert check(release, "v1.2.0") == (0, "")


def test_tag_of_another_version_is_refused(release: Path) -> None:
    code, error = check(release, "v1.2.1")
    assert code == 3
    assert "batch_emulator-1.2.1-py3-none-any.whl does not exist" in error
    (release / "dist/azure-batch-runner/azure_batch_runner-1.2.0.tar.gz").unlink()
    assert "azure_batch_runner-1.2.0.tar.gz does not exist" in check(release, "v1.2.0")[1]


def test_version_without_a_section_of_the_changelog_is_refused(release: Path) -> None:
    (release / "CHANGELOG.md").write_text("## [Unreleased]\n", encoding="utf-8")
    code, error = check(release, "v1.2.0")
    assert code == 3
    assert "CHANGELOG.md has no section for 1.2.0" in error

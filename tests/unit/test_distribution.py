"""The name of the distribution, and locks that can be installed in one environment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import batch_emulator
from runner.flows.extras import DISTRIBUTION, install_command
from tests.unit.source_tree import checkout

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = ("dev.lock", "infra.lock", "extras.lock")
# `name[extra]` with an extra of ours, and what follows `pip install`, `uv add`, `pipx install` ...
REQUIREMENT = re.compile(rf"(?<![\w./-])(\w[\w.-]*)\[\{{?(?:{'|'.join(EXTRAS)}|extra)\}}?\]")
INSTALLED = re.compile(
    r"(?:pip install|pipx install|pipx run|uv add|uv tool install|uvx) [^\n`]*?"
    r"(?<![\w/.=-])(runner)(?![\w/.=-])"
)


def texts() -> dict[str, str]:
    """Return the texts of the tree by path, without the tests of this rule."""
    kinds = {".py", ".md", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".json", ".txt", ""}
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace")
        for path in checkout()
        if path.suffix in kinds
        and path.is_file()
        and path.name not in {Path(__file__).name, "test_structure.py", "test_fixes.py"}
    }


def other_distributions(text: str) -> list[str]:
    """Return the requirements in a text that name another distribution than ours."""
    named = [found for found in REQUIREMENT.finditer(text) if found[1] != DISTRIBUTION]
    return [found[0] for found in (*named, *INSTALLED.finditer(text))]


def pins(lock: str) -> dict[str, set[str]]:
    """Return the versions that a lock file pins, by package (numpy has one per Python)."""
    found: dict[str, set[str]] = {}
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def test_both_distributions_have_the_licence() -> None:
    file = ROOT / "batch_emulator" / "pyproject.toml"
    emulator = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    for project, folder in ((PROJECT, ROOT), (emulator, file.parent)):
        assert project["license"] == "MIT"
        assert project["license-files"] == ["LICENSE"]
        text = (folder / "LICENSE").read_text(encoding="utf-8")
        assert text.startswith("MIT License\n\nCopyright (c) 2026 the azure-batch-runner authors\n")
        assert text == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_messages_name_the_distribution_of_pyproject() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert install_command("infra").endswith(f"pip install '{PROJECT['name']}[infra]'")
    assert "pip install --upgrade '" in install_command("local", upgrade=True)


def test_emulator_belongs_to_its_own_distribution_only() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    alone = tomllib.loads((ROOT / "batch_emulator/pyproject.toml").read_text(encoding="utf-8"))
    wheel = whole["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["runner", "infra/runner_infra"]
    assert PROJECT["scripts"].keys() == {"runner"}
    assert alone["project"]["scripts"].keys() == {"batch-emulator"}
    assert "entry-points" not in PROJECT
    assert alone["project"]["entry-points"].keys() == {"pytest11"}


def test_both_distributions_have_the_same_version() -> None:
    assert PROJECT["version"] == batch_emulator.__version__
    assert f"batch-emulator=={PROJECT['version']}" in PROJECT["dependencies"]


def test_locks_leave_the_emulator_to_the_clone() -> None:
    assert not [lock for lock in LOCKS if "batch-emulator" in pins(lock)]
    assert not [
        lock for lock in LOCKS if "://" in (ROOT / "requirements" / lock).read_text("utf-8")
    ]


def test_no_text_installs_another_distribution() -> None:
    found = {path: other for path, text in texts().items() if (other := other_distributions(text))}
    assert not found


def test_other_distributions_are_recognised() -> None:
    for bad in (
        "pip install 'runner[infra]'",
        "runner[{extra}]",
        "pip install runner",
        "uvx runner",
    ):
        assert other_distributions(bad), bad
    for good in (
        f"pip install '{DISTRIBUTION}[infra]'",
        f"pip install {DISTRIBUTION}",
        "pip install ./batch_emulator '.[local]'",
        "runner.cli[local-part]",
    ):
        assert not other_distributions(good), good


def test_locks_pin_the_same_version_of_what_they_share() -> None:
    locks = {name: pins(name) for name in LOCKS}
    every = sorted({package for lock in locks.values() for package in lock})
    versions = {
        package: {name: lock[package] for name, lock in locks.items() if package in lock}
        for package in every
    }
    assert "protobuf" in locks["infra.lock"].keys() & locks["extras.lock"].keys()
    assert not {
        package: found
        for package, found in versions.items()
        if any(pinned != next(iter(found.values())) for pinned in found.values())
    }

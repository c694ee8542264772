"""The tools that `runner check` looks for, with stand-ins on PATH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.checks import Check
from runner.flows.environment.checks.tools import TOOLS, check_tools, how_to_install

pytest.importorskip("pulumi")
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Write a program that prints a line, or complains and fails."""

    def write(name: str, says: str = "", *, complains: str = "", folder: str = "bin") -> None:
        file = tmp_path / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = f"echo '{says}'" if not complains else f"echo '{complains}' >&2; exit 1"
        file.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
        file.chmod(0o755)

    (tmp_path / "bin").mkdir()
    return write


def found(tmp_path: Path) -> dict[str, Check]:
    checks = check_tools(tmp_path / "home", {"PATH": str(tmp_path / "bin")})
    return {each.name: each for each in checks}


@pytest.mark.feature(2)
def test_tools_are_named_with_their_version_and_use(install: Install, tmp_path: Path) -> None:
    install("pulumi", "v3.250.1")
    install("az", "2.91.0")
    install("docker", "28.2.2")
    install("ssh", "OpenSSH_9.2p1 Debian-2, OpenSSL 3.0.19 27 Jan 2026")
    checks = found(tmp_path)
    assert {each.state for each in checks.values()} == {"ok"}
    shown = {name: each.detail.partition(", for ")[0] for name, each in checks.items()}
    assert shown.pop("pulumi-sdk").startswith("version 3.")
    assert shown == {
        "pulumi": "pulumi 3.250.1",
        "az": "az 2.91.0",
        "containers": "docker 28.2.2",
        "ssh": "ssh 9.2p1",
    }
    assert "`runner preview`, `up` and `down`" in checks["pulumi"].detail


def test_missing_tools_are_notes_with_purpose_and_fix(install: Install, tmp_path: Path) -> None:
    checks = found(tmp_path)
    missing = [each for name, each in checks.items() if name != "pulumi-sdk"]
    assert {each.state for each in missing} == {"note"}
    assert all(each.detail.startswith("not installed; needed for ") for each in missing)
    assert all(each.fix for each in missing)
    assert checks["pulumi"].fix == "run `runner preview --yes`, which installs it"


def test_engine_without_its_daemon_is_a_note_and_another_is_used(
    install: Install, tmp_path: Path
) -> None:
    install("podman", complains="cannot reach the socket")
    engine = found(tmp_path)["containers"]
    assert (engine.state, engine.fix) == ("note", "start the engine, or allow your user to use it")
    assert engine.detail.startswith("podman does not work (cannot reach the socket); needed for")
    install("docker", "28.2.2")
    assert found(tmp_path)["containers"].detail.startswith("docker 28.2.2, for")


def test_pulumi_installed_by_runner_is_found(install: Install, tmp_path: Path) -> None:
    install("pulumi", "v3.250.1", folder="home/pulumi-cli/bin")
    assert found(tmp_path)["pulumi"].state == "ok"


@pytest.mark.parametrize(
    ("tool", "platform", "manager", "fix"),
    [
        ("ssh", "linux", "apt-get", "sudo apt-get install openssh-client"),
        ("ssh", "linux", "dnf", "sudo dnf install openssh-clients"),
        ("containers", "darwin", "brew", "brew install podman"),
        ("az", "win32", "winget", "winget install Microsoft.AzureCLI"),
        ("az", "linux", "apt-get", "https://learn.microsoft.com/cli/azure/install-azure-cli"),
        ("ssh", "win32", "winget", "install an OpenSSH client"),
    ],
)
def test_fix_of_a_missing_tool_is_that_of_the_platform(
    install: Install, tmp_path: Path, tool: str, platform: str, manager: str, fix: str
) -> None:
    install(manager)
    (wanted,) = [each for each in TOOLS if each.name == tool]
    assert how_to_install(wanted, platform, str(tmp_path / "bin")).startswith(fix)

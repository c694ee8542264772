"""Find the external programs that some verbs use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from runner.core.azure.clouds import INSTALL_AZ
from runner.core.checks import Check, noted, passed, run_check
from runner.flows.environment.plan import need_pulumi

_TIMEOUT_S = 30.0
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}[\w.+-]{0,40}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, or alternatives, each with the arguments that print its version.

    `packages` has its name by package manager; `otherwise` is the fix if none of them is installed.
    """

    name: str
    needed_for: str
    commands: Sequence[Sequence[str]]
    packages: Mapping[str, str]
    otherwise: str


TOOLS = (
    Tool(
        "pulumi",
        "`runner preview`, `up` and `down`",
        (("pulumi", "version"),),
        {},
        "run `runner preview --yes`, which installs it",
    ),
    Tool(
        "az",
        "`az login`, and the lists of `runner init`",
        (("az", "version", "--query", '"azure-cli"', "--output", "tsv"),),
        {"brew": "azure-cli", "winget": "Microsoft.AzureCLI"},
        f"{INSTALL_AZ}, or sign in with ARM_CLIENT_ID, ARM_TENANT_ID and ARM_CLIENT_SECRET",
    ),
    Tool(
        "containers",
        "runs with an image on the local services",
        (
            ("podman", "info", "--format", "{{.Version.Version}}"),
            ("docker", "info", "--format", "{{.ServerVersion}}"),
        ),
        {"apt-get": "podman", "dnf": "podman", "brew": "podman"},
        "install podman or docker; on Windows, inside WSL",
    ),
    Tool(
        "ssh",
        "`runner ssh` and `exec` on Azure",
        (("ssh", "-V"),),
        {"apt-get": "openssh-client", "dnf": "openssh-clients", "brew": "openssh"},
        "install an OpenSSH client; on Windows, in Settings, System, Optional features",
    ),
)
_MANAGERS = {"darwin": ("brew",), "win32": ("winget",), "linux": ("apt-get", "dnf")}


def check_tools(home: Path, env: Mapping[str, str]) -> Sequence[Check]:
    """Return a check per tool, with its version. A missing program is a note.

    Args:
        home: RUNNER_HOME, where the Pulumi CLI may be.
        env: the variables of the command.
    """
    path = os.pathsep.join((env.get("PATH", ""), str(home / "pulumi-cli" / "bin")))
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(partial(_check, env={**env, "PATH": path}), TOOLS))
    return [run_check("pulumi-sdk", _find_sdk), *found]


def _find_sdk() -> str:
    """Return the version of the Pulumi SDK. Raise RunnerError if it is not installed."""
    need_pulumi()
    return f"version {version('pulumi')}, for `runner preview`, `up` and `down`"


def _check(tool: Tool, env: Mapping[str, str]) -> Check:
    broken = ""
    for command in tool.commands:
        program = shutil.which(command[0], path=env["PATH"])
        if program is None:
            continue
        found, why = _version(program, command[1:], env)
        if found:
            return passed(tool.name, f"{command[0]} {found}, for {tool.needed_for}")
        broken = broken or f"{command[0]} does not work ({why})"
    if broken:
        return noted(tool.name, f"{broken}; needed for {tool.needed_for}", _repair(tool))
    fix = how_to_install(tool, sys.platform, env["PATH"])
    return noted(tool.name, f"not installed; needed for {tool.needed_for}", fix)


def _repair(tool: Tool) -> str:
    if tool.name == "containers":
        return "start the engine, or allow your user to use it"
    return f"install {tool.name} again"


def _version(program: str, words: Sequence[str], env: Mapping[str, str]) -> tuple[str, str]:
    """Return the version that a program prints, or why it prints none."""
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(env),
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return "", getattr(err, "strerror", None) or f"no response within {_TIMEOUT_S:g} s"
    found = _VERSION.search(done.stdout or done.stderr)
    if done.returncode == 0 and found:
        return found[0], ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "", lines[-1][:200] if lines else f"exit code {done.returncode}"


def how_to_install(tool: Tool, platform: str, path: str) -> str:
    """Return the command that installs a tool on this platform, else instructions.

    Args:
        tool: the tool.
        platform: `sys.platform`.
        path: search path for package managers.
    """
    for manager in _MANAGERS.get(platform, ()):
        package = tool.packages.get(manager)
        if package and shutil.which(manager, path=path):
            return f"{'sudo ' if platform == 'linux' else ''}{manager} install {package}"
    return tool.otherwise

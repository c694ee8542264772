"""The Pulumi project of one test, with its home, state folder and fake Azure."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pulumi import automation
from pulumi.automation._server import LanguageServer
from pulumi.automation._stack import StackInitMode

from tests.engine.azure_native.azure import Azure
from tests.engine.azure_native.provider import FOLDER, VERSION
from tests.unit.infra.cloud import SUBSCRIPTION

ROOT = Path(__file__).parents[2]
PASSPHRASE = "a passphrase of the tests"
_HOST = "pulumi-language-python"
CONFIG = {"azure-native:location": "westeurope", "azure-native:subscriptionId": SUBSCRIPTION}


@dataclass
class Stage:
    """Project, home and state of one test; `built` is the output of tools/build_pulumi.sh.

    Engines connect to a running stand-in of the provider on `port`. Without a port, each starts a
    process, as for any plugin, which takes a second of processor time.
    """

    built: Path
    folder: Path
    port: int | None = None
    azure: Azure = field(init=False)

    def __post_init__(self) -> None:
        self.azure = Azure(self.folder / "azure")
        (self.folder / "state").mkdir()
        plugins = self.folder / "home/plugins"
        resource = plugins / f"resource-azure-native-v{VERSION}/pulumi-resource-azure-native"
        _executable(resource, "tests.engine.azure_native")
        self._language = plugins / f"language-python-v1.0.0/{_HOST}"
        self._language.parent.mkdir()
        self._language.symlink_to(self.built / "host" / _HOST)

    def take_policy_packs(self) -> None:
        """Start policy packs as current Pulumi does; the available language host is older."""
        self._language.unlink()
        _executable(self._language, "tests.engine.policy_host", str(self.built / "host" / _HOST))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of commands, without the user's own Pulumi settings."""
        attached = {"PULUMI_DEBUG_PROVIDERS": f"azure-native:{self.port}"} if self.port else {}
        return {
            **attached,
            # The host starts the first `python3` of the path, and `runner up` its `pulumi`.
            "PATH": os.pathsep.join(
                (str(self.built / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
            ),
            "HOME": str(self.folder),
            "PULUMI_HOME": str(self.folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{self.folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "infra"))),
            "NO_COLOR": "1",
            FOLDER: str(self.folder / "azure"),
        }

    def stack(
        self, program: Callable[[], None], config: Mapping[str, str] = CONFIG, name: str = "dev"
    ) -> automation.Stack:
        """Return a stack of the Automation API with an inline program."""
        settings = automation.ProjectSettings("runner", "python", main=str(self.folder))
        workspace = automation.LocalWorkspace(
            program=program,
            project_settings=settings,
            pulumi_command=_cli(self.built),
            pulumi_home=str(self.folder / "home"),
            env_vars=self.environment,
        )
        stack = _Stack(name, workspace, StackInitMode.CREATE_OR_SELECT)
        stack.set_all_config({k: automation.ConfigValue(v) for k, v in config.items()})
        return stack

    def run(
        self, *arguments: str, cwd: Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the Pulumi CLI with its language host for Python."""
        return subprocess.run(
            [self.built / "bin/pulumi", "--non-interactive", *arguments],
            cwd=cwd,
            env=self.environment,
            check=check,
            capture_output=True,
            text=True,
        )

    def state(self, name: str = "dev") -> str:
        """Return the state file."""
        (path,) = (self.folder / "state/.pulumi/stacks").rglob(f"{name}.json")
        return path.read_text("utf-8")

    def ids_in_state(self, name: str = "dev") -> set[str]:
        """Return the IDs of azure-native resources in the state file.

        Leave out resources that a failed replacement has deleted: the file keeps them with a mark.
        """
        resources: list[dict[str, Any]] = json.loads(self.state(name))["checkpoint"]["latest"].get(
            "resources", []
        )
        return {
            found["id"]
            for found in resources
            if found["type"].startswith("azure-native:") and not found.get("pendingReplacement")
        }


class ClosingServer(LanguageServer):
    """The server of inline programs, which also closes a loop that it stopped.

    Pulumi stops the loop when a request fails since the engine has ended. It then logs this before
    it closes the loop, and the message fails, too.
    """

    _stopped: asyncio.AbstractEventLoop | None = None

    def _exception_handler(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._stopped = loop
        super()._exception_handler(loop, context)

    def Run(self, request: Any, context: Any) -> Any:  # noqa: N802  name in the protocol
        try:
            return super().Run(request, context)
        finally:
            if self._stopped is not None:
                _close(self._stopped)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of a loop and close it."""
    loop.set_exception_handler(lambda *_: None)  # failed requests would stop it again
    while not loop.is_closed() and (tasks := asyncio.all_tasks(loop)):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


class _Stack(automation.Stack):
    """Avoids decryption after an operation, which takes 0.7 s of processor time.

    `Stack.outputs(stack)` of the SDK returns the outputs.
    """

    def outputs(self) -> automation.OutputMap:
        return {}

    def info(self, show_secrets: bool = False) -> automation.UpdateSummary | None:
        return super().info(show_secrets=False)


@functools.cache
def _cli(built: Path) -> automation.PulumiCommand:
    return automation.PulumiCommand(root=str(built))


def _executable(path: Path, module: str, *arguments: str) -> None:
    """Write a program that Pulumi starts as a plugin, which runs a module of the tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = shlex.join((sys.executable, "-u", "-m", module, *arguments))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8")
    path.chmod(0o755)

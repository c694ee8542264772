"""The state is read with its secrets encrypted; `pulumi` is a script here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.protocol.errors import RunnerError
from runner_infra.engine import automation

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "x"}
STACK = "pulumi:pulumi:Stack"
POOL = {"type": "azure-native:batch:Pool", "urn": "urn::pool-t4", "id": "/pools/t4"}


def engine_with(folder: Path, *resources: dict[str, Any]) -> automation.PulumiStack:
    """Return an engine that exports these resources without decrypting them."""
    cli = folder / "cli/bin/pulumi"
    cli.parent.mkdir(parents=True)
    state = folder / "state.json"
    state.write_text(json.dumps({"version": 3, "deployment": {"resources": [*resources]}}))
    cli.write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/commands\n'
        '[ "$1" != version ] || { echo v3.250.0; exit; }\n'
        'case "$*" in *--show-secrets*) echo "error: incorrect passphrase" >&2; exit 1;; esac\n'
        f"cat {state}\n"
    )
    cli.chmod(0o755)
    found = automation.auto.PulumiCommand(root=str(folder / "cli"))
    return automation.PulumiStack(folder, "dev", found)


def test_outputs_are_those_of_the_stack_without_secrets(tmp_path: Path) -> None:
    stack = {"type": STACK, "urn": "urn::dev", "outputs": {"pools": ["t4"], "key": SECRET}}
    engine = engine_with(tmp_path, POOL, stack)
    assert automation.outputs(engine) == {"pools": ["t4"]}


def test_state_that_was_never_deployed_has_no_outputs(tmp_path: Path) -> None:
    assert automation.outputs(engine_with(tmp_path)) == {}


def test_one_command_reads_the_deployed_resources(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, POOL, {"type": STACK, "urn": "urn::dev"})
    (tmp_path / "commands").unlink()
    assert [found.id for found in automation.deployed(engine)] == ["/pools/t4"]
    commands = (tmp_path / "commands").read_text().splitlines()
    assert commands == ["--non-interactive stack export --stack dev"]


def test_wrong_passphrase_is_found_without_a_deployment(tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        automation.check_passphrase(engine_with(tmp_path, POOL))
    assert caught.value.code == "R-PULUMI-PASSPHRASE"

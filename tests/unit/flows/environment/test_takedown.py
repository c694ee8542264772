"""Whose account `runner down` asks for active runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.engine import automation
from runner.azure.auth.credentials import Connection
from runner.core.progress import Progress
from runner.core.settings import load_settings
from runner.flows.environment import deploy
from tests.unit.infra.stacks import plain_stack

_ACCOUNT = "azure-native:batch:BatchAccount"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The accounts that were asked; a state with one Batch account, nothing stored."""
    found: list[str] = []

    def unfinished(connection: Connection, most: int) -> list[tuple[str, str]]:
        found.append(connection.outputs.batch_account)
        return [("job", "run-1")]

    there = automation.Deployed(_ACCOUNT, "batch", "/subscriptions/s/x", protect=False)
    monkeypatch.setattr(automation, "deployed", lambda _: [there])
    monkeypatch.setattr(deploy, "unfinished_tasks", unfinished)
    monkeypatch.setattr(deploy, "stored_bytes", lambda _: {})
    return found


def look(home: Path, monkeypatch: pytest.MonkeyPatch, state: Mapping[str, Any], kept: str) -> Any:
    monkeypatch.setattr(automation, "outputs", lambda _: dict(state))
    (home / "stacks").mkdir(parents=True)
    (home / "stacks/dev.json").write_text(kept)
    environment: Any = None
    settings = load_settings({"target": "azure"}, cwd=home, env={"RUNNER_HOME": str(home)})

    def progress(_: Progress) -> None: ...

    return deploy.find_remains(settings, environment, {}, progress, ask=True)


def test_the_account_of_the_state_is_asked_whatever_is_kept_here(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = plain_stack().exports
    remains = look(tmp_path / "home", monkeypatch, exports, "half a document {")
    assert asked == [exports["batch_account"]]
    assert remains.active == ["run-1"]


def test_what_is_kept_here_is_asked_where_the_state_has_no_outputs(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = plain_stack().exports
    look(tmp_path / "home", monkeypatch, {}, json.dumps(exports))
    assert asked == [exports["batch_account"]]

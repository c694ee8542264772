"""Every operation reports the warnings of program, engine and policies; `pulumi` is a script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runner_infra.engine import automation
from runner_infra.engine.steps import EngineStep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")
_SCRIPT = """\
#!/bin/sh
cd {folder}
case "$*" in
  version*) echo v3.205.0; exit;;  # newer engines send their events over gRPC
  *export*) echo '{{"version": 3, "deployment": {{"resources": []}}}}'; exit;;
  *history*) cat history; exit;;
  *event-log*) ;;
  *) exit;;
esac
before=
for word; do
  [ "$before" != --event-log ] || cat events >>"$word"
  before=$word
done
echo 'warning: a setting of the project is unknown' >&2
echo 'a line that is no warning' >&2
"""
_POLICY = {"policyPackName": "p", "policyPackVersion": "1", "policyPackVersionTag": "1"}
_DIAGNOSTICS = [
    {"severity": "warning", "message": "<{%reset%}>the API version\nis deprecated<{%reset%}>\n"},
    {"severity": "info", "message": "a message"},
    {"severity": "info#err", "message": "a line on stderr"},
]
_EVENTS: list[dict[str, Any]] = [
    *({"diagnosticEvent": {"color": "raw", **found}} for found in _DIAGNOSTICS),
    {
        "policyEvent": {
            **_POLICY,
            "policyName": "tags",
            "message": "no tags",
            "color": "raw",
            "enforcementLevel": "warning",
        }
    },
    {"stdoutEvent": {"message": "warning: a plugin is old", "color": "raw"}},
    {"summaryEvent": {"resourceChanges": {}}},
]
_ENDED = {
    "kind": "update",
    "startTime": "2026-11-28T12:00:00.000Z",
    "endTime": "2026-11-28T12:00:01.000Z",
    "message": "",
    "environment": {},
    "config": {},
    "result": "succeeded",
    "version": 1,
}
_TOLD = [
    "the API version is deprecated",
    "policy tags: no tags",
    "a plugin is old",
    "a setting of the project is unknown",
]


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> automation.PulumiStack:
    """Return a stack whose engine does nothing, with warnings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    cli = tmp_path / "cli/bin/pulumi"
    cli.parent.mkdir(parents=True)
    cli.write_text(_SCRIPT.format(folder=tmp_path))
    cli.chmod(0o755)
    events = "".join(f"{json.dumps({'sequence': 1, 'timestamp': 1, **e})}\n" for e in _EVENTS)
    (tmp_path / "events").write_text(events)
    (tmp_path / "history").write_text(json.dumps([_ENDED]))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/Pulumi.yaml").write_text("name: runner\nruntime: python\n")
    found = automation.auto.PulumiCommand(root=str(tmp_path / "cli"))
    return automation.PulumiStack(tmp_path / "project", "dev", found)


@pytest.mark.parametrize(
    "operation",
    [
        automation.preview,
        automation.up,
        partial(automation.preview, refresh=True),
        partial(automation.down, everything=False),
    ],
    ids=["preview", "up", "preview after a refresh", "down"],
)
def test_operation_reports_every_warning(
    stack: automation.PulumiStack, operation: Callable[..., Any]
) -> None:
    steps: list[EngineStep] = []
    operation(stack, steps.append)
    assert {step.phase for step in steps} == {"warning"}
    assert sorted(step.message for step in steps) == sorted(_TOLD)

"""Files of the local services: partial files after a crash, and no secrets in logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Cli


def test_damaged_outputs_are_replaced_by_the_next_run(
    own_cli: Cli, script: Callable[[str], Path]
) -> None:
    own_cli.ok("local", "up")
    outputs = own_cli.home / "local" / "outputs.json"
    outputs.write_text('{"contract_', encoding="utf-8")
    shown = own_cli.run("ps")
    assert shown.returncode == 3
    assert "fix: runner local up" in shown.stderr
    own_cli.ok("train", script("print(1)"), "--no-download")
    assert len(own_cli.json("ps")) == 1


def test_logs_of_the_services_hold_no_secret(cli: Cli, script: Callable[[str], Path]) -> None:
    cli.ok("train", script("print(1)"), "--no-download")
    local = cli.home / "local"
    keys = json.loads((local / "keys.json").read_text(encoding="utf-8")).values()
    logs = sorted((local / "logs").iterdir())
    assert len(logs) >= 2
    for log in logs:
        text = log.read_text(encoding="utf-8")
        assert not [secret for secret in ("sig=", *keys) if secret in text], log

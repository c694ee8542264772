"""Files of the local services that a crash left half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Cli


def test_damaged_outputs_are_written_anew_by_the_next_run(
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

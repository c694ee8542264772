"""`runner cost`: the bill of a run that was evicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

_SCRIPT = """
import os, time
from pathlib import Path
state = Path(os.environ["RUNNER_CHECKPOINT_DIR"], "step")
step = int(state.read_text()) if state.exists() else 0
while step < 3 or os.environ["RUNNER_ATTEMPT"] == "1":
    time.sleep(0.5)
    step += 1
    print("step", step, flush=True)
    state.with_suffix(".new").write_text(str(step))
    state.with_suffix(".new").replace(state)
"""
PRICE = ("--vm-size", "Standard_NC16as_T4_v3", "--region", "swedencentral")


@pytest.mark.feature(54)
@pytest.mark.slow
def test_costs_of_an_evicted_run_name_the_loss_by_eviction(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    training = cli.start("train", script(_SCRIPT))
    assert training.stdout is not None
    assert any("step 4" in line for line in training.stdout)
    cli.json("local", "evict", "--all", "--notice", "10")
    out, err = training.communicate(timeout=240)
    assert training.returncode == 0, f"{out}\n{err}"

    bill = cli.json("cost", "@last", *PRICE)
    total = bill["total"]
    parts = total["parts"]
    assert total["cost_micro_usd"] == sum(part["micro_usd"] for part in parts.values()) > 0
    assert total["node_ms"] == sum(part["node_ms"] for part in parts.values())
    for part in ("useful", "setup", "boot", "evicted"):
        assert parts[part]["node_ms"] > 0, part
    assert parts["failed"]["node_ms"] == 0
    text = cli.ok("cost", *PRICE, "--by", "pool", "--chart")
    assert "EVICTED" in text
    assert "# useful" in text
    assert cli.json("cost", "show", "@last")["total"]["cost_micro_usd"] == 0
    assert cli.run("cost", "nothing-like-it").returncode == 2

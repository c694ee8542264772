"""`runner qualify --target azure`: the cost, the question, wrong pools, and the longest time."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.cli.main import main
from runner.contract import PoolOutput
from runner.core.settings import load_settings
from runner.features.qualify import measure
from runner.features.qualify.criteria import AZURE_BOUNDS
from runner.flows.local.state import LocalState, local_outputs

_SPOT = PoolOutput("t4", "Standard_NC4as_T4_v3", 1, 4, spot=True, max_nodes=2, containers=False)
_POOLS = (_SPOT, replace(_SPOT, id="t4-dedicated", spot=False))


@pytest.fixture(autouse=True)
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "home" / "stacks" / "dev.json"
    file.parent.mkdir(parents=True)
    here = local_outputs(LocalState(1, 2, nodes=1, slots=1))
    file.write_text(replace(here, location="eastus", pools=_POOLS).to_json())
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_cost_is_shown_before_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["qualify", "--target", "azure", "--second-pool", "t4-dedicated"]) == 2
    printed = capsys.readouterr().err
    # 3 nodes for the sum of the bounds, with their release, at the dedicated price.
    assert "2 nodes of pool t4 and 1 of pool t4-dedicated cost at most 2." in printed
    assert "R-QUALIFY-DECLINED" in printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--second-pool", "t4"], "is the pool that is measured"),
        (["--second-pool", "x"], "unknown pool 'x'"),
        (["--pool", "x"], "unknown pool 'x'"),
        (["--nodes", "3"], "pool t4 has at most 2"),
        (["--vm-size", "Standard_NC9"], "Standard_NC9"),
    ],
)
def test_pools_and_numbers_that_do_not_fit_are_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["qualify", "--target", "azure", "--yes", *words]) != 0
    assert text in capsys.readouterr().err


def test_waits_end_after_the_time_whose_price_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    own = SimpleNamespace(
        monotonic=lambda: clock[0],
        sleep=lambda seconds: clock.append(clock.pop() + seconds),
        time=time.time,
    )
    monkeypatch.setattr(measure, "time", own)
    for name in ("list_pool_nodes", "load_attempts", "list_checkpoints"):
        monkeypatch.setattr(measure, name, lambda *_: ())
    for name in ("load_result", "runs_container", "get_task"):
        monkeypatch.setattr(measure, name, lambda *_: None)
    monkeypatch.setattr(measure, "count_attempts", lambda *_: 0)
    place: Any = SimpleNamespace(
        connection=SimpleNamespace(outputs=None), first=_SPOT, open=lambda: None
    )
    settings: Any = load_settings({}, cwd=Path.cwd(), env={})
    request = measure.QualificationRequest(2, AZURE_BOUNDS)
    nothing: Any = None
    made = measure.Qualification(place, settings, request, nothing, nothing)
    run: Any = SimpleNamespace(spec=SimpleNamespace(run_id="r", job_id="j", task_id="t"), at=0.0)

    def wait() -> bool:
        for _ in range(3):
            made._await_idle(_SPOT)
            made._after_checkpoint(run)
            made._ended(run, AZURE_BOUNDS.cold)
        return True

    for row in ("capacity", "warm_start", "cost", "recovery", "fallback"):
        monkeypatch.setattr(made, f"_measure_{row}", wait)
    made.measure()
    assert 0 <= clock[0] - 100 - measure.longest_s(AZURE_BOUNDS) < 15

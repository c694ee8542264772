"""Commands with the name of a pool, and commands about the whole stack, in a stack with teams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.pools import PoolView
from runner.azure.storage.blobs import BlobContainer
from runner.contract import TeamOutput
from runner.core.home import HomePaths
from runner.core.settings import Settings, load_settings
from runner.core.storage_paths import parse_storage_path
from runner.features.export import prometheus
from runner.flows import active_work
from runner.flows.active_work import find_active
from runner.flows.costs import report
from runner.flows.costs.report import CostQuery
from runner.flows.data.stores import refuse_managed_container
from runner.flows.environment import pools
from runner.flows.runs.moving import job_steps
from runner.flows.runs.rows import RunRow
from runner.flows.sweeps import cancel, moves
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import outputs, pool

_VIEW = PoolView(
    *("vision-t4", "Standard_NC4as_T4_v3", "active", "steady"),
    *(1, 0, 0, 0, 0, None, (), "", "", (), False),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a stack with a shared pool and two teams."""
    env = {"RUNNER_HOME": str(tmp_path), "RUNNER_CONFIG": str(tmp_path / "none.yaml")}
    (tmp_path / "none.yaml").touch()
    found = load_settings({"target": "azure"}, cwd=tmp_path, env=env)
    teams = tuple(
        TeamOutput(name, f"runs-{name}", f"models-{name}", f"code-{name}", f"{name}-id", f"/{name}")
        for name in ("vision", "audio")
    )
    ids = (None, "vision", "audio")
    declared = outputs(*(pool(f"{team}-t4" if team else "t4", team=team) for team in ids))
    stack = replace(declared, teams=teams, blob_endpoint="https://dev.blob.core.windows.net")
    path = HomePaths(found.home).stack_outputs("dev")
    path.parent.mkdir(parents=True)
    path.write_text(stack.to_json())
    return found


@pytest.mark.attack
@pytest.mark.parametrize("team", [None, "audio"])
@pytest.mark.parametrize(
    "command",
    [
        lambda connection: cancel.cancel_pool(connection, "Vision-t4"),
        lambda connection: moves.plan_drain(connection, "vision-t4", None),
        lambda connection: moves.plan_move(connection, [], "vision-t4"),
        lambda connection: moves.end_drain(connection, "vision-t4"),
    ],
    ids=["cancel", "drain", "move", "enable"],
)
def test_runs_of_another_team_are_neither_cancelled_nor_moved(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    team: str | None,
    command: Callable[[Connection], object],
) -> None:
    monkeypatch.setattr(job_steps, "list_pools", lambda _: [_VIEW])
    with pytest.raises(RunnerError) as caught:
        command(connect(replace(settings, team=team)))
    assert (caught.value.code, caught.value.fix.split(",")[0]) == ("R-POOL-TEAM", "--team vision")


@pytest.mark.attack
@pytest.mark.parametrize("team", [None, "audio", "vision"])
def test_pool_of_any_team_is_declared_and_not_deleted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, team: str | None
) -> None:
    monkeypatch.setattr(pools, "get_pool", lambda *_: _VIEW)
    with pytest.raises(RunnerError) as caught:
        pools.plan_pool_removal(replace(settings, team=team), "vision-t4")
    assert caught.value.code == "R-POOL-DECLARED"
    assert set(pools.pool_names(replace(settings, team=team))) == {"t4", "vision-t4", "audio-t4"}
    assert list(pools.team_names(settings)) == ["vision", "audio"]


@pytest.mark.attack
@pytest.mark.parametrize("container", ["runs", "models", "runs-vision", "models-audio"])
def test_data_commands_change_no_managed_container_of_any_team(
    settings: Settings, container: str
) -> None:
    connection = connect(replace(settings, team="vision"))
    with pytest.raises(RunnerError) as caught:
        refuse_managed_container(connection, parse_storage_path(f"{container}:x", "data"))
    assert caught.value.code == "R-DATA-OURS"


@pytest.mark.parametrize("team", [None, "vision"])
def test_active_work_is_named_by_the_runs_of_all_teams(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, team: str | None
) -> None:
    def owners_of(container: BlobContainer, tasks: Any) -> list[str]:
        return [f"of-{container.name}" for _ in tasks]

    monkeypatch.setattr(active_work, "unfinished_tasks", lambda *_, **__: [("job", "task")])
    monkeypatch.setattr(active_work, "owners_of", owners_of)
    found = find_active(connect(replace(settings, team=team)), None)
    assert found.names == ["of-runs", "of-runs-vision", "of-runs-audio"]


@pytest.mark.parametrize(
    ("team", "read"),
    [
        (None, ["runs", "runs-vision", "runs-audio"]),
        ("vision", ["runs-vision"]),
        ("shared", ["runs"]),
    ],
)
def test_costs_are_those_of_the_whole_stack_unless_a_team_is_selected(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, team: str | None, read: list[str]
) -> None:
    asked: list[str] = []

    def iterate_runs(connection: Connection) -> Iterator[RunRow]:
        asked.append(connection.outputs.container_runs)
        return iter(())

    monkeypatch.setattr(report, "iterate_runs", iterate_runs)
    monkeypatch.setattr(prometheus, "pool_list", lambda _: [])
    chosen = replace(settings, team=team)
    report.report_costs(connect(chosen), CostQuery(), None)
    assert asked == read
    asked.clear()
    prometheus.collect(chosen, CostQuery(by="pool"))
    assert asked == ["runs", "runs-vision", "runs-audio"]

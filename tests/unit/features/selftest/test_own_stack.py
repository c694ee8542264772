"""The bound of the costs, and refusals before any deployment."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.core.settings import load_settings
from runner.features.selftest.own_stack import OwnStack, plan_own_stack
from runner.features.selftest.selftest import CONTRACT_LIMIT_S, TRAINING_LIMIT_S
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.stack_file import load_stack_config
from tests.unit.source_tree import ROOT

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml"):
        shutil.copy(ROOT / name, folder)
    return folder


def plan(
    project: Path, *, max_usd: float = 5.0, location: str = "eastus", stack: str = "dev"
) -> OwnStack:
    env = {
        "RUNNER_HOME": str(project.parent / "home"),
        "RUNNER_CONFIG": str(project.parent / "config.yaml"),
        "ARM_LOCATION": location,
        "ARM_SUBSCRIPTION_ID": SUBSCRIPTION,
    }
    (project.parent / "config.yaml").write_text("{}\n")
    settings = load_settings({"target": "azure", "stack": stack}, cwd=project, env=env)
    now = datetime(2026, 11, 23, tzinfo=UTC)
    return plan_own_stack(settings, cwd=project, env=env, now=now, max_usd=max_usd)


def test_bound_is_the_dedicated_price_for_the_longest_time(project: Path) -> None:
    own = plan(project)
    limits_h = (CONTRACT_LIMIT_S + TRAINING_LIMIT_S) / 3600
    assert 0.526 * limits_h < own.usd_at_most < 0.526 * (limits_h + 0.5) + 0.1
    assert own.usd_per_hour == 0.526


def test_selftest_stack_has_one_spot_node_per_pool_in_the_same_region(project: Path) -> None:
    own = plan(project, location="westus2")
    config = load_stack_config(own.folder / "Pulumi.selftest.yaml", env={})
    assert (config.location, config.subscription_id) == ("westus2", SUBSCRIPTION)
    assert config.budget is None
    assert [(pool.max_spot, pool.max_dedicated) for pool in config.pools] == [(1, 0), (1, 0)]
    assert [bool(pool.ssh_from) for pool in config.pools] == [False, True]  # runs use the first
    assert own.settings.stack == "selftest"


def test_bound_above_the_allowed_cost_is_refused(project: Path) -> None:
    bound = plan(project).usd_at_most
    with pytest.raises(RunnerError, match=r"more than 1\.00") as refused:
        plan(project, max_usd=1.0)
    assert refused.value.exit_code is ExitCode.COST_CAP
    assert f"--max-cost {bound + 0.01:.2f}" in refused.value.fix
    assert plan(project, max_usd=bound + 0.01).usd_at_most == bound


def test_unknown_price_is_refused_as_unbounded_cost(project: Path) -> None:
    with pytest.raises(RunnerError, match="unknown") as refused:
        plan(project, location="brazilsouth")
    assert refused.value.fix == "runner skus --refresh --region brazilsouth"


def test_existing_stack_with_the_selftest_name_is_refused(project: Path) -> None:
    (project / "Pulumi.selftest.yaml").write_text("config: {}\n")
    with pytest.raises(RunnerError, match="already have a stack 'selftest'"):
        plan(project)
    with pytest.raises(RunnerError, match="already have a stack 'selftest'"):
        plan(project, stack="selftest")

"""Recipes, pools and settings for tests, with defaults for the fields that a test omits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.plan import (
    CheckedRun,
    RunContent,
    RunPlan,
    compose_command,
    plan_run,
)
from runner.core.planning.pool_choice import choose_pool, pools_for
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Param, ParamValue, Recipe
from runner.core.settings import LOCAL, Settings, Target
from runner.protocol.run_spec import CodeRef

CREATED = datetime(2026, 11, 21, 14, 30, 5, 123456, tzinfo=UTC)
RUN_ID = "digits-20261121-143005-k3f9"

_RECIPE = Recipe("digits", "Digits", Path("unused"), "folder", ("python", "train.py"))


def recipe(**changes: Any) -> Recipe:
    return replace(_RECIPE, **changes)


def load_text(folder: Path, text: str) -> Recipe:
    """Write a folder with this train.yaml and a train.py. Return its recipe."""
    folder.mkdir(exist_ok=True)
    (folder / "train.yaml").write_text(text, encoding="utf-8")
    (folder / "train.py").write_text("print('hi')\n", encoding="utf-8")
    return load_recipe(str(folder), cwd=folder)


def param(name: str, kind: Any, default: ParamValue | None, **limits: Any) -> Param:
    return Param(name, kind, default, **limits)


def pool(name: str = "local", **changes: Any) -> PoolOutput:
    return replace(PoolOutput(name, "STANDARD_D2S_V3", 0, 2, True, 1), **changes)


def outputs(*pools: PoolOutput) -> StackOutputs:
    return StackOutputs(
        location="local",
        resource_group="rg",
        batch_account="batch",
        batch_endpoint="http://127.0.0.1:1",
        storage_account="storage",
        blob_endpoint="http://127.0.0.1:2/storage",
        file_endpoint=None,
        container_runs="runs",
        container_models="models",
        container_data="data",
        container_code="code",
        file_share=None,
        identity_client_id=None,
        identity_resource_id=None,
        pools=pools or (pool(),),
        image_definition=None,
    )


def settings(wanted_pool: str | None = None) -> Settings:
    return Settings(
        target=LOCAL,
        stack="dev",
        pool=wanted_pool,
        output_dir=Path("outputs"),
        home=Path("home"),
        origins={},
    )


def plan(
    of: Recipe = _RECIPE,
    *,
    params: Mapping[str, Any] | None = None,
    script_args: Sequence[str] = (),
    content: RunContent | None = None,
    wanted_pool: str | None = None,
    stack: StackOutputs | None = None,
    target: Target = LOCAL,
    experiment: str | None = None,
    **changes: Any,
) -> RunPlan:
    """Return the plan of a run; `changes` are other fields of its CheckedRun."""
    stack = stack or outputs()
    command, template = compose_command(of, params or {}, script_args)
    options = RunOptions(args=tuple(script_args), experiment=experiment)
    run = CheckedRun(of, options, params or {}, command, template, **changes)
    found = choose_pool(wanted_pool, pools_for(of.image, wanted_pool, stack), of.resources)
    return plan_run(
        run,
        content or RunContent(CodeRef("c" * 64, 4096, 2), "a" * 64, None, None),
        replace(settings(wanted_pool), target=target),
        stack,
        found,
        run_id=RUN_ID,
        created=CREATED,
    )

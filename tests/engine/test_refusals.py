"""Refusals of Azure during a deployment have the fix of their code, and name their resource."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.engine.deployed import make_project, run_in
from tests.engine.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_UP = ("up", "-y", "--no-check")


def refused(stage: Stage, *words: str) -> tuple[str, str]:
    """Return the code of a refused command, and the reason with the fix."""
    done: subprocess.CompletedProcess[str] = run_in(stage, *words)
    assert done.returncode != 0, done.stderr
    assert "correct the cause" not in done.stderr
    found = re.search(r"error\[(R-[\w-]+)\]: (.*)", done.stderr, re.DOTALL)
    assert found, done.stderr
    return found[1], found[2]


def test_every_refusal_names_its_resource_and_the_next_step(stage: Stage) -> None:
    make_project(stage)
    for name, code, expected, fix in (
        ("rg-runner-dev", "RequestDisallowedByPolicy", "R-AZURE-DENIED", "owner of the policy"),
        ("runs", "AuthorizationFailed", "R-AZURE-DENIED", "ask an owner of the subscription"),
        ("t4", "PoolQuotaReached", "R-QUOTA", "Request quota increase"),
        ("t4", "SkuNotAvailable", "R-AZURE-CAPACITY", "`runner skus` lists them"),
    ):
        stage.azure.fail("create", name, code)
        found, text = refused(stage, *_UP)
        assert found == expected, text
        assert f"{code}: create of " in text
        assert fix in text
        assert "resources that were created are kept" in text
        assert "update failed" not in text
    assert "pool-t4: SkuNotAvailable" in text
    assert run_in(stage, *_UP).returncode == 0
    assert stage.azure.ids() == stage.ids_in_state()

    stage.azure.fail("delete", "t4", "ScopeLocked")
    found, text = refused(stage, "down", "-y", "--force")
    assert (found, "pool-t4: ScopeLocked" in text) == ("R-AZURE-LOCKED", True)
    assert "`az lock list -o table` shows the locks" in text
    assert run_in(stage, "down", "-y", "--force").returncode == 0

"""Answers about a stack without requests to Azure or the engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.cli.commands.environment.deploy import cost_documents, cost_rows
from runner.cli.main import VERBS, main
from runner.core.home import HomePaths
from runner.core.pricing.prices import Price, PriceKey, render_prices
from runner.core.settings import load_settings
from runner.flows.environment.plan import plan_stack, refuse_changed
from runner.protocol.errors import RunnerError
from runner_infra.engine.state_folder import has_stack
from tests.arm_server import ArmServer
from tests.unit.infra.cloud import SUBSCRIPTION
from tests.unit.infra.stacks import NOW, plain_stack

_ROOT = Path(__file__).parents[4]
_USD = ((True, 0.1), (False, 0.5))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter the folder of a stack, without Pulumi's CLI and sign-in. Return RUNNER_HOME."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("Pulumi.yaml", "Pulumi.dev.yaml"):
        shutil.copy(_ROOT / name, folder)
    monkeypatch.chdir(folder)
    for name, value in {"HOME": "person", "RUNNER_HOME": "home", "PATH": "bin"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").touch()
    for name in ("PULUMI_BACKEND_URL", "RUNNER_STACK", "RUNNER_TARGET"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def keep_outputs(home: Path, **changes: Any) -> None:
    (home / "stacks").mkdir(parents=True)
    (home / "stacks/dev.json").write_text(json.dumps({**plain_stack().exports, **changes}))


def test_down_of_an_undeployed_stack_needs_no_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["down"]) == 0
    assert "stack 'dev' is not deployed" in capsys.readouterr().err
    assert main(["down", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"remaining": [], "warnings": []}


@pytest.mark.parametrize("state", ["runner/dev.json", "runner/dev.json.gz", "dev.json"])
def test_state_in_the_folder_is_found_in_any_backend(home: Path, state: str) -> None:
    folder = home / "pulumi"
    assert has_stack(folder.as_uri(), "dev") is False
    file = folder / ".pulumi/stacks" / state
    file.parent.mkdir(parents=True)
    file.touch()
    assert has_stack(folder.as_uri(), "dev") is True
    assert has_stack(folder.as_uri(), "prod") is False


@pytest.mark.parametrize("backend", [None, "https://api.pulumi.com", "azblob://state"])
def test_state_outside_a_folder_is_unknown(backend: str | None) -> None:
    assert has_stack(backend, "dev") is None


@pytest.mark.fix("R-PULUMI-MISSING")
def test_missing_engine_names_the_preview_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARM_SUBSCRIPTION_ID", SUBSCRIPTION)
    monkeypatch.setenv("ARM_LOCATION", "eastus")
    with ArmServer() as server:  # to which this machine is signed in
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        assert main(["preview"]) == 3
    said = capsys.readouterr().err
    assert "error[R-PULUMI-MISSING]" in said
    assert "`runner preview --offline`" in said
    assert main(["preview", "--offline"]) == 0


def test_preview_without_the_extra_still_prints_the_costs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("pulumi", "pulumi_azure_native"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["preview", "--offline"]) == 3
    shown = capsys.readouterr()
    assert "USD PER HOUR" in shown.out
    assert "azure-batch-runner[infra]" in shown.err
    assert main(["preview", "--offline", "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["resources"] is None
    assert found["pools"][0]["usd_per_hour_max"] > 0


# In a process of its own, because other tests have imported Pulumi.
_WITHOUT_PULUMI = """\
import sys
for name in ("pulumi", "pulumi_azure_native", "pulumi_policy"):
    sys.modules[name] = None
from runner.cli.main import VERBS, main
sys.exit(main(sys.argv[1:]))
"""


# Per verb of the help group: the words, the exit code, and whether the extra is the reason.
_WITHOUT_THE_EXTRA = (
    ("init --yes --force", 0, False),
    ("up", 3, True),
    ("up --no-check -y", 3, True),
    ("preview", 3, True),
    ("preview --offline", 3, True),
    ("down", 0, False),
    ("join", 4, False),
    ("check", 3, False),
    ("pool ls --target azure", 3, False),
    ("skus", 0, False),
    ("monitor --target azure --once", 3, False),
    ("image ls", 3, False),
    ("selftest --target azure --no-check -y", 3, True),
    ("qualify --target azure -y", 3, False),
)


def test_every_verb_of_the_azure_environment_is_tried_without_the_extra() -> None:
    tried = {words.split()[0] for words, _, _ in _WITHOUT_THE_EXTRA}
    verbs = {name for name, verb in VERBS.items() if verb.heading == "Azure environment"}
    assert verbs <= tried


@pytest.mark.parametrize(("words", "code", "needs_it"), _WITHOUT_THE_EXTRA)
def test_verb_without_the_extra_is_no_bug(
    words: str, code: int, needs_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARM_SUBSCRIPTION_ID", SUBSCRIPTION)
    monkeypatch.setenv("ARM_LOCATION", "eastus")
    command = [sys.executable, "-c", _WITHOUT_PULUMI, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("R-INFRA-MISSING" in done.stderr) == needs_it
    if needs_it or words == "check":
        assert "azure-batch-runner[infra]" in done.stdout + done.stderr


def test_down_of_a_deployed_stack_names_the_missing_extra(home: Path) -> None:
    file = home / "pulumi/.pulumi/stacks/runner/dev.json"
    file.parent.mkdir(parents=True)
    file.touch()
    command = [sys.executable, "-c", _WITHOUT_PULUMI, "down"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "azure-batch-runner[infra]" in done.stderr


def test_down_starts_the_engine_if_there_is_a_state(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "pulumi/.pulumi/stacks/runner/dev.json"
    file.parent.mkdir(parents=True)
    file.touch()
    assert main(["down"]) == 3
    assert "R-PULUMI-MISSING" in capsys.readouterr().err


def test_image_registry_prints_only_the_host(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_outputs(home, registry_server="ours.azurecr.io")
    assert main(["image", "registry"]) == 0
    assert capsys.readouterr().out == "ours.azurecr.io\n"
    assert main(["image", "registry", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"stack": "dev", "registry": "ours.azurecr.io"}


def test_a_stack_without_registry_is_an_error_with_its_fix(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_outputs(home)
    assert main(["image", "registry"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "R-REGISTRY-NONE" in said.err
    assert "set runner:registry: true in Pulumi.dev.yaml" in said.err


@pytest.mark.parametrize(
    ("words", "hint"), [([], True), (["--target", "local"], False), (["-o", "json"], False)]
)
def test_pool_ls_of_local_in_a_stack_folder_hints_at_the_stack(
    words: Sequence[str],
    hint: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_pools(_: object) -> list[object]:
        return []

    monkeypatch.setattr("runner.flows.environment.pools.pool_list", no_pools)
    assert main(["pool", "ls", *words]) == 0
    assert ("runner pool ls --target azure" in capsys.readouterr().err) is hint


def test_pool_ls_has_no_hint_outside_a_stack_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_pools(_: object) -> list[object]:
        return []

    monkeypatch.setattr("runner.flows.environment.pools.pool_list", no_pools)
    monkeypatch.chdir(tmp_path)
    assert main(["pool", "ls"]) == 0
    assert "--target azure" not in capsys.readouterr().err


def test_stack_changed_after_its_preview_is_not_deployed(home: Path) -> None:
    file = Path("Pulumi.dev.yaml")
    where = {"ARM_LOCATION": "eastus", "ARM_SUBSCRIPTION_ID": SUBSCRIPTION}
    script = Path("setup.sh")
    script.write_text("#!/bin/sh\n")
    file.write_text(file.read_text().replace("max_spot: 4", "start_script: setup.sh"))
    settings = load_settings({"target": "azure"}, cwd=Path.cwd(), env={"RUNNER_HOME": str(home)})
    shown = plan_stack(settings, cwd=Path.cwd(), env=where, now=NOW)

    # Text that Pulumi itself writes to the file is not a change.
    file.write_text(file.read_text() + "encryptionsalt: v1:abc\n")
    refuse_changed(shown, settings, env=where, now=NOW)
    script.write_text("#!/bin/sh\nrm -rf /\n")
    with pytest.raises(RunnerError, match="changed after its preview"):
        refuse_changed(shown, settings, env=where, now=NOW)
    script.write_text("#!/bin/sh\n")
    file.write_text(file.read_text().replace("id: t4", "id: t5"))
    with pytest.raises(RunnerError, match="changed after its preview"):
        refuse_changed(shown, settings, env=where, now=NOW)


def test_costs_include_idle_nodes_of_pools(home: Path) -> None:
    known, unknown = "Standard_NC4as_T4_v3", "Standard_NC64as_T4_v3"
    pools = {
        "idle": f"vm_size: {known}",
        "office": f"vm_size: {known}, scenario: office_hours, office_hours: {{nodes: 2}}",
        "fixed": f"vm_size: {known}, scenario: fixed, max_spot: 0, max_dedicated: 2",
        "own": f"vm_size: {known}, scenario: formula, formula: $TargetLowPriorityNodes = 9;",
        "nobody-knows": f"vm_size: {unknown}, scenario: office_hours, office_hours: {{}}",
    }
    lines = "".join(f"    - {{id: {name}, {keys}}}\n" for name, keys in pools.items())
    Path("Pulumi.dev.yaml").write_text(f"config:\n  runner:pools:\n{lines}")
    where = {"ARM_LOCATION": "nowhere", "ARM_SUBSCRIPTION_ID": SUBSCRIPTION}
    prices = {
        PriceKey(known.lower(), "nowhere", spot=s): Price(u, NOW.date(), "test") for s, u in _USD
    }
    home.mkdir()
    HomePaths(home).prices.write_text(render_prices(prices))
    settings = load_settings({"target": "azure"}, cwd=Path.cwd(), env={"RUNNER_HOME": str(home)})

    plan = plan_stack(settings, cwd=Path.cwd(), env=where, now=NOW)

    idle = {row["pool"]: row["idle_usd"] for row in cost_rows(plan.costs)}
    assert idle == {
        "idle": "0",
        "office": "0.20 in office hours",
        "fixed": "1.00",
        "own": "up to 0.40",
        "nobody-knows": "unknown in office hours",
    }
    numbers = {found["pool"]: found["idle_usd_per_hour"] for found in cost_documents(plan.costs)}
    assert numbers == pytest.approx(
        {"idle": 0, "office": 0.2, "fixed": 1, "own": 0.4, "nobody-knows": None}
    )

"""`runner skus --pick`: the cheapest size that is allowed, in the stack's file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.core.home import HomePaths
from runner.flows.environment.plan import read_stack
from tests.arm_server import SUBSCRIPTION, ArmServer

T4, T4_LARGE = "Standard_NC4as_T4_v3", "Standard_NC16as_T4_v3"
A100, RTX = "Standard_NC24ads_A100_v4", "Standard_NC24lds_xl_RTXPRO6000BSE_v6"
PRICES = f"""vm_size,location,kind,usd_per_hour,as_of,source
{T4},westus2,spot,0.2,2026-11-20,test
{T4_LARGE},westus2,spot,0.3,2026-11-20,test
{A100},westus2,spot,0.9,2026-11-20,test
{RTX},westus2,spot,0.1,2026-11-20,test
"""
STACK = f"""# Our stack, with a comment.
config:
  azure-native:subscriptionId: {SUBSCRIPTION}
  azure-native:location: westus2
  runner:budget: null
  runner:pools:
    - id: big   # for the long runs
      vm_size: "{A100}"   # was cheap once
      max_spot: 4
"""


@pytest.fixture
def server() -> Generator[ArmServer]:
    with ArmServer() as serving:
        yield serving


@pytest.fixture
def stack(server: ArmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a stack, whose subscription has 32 spot cores in westus2."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("RUNNER_HOME", str(home))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    empty: Any = lambda *_: (200, {"placementScores": [], "data": []}, {})  # noqa: E731
    server.handle("POST", "placementscores/spot/generate", empty)
    server.handle("POST", "microsoft.resourcegraph/resources", empty)
    server.add_batch_account("rg", "mine", "westus2", lowPriorityCoreQuota=32)
    for size in (T4, T4_LARGE, A100, RTX):
        server.add_size(size, "f", "westus2")
    HomePaths(home).prices.parent.mkdir(parents=True)
    HomePaths(home).prices.write_text(PRICES)
    (tmp_path / "Pulumi.yaml").write_text("name: runner\nruntime: python\nmain: infra\n")
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text(STACK)
    return file


def pick(*words: str) -> int:
    return main(["skus", "--pick", *words])


def set_quota(server: ArmServer, spot_cores: int) -> None:
    for each in server.state.resources.values():
        if "lowPriorityCoreQuota" in each.get("properties", {}):
            each["properties"]["lowPriorityCoreQuota"] = spot_cores


@pytest.mark.feature(8)
def test_the_cheapest_size_that_is_allowed_is_written(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The RTX PRO 6000 is cheaper, and the Pulumi program refuses it for want of a driver."""
    assert pick("--yes") == 0
    out, err = capsys.readouterr()
    assert f"{T4} in westus2: spot 0.200 USD on 2026-11-20, the quota allows 8 of 4" in out
    assert f"- vm_size: {A100}\n+ vm_size: {T4}" in out
    assert f"not allowed: {RTX}" in err
    assert stack.read_text() == STACK.replace(A100, T4)
    (pool,) = read_stack(stack, {}).pools
    assert (pool.id, pool.vm_size, pool.max_spot) == ("big", T4, 4)


@pytest.mark.fix("R-NOT-CONFIRMED")
def test_nothing_is_written_without_a_confirmation(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pick() != 0
    out, err = capsys.readouterr()
    assert f"+ vm_size: {T4}" in out
    assert "error[R-NOT-CONFIRMED]" in err
    assert stack.read_text() == STACK
    assert run_fix(err) == 0
    assert stack.read_text() == STACK.replace(A100, T4)


@pytest.mark.parametrize(
    ("spot_cores", "restricted", "chosen", "reason"),
    [
        (32, T4, T4_LARGE, f"{T4}: NotAvailableForSubscription"),
        (8, "", T4, ""),
        (24, "", T4, ""),
    ],
)
def test_quota_and_restrictions_decide(
    stack: Path, server: ArmServer, capsys: pytest.CaptureFixture[str],
    spot_cores: int, restricted: str, chosen: str, reason: str,
) -> None:  # fmt: skip
    server.state.skus.clear()
    for size in (T4, T4_LARGE, A100, RTX):
        refused = "NotAvailableForSubscription" if size == restricted else ""
        server.add_size(size, "f", "westus2", restricted=refused)
    set_quota(server, spot_cores)
    assert pick("--yes", "-o", "json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["vm_size"], found["replaced"], found["changed"]) == (chosen, A100, True)
    assert found["quota_nodes"] == spot_cores // found["vcpus"]
    assert reason in err
    assert ("allows 2" in err) == (found["quota_nodes"] == 2)


def test_a_quota_of_zero_allows_nothing(
    stack: Path, server: ArmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    set_quota(server, 0)
    assert pick("--yes") == 5
    err = capsys.readouterr().err
    assert "error[R-SKUS-PICK]: no VM size with a GPU is allowed for spot nodes in westus2" in err
    assert f"{T4}: 4 vCPUs, quota 0" in err
    assert stack.read_text() == STACK
    assert run_fix(err) == 0


def run_fix(err: str) -> int:
    """Run the command of an error's fix and return its exit code."""
    (words,) = re.findall(r"fix: (?:run `)?runner ([^`\n]*)", err)
    return main(shlex.split(words))


def test_facts_that_are_missing_allow_nothing(
    stack: Path, server: ArmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse("batchaccounts", 403, "AuthorizationFailed")
    assert pick("--yes") == 5
    assert "the quota is unknown" in capsys.readouterr().err


def test_only_sizes_with_the_gpu_are_compared(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pick("--gpu", "A100", "--yes") == 0
    out, err = capsys.readouterr()
    assert "has this size already" in out
    assert "allows 1" in err
    assert stack.read_text() == STACK


@pytest.mark.fix("R-SKUS-POOL")
@pytest.mark.fix("R-SKUS-PICK")
@pytest.mark.parametrize("words", [("--pool", "small"), ("--region", "eastus")])
def test_the_fix_of_a_wrong_pool_or_region_works(
    stack: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert pick(*words, "--yes") == 2
    err = capsys.readouterr().err
    stack.write_text(STACK.replace(A100, T4))  # so that the fix asks nothing
    assert run_fix(err) == 0


@pytest.mark.fix("R-FLAG-VALUE")
def test_a_pool_without_pick_is_refused(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skus", "--pool", "big"]) == 2
    stack.write_text(STACK.replace(A100, T4))
    assert run_fix(capsys.readouterr().err) == 0


@pytest.mark.parametrize(
    ("words", "changes", "code"),
    [
        (["--pool", "small"], {}, "R-SKUS-POOL"),
        ([], {"max_spot: 4": "max_spot: 0\n      max_dedicated: 2"}, "R-SKUS-POOL"),
        ([], {"- id: big": "- {id: two, vm_size: Standard_D2s_v3}\n    - id: big"}, "R-SKUS-POOL"),
        (["--region", "eastus"], {}, "R-SKUS-PICK"),
        ([], {"max_spot": "maxspot"}, "R-STACK-CONFIG-FIELD"),
    ],
)
def test_what_cannot_be_chosen_is_explained(
    stack: Path, capsys: pytest.CaptureFixture[str],
    words: list[str], changes: dict[str, str], code: str,
) -> None:  # fmt: skip
    text = STACK
    for old, new in changes.items():
        text = text.replace(old, new)
    stack.write_text(text)
    assert pick(*words, "--yes") != 0
    assert f"error[{code}]" in capsys.readouterr().err
    assert stack.read_text() == text


@pytest.mark.parametrize(
    "pools",
    [
        f"[{{id: big, vm_size: {A100}, max_spot: 4}}]",
        f"[{{id: big, 'vm_size': '{A100}', max_spot: 4}}]",
    ],
)
def test_other_forms_of_yaml_are_changed_or_left_alone(
    stack: Path, capsys: pytest.CaptureFixture[str], pools: str
) -> None:
    text = STACK[: STACK.index("  runner:pools:")] + f"  runner:pools: {pools}\n"
    stack.write_text(text)
    code = pick("--yes")
    (pool,) = read_stack(stack, {}).pools
    if code == 0:
        assert pool.vm_size == T4
        assert stack.read_text() == text.replace(A100, T4)
    else:
        assert "by hand" in capsys.readouterr().err
        assert stack.read_text() == text


def test_one_pool_of_several_is_changed(stack: Path) -> None:
    more = "    - {id: cpu, vm_size: Standard_D2s_v3, max_spot: 1}\n"
    stack.write_bytes((STACK + more).replace("\n", "\r\n").encode())
    assert pick("--pool", "BIG", "--yes") == 0
    assert stack.read_bytes() == (STACK.replace(A100, T4) + more).replace("\n", "\r\n").encode()

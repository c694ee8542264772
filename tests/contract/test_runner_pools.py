"""`runner pool` against the emulator: its views of pools and nodes, and its changes."""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.batch import models

from runner.azure.auth.credentials import connect
from runner.azure.batch.node_users import TaskPlace, find_address
from runner.cli.main import main
from runner.core.checks import Check
from runner.core.home import HomePaths
from runner.core.pricing.prices import load_price_table
from runner.core.settings import AZURE, load_settings
from runner.features.simulation import formulas
from runner.flows.environment.checks.azure import check_agents
from runner.flows.environment.checks.run import first_failure
from runner.protocol.errors import RunnerError
from runner_infra.config.stack_file import parse_stack_config
from runner_infra.planning.pool_plan import MarketplaceImage, plan_pools
from tests import plain_http
from tests.contract.server import ACCOUNT, KEY, Running, Things, eventually, serving
from tests.unit.command_lines import commands_in
from tests.unit.core.recipe_maker import outputs
from tests.unit.core.recipe_maker import pool as pool_output

PAID = "Standard_NC4as_T4_v3"
REGION = "southeastasia"  # the shipped price table knows its spot price
SPOT_USD = 0.20873


@dataclass
class Command:
    """The command line in this process, against an emulator."""

    things: Things
    running: Running
    capsys: pytest.CaptureFixture[str]

    def json(self, *words: str) -> Any:
        assert main(["pool", *words, "-o", "json"]) == 0
        return json.loads(self.capsys.readouterr().out)

    def text(self, *words: str) -> tuple[str, str]:
        assert main(["pool", *words]) == 0
        shown = self.capsys.readouterr()
        return shown.out, shown.err

    def error(self, *words: str) -> tuple[int, str]:
        code = main(["pool", *words])
        return code, self.capsys.readouterr().err

    def row(self, pool: str) -> dict[str, Any]:
        (found,) = [row for row in self.json("ls") if row["pool"] == pool]
        return found


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Command]:
    with serving(tmp_path / "data") as running:
        paths = HomePaths(tmp_path / "home")
        paths.local.mkdir(parents=True)
        stack = replace(
            outputs(replace(pool_output(), id="t4"), replace(pool_output(), id="big")),
            location=REGION,
            batch_account=ACCOUNT,
            batch_endpoint=running.url,
        )
        paths.local_outputs.write_text(stack.to_json(), encoding="utf-8")
        paths.keys.write_text(json.dumps({"batch": KEY, "storage": KEY}), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("RUNNER_HOME", str(paths.home))
        (tmp_path / "none.yaml").touch()
        monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "none.yaml"))
        yield Command(Things(running.client), running, capsys)


def autoscaled(things: Things, formula: str) -> str:
    return things.pool(
        vm_size=PAID,
        enable_auto_scale=True,
        auto_scale_formula=formula,
        auto_scale_evaluation_interval=timedelta(minutes=5),
    )


def test_account_without_pools_is_reported(command: Command) -> None:
    assert command.json("ls") == []
    assert "no pools" in command.text("ls")[1]


@pytest.mark.feature(10)
def test_evicted_node_that_is_still_unusable_is_not_reported_as_broken(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    account = command.running.emulator.account
    account.limits = replace(account.limits, unusable_s=3600.0)
    pool = command.things.pool(target_low_priority_nodes=1)
    [node] = command.things.wait_nodes(pool, 1, "idle")
    headers = {"authorization": f"Bearer {KEY}"}
    address = f"{command.running.url}/_emulator/pools/{pool}/nodes/{node.id}/evict?notice=0"
    assert plain_http.post(address, headers=headers).status_code == 202
    command.things.wait_nodes(pool, 1, "unusable")
    assert main(["why", pool, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cause"] != "NodesUnusable"
    assert main(["why", str(node.id), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"], found["state"]) == ("Evicted", "unusable")


@pytest.mark.slow
@pytest.mark.feature(58)
def test_pool_is_deleted_only_if_no_task_needs_it(command: Command) -> None:
    pool = command.things.pool(target_low_priority_nodes=1)
    job = command.things.job(pool)
    task = command.things.task(job, "/bin/sleep 60")
    code, refused = command.error("rm", pool, "--yes")
    assert (code, f"fix: runner cancel {task}" in refused) == (3, True)
    command.running.client.terminate_task(job, task)
    eventually(lambda: command.error("rm", pool, "--dry-run")[0] == 0)
    assert command.json("rm", pool, "--dry-run")["deleted"] is False
    code, refused = command.error("rm", pool)
    assert (code, f"fix: runner pool rm {pool} --yes" in refused) == (2, True)
    assert command.json("rm", pool, "--yes")["deleted"] is True
    eventually(lambda: pool not in [row["pool"] for row in command.json("ls")])


@pytest.mark.slow
@pytest.mark.feature(53)
def test_pool_shows_nodes_tasks_price_and_current_cost(command: Command) -> None:
    pool = command.things.pool(vm_size=PAID, target_low_priority_nodes=2, task_slots_per_node=2)
    command.things.wait_nodes(pool, 2)
    job = command.things.job(pool)
    command.things.task(job, "/bin/sleep 60")
    eventually(lambda: command.row(pool)["running_tasks"] == 1)
    row = command.row(pool)
    assert (row["spot"], row["spot_target"], row["dedicated"], row["slots"]) == (2, 2, 0, 2)
    assert row["spot_usd_per_hour"] == SPOT_USD
    assert row["usd_per_hour"] == pytest.approx(2 * SPOT_USD)
    assert row["nodes"]["spot"] == {"idle": 1, "running": 1}
    assert (row["formula"], row["autoscale"]) == (None, "off")
    assert "2 of 2  " in command.text("ls")[0]
    assert "2 of 2, 1 idle, 1 running\n" in command.text("show", pool)[0]


def test_cost_is_unknown_with_an_unknown_price_and_zero_without_nodes(
    command: Command,
) -> None:
    dear = command.things.pool(vm_size=PAID, target_dedicated_nodes=1)
    empty = command.things.pool(vm_size="Standard_NC64as_T4_v3")
    command.things.wait_nodes(dear, 1)
    assert command.row(dear)["usd_per_hour"] is None
    assert command.row(empty)["usd_per_hour"] == 0
    out, err = command.text("ls")
    assert "unknown" in out
    assert "runner skus --refresh" in err


def test_preempted_nodes_cost_nothing(command: Command) -> None:
    pool = command.things.pool(vm_size=PAID, target_low_priority_nodes=2)
    command.things.wait_nodes(pool, 2)
    answer = plain_http.post(
        f"{command.running.url}/_emulator/pools/{pool}/evict",
        params={"notice": "0", "away": "3600", "count": "1"},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    answer.raise_for_status()
    eventually(lambda: command.row(pool)["nodes"]["spot"].get("preempted") == 1)
    row = command.row(pool)
    assert row["spot"] == 2
    assert row["usd_per_hour"] == pytest.approx(SPOT_USD)


@pytest.mark.feature(7)
def test_formula_and_its_last_evaluation_are_shown(command: Command) -> None:
    pool = autoscaled(command.things, "$TargetLowPriorityNodes = 1;\n$TargetDedicatedNodes = 0;")
    eventually(lambda: command.row(pool)["autoscale"] == "1 spot, 0 dedicated")
    out, _ = command.text("show", pool)
    assert "every 5 min" in out
    assert "  $TargetLowPriorityNodes = 1;" in out.splitlines()
    assert "1 spot, 0 dedicated" in out


def test_failed_formula_is_shown_with_its_error(command: Command) -> None:
    pool = autoscaled(command.things, "$TargetLowPriorityNodes = $PendingTasks.GetSample(1);")
    eventually(lambda: command.row(pool)["autoscale"].startswith("failed: "))
    assert command.json("show", pool)["evaluated"]


GROW = "$TargetLowPriorityNodes = 3;\nwanted = 1 + 1;\n$TargetDedicatedNodes = 0;"


@pytest.mark.feature(7)
def test_a_candidate_formula_is_evaluated_and_changes_nothing(
    command: Command, tmp_path: Path
) -> None:
    now = "$TargetLowPriorityNodes = 0; $TargetDedicatedNodes = 0;"
    pool = autoscaled(command.things, now)
    (tmp_path / "grow.txt").write_text(GROW)
    found = command.json("autoscale", "evaluate", "grow.txt")
    assert (found["pool"], found["spot"], found["dedicated"]) == (pool, 3, 0)
    assert (found["spot_target"], found["error"]) == (0, None)
    assert found["results"]["wanted"] == "2"
    assert command.json("autoscale", "evaluate", GROW, "--pool", pool)["spot"] == 3
    out, _ = command.text("autoscale", "evaluate", GROW)
    assert "3 nodes, now 0" in out
    assert command.json("show", pool)["formula"] == now


@pytest.mark.parametrize(
    ("formula", "code", "marked"),
    [
        ("x = 1;\n$TargetLowPriorityNodes = (1;", "AutoScalingFormulaSyntaxError", 1),
        ("x = 1;\n  y = 1 / 0;", "AutoScalingFormulaEvaluationError", 1),
        ("a = $PendingTasks.GetSample(TimeInterval_Hour, 99);", "InsufficientSampleData", 0),
    ],
)
def test_error_of_a_candidate_formula_has_its_position(
    command: Command, formula: str, code: str, marked: int
) -> None:
    autoscaled(command.things, "$TargetLowPriorityNodes = 0;")
    failed, err = command.error("autoscale", "evaluate", formula)
    assert failed == 1
    assert err.startswith(f"{code}: ")
    line, mark = err.splitlines()[-2:]
    assert line == f"  {formula.splitlines()[marked]}"
    assert mark.strip() == "^"
    column = int(err.partition(", Col ")[2].partition(":")[0])
    assert mark.index("^") == len("  ") + column - 1
    assert main(["pool", "autoscale", "evaluate", formula, "-o", "json"]) == 1
    document = json.loads(command.capsys.readouterr().out)
    assert (document["spot"], document["error"]["code"]) == (None, code)


@pytest.mark.fix("R-POOL-NOT-AUTOSCALED")
def test_formula_is_evaluated_only_where_autoscale_is_enabled(command: Command) -> None:
    fixed = command.things.pool()
    code, err = command.error("autoscale", "evaluate", GROW)
    assert (code, "no pool has a formula" in err) == (3, True)
    words = shlex.split(err.partition("fix: ")[2].partition("\n")[0])
    assert words[-2:] == ["--pool", fixed]
    eventually(lambda: command.row(fixed)["allocation"] == "steady")
    command.text(*words[2:], "--yes")
    assert command.json("autoscale", "evaluate", GROW)["pool"] == fixed
    other = command.things.pool()
    code, err = command.error("autoscale", "evaluate", GROW, "--pool", other)
    assert (code, "R-POOL-NOT-AUTOSCALED" in err, f"--pool {fixed}" in err) == (3, True, True)
    autoscaled(command.things, "$TargetLowPriorityNodes = 0;")
    code, err = command.error("autoscale", "evaluate", GROW)
    assert (code, "R-POOL-UNNAMED" in err) == (2, True)
    code, err = command.error("autoscale", "evaluate", "nothing.txt")
    assert (code, "R-FORMULA-READ" in err) == (2, True)


@pytest.mark.feature(7)
def test_formula_is_applied_after_it_was_shown(command: Command, tmp_path: Path) -> None:
    now = "$TargetLowPriorityNodes = 0;\n$NodeDeallocationOption = taskcompletion;"
    pool = autoscaled(command.things, now)
    (tmp_path / "grow.txt").write_text(now.replace("= 0", "= 2"))
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    code, err = command.error("autoscale", "apply", "grow.txt")
    assert (code, "R-NOT-CONFIRMED" in err) == (2, True)
    assert command.json("show", pool)["formula"] == now
    out, err = command.text("autoscale", "apply", "grow.txt", "--interval", "7m", "--yes")
    assert "- $TargetLowPriorityNodes = 0;\n+ $TargetLowPriorityNodes = 2;" in out
    assert "2 nodes, now 0" in out
    assert f"runner pool autoscale last --pool {pool}" in err
    row = command.json("show", pool)
    assert (row["formula"], row["evaluation_s"]) == (now.replace("= 0", "= 2"), 420)
    command.things.wait_nodes(pool, 2)
    found = command.json("autoscale", "last", "--pool", pool)
    assert (found["results"]["$TargetLowPriorityNodes"], found["error"]) == ("2", None)
    assert (found["interval_s"], found["overdue"]) == (420, False)


def test_a_formula_is_applied_to_a_pool_of_fixed_size(command: Command) -> None:
    pool = command.things.pool()
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    _, err = command.text("autoscale", "apply", GROW, "--pool", pool, "--yes")
    assert "has no formula now" in err
    assert command.json("show", pool)["formula"] == GROW
    command.things.wait_nodes(pool, 3)


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("x = 1;\n$TargetLowPriorityNodes = (1;", "line 2"),
        ("nodes = 1;", "sets neither node count"),
        ("$TargetLowPriorityNodes = 1 / 0;", "always fails"),
    ],
)
def test_invalid_formula_is_not_applied(command: Command, formula: str, why: str) -> None:
    now = "$TargetLowPriorityNodes = 0;"
    pool = autoscaled(command.things, now)
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    code, err = command.error("autoscale", "apply", formula, "--yes")
    assert (code, "R-FORMULA-INVALID" in err, why in err) == (2, True, True)
    assert command.json("show", pool)["formula"] == now


def test_the_formula_of_a_declared_pool_is_not_applied(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = autoscaled(command.things, "$TargetLowPriorityNodes = 0;")
    paths = HomePaths(Path(os.environ["RUNNER_HOME"]))
    local = load_settings({"target": "local"}, cwd=Path.cwd(), env=os.environ)
    connection = connect(local)
    stack = replace(connection.outputs, pools=(replace(pool_output(), id=pool),))
    paths.local_outputs.write_text(stack.to_json(), encoding="utf-8")
    azure = replace(local, target=AZURE, stack="dev")
    monkeypatch.setattr(formulas, "connect", lambda _: connect(local))
    with pytest.raises(RunnerError) as caught:
        formulas.plan_formula(azure, pool, GROW)
    assert caught.value.code == "R-FORMULA-DECLARED"
    assert "Pulumi.dev.yaml" in (caught.value.fix or "")
    assert formulas.plan_formula(local, pool, GROW).pool.id == pool


def test_the_last_evaluation_has_its_error(command: Command) -> None:
    formula = "$TargetLowPriorityNodes = $PendingTasks.GetSample(1);"
    pool = autoscaled(command.things, formula)
    eventually(lambda: command.row(pool)["autoscale"].startswith("failed: "))
    code = main(["pool", "autoscale", "last"])
    shown = command.capsys.readouterr()
    assert (code, "evaluated 20" in shown.err, "Line 1, Col" in shown.err) == (1, True, True)


@pytest.mark.feature(7)
def test_a_simulation_takes_formula_and_prices_from_a_pool(command: Command) -> None:
    formula = f"{GROW} $NodeDeallocationOption = taskcompletion;"
    pool = autoscaled(command.things, formula)
    words = ("--pool", pool, "--tasks", "10", "--vm-size", PAID, "--region", REGION)
    [row] = command.json("autoscale", "simulate", *words)
    assert (row["formula"], row["finished"]) == (pool, 10)
    assert row["cost_micro_usd"] == pytest.approx(row["spot_node_s"] / 3600 * SPOT_USD * 1e6, abs=1)
    out, _ = command.text("autoscale", "lint", "--pool", pool)
    assert out.startswith(f"{pool}")
    fixed = command.things.pool()
    code, err = command.error("autoscale", "simulate", "--pool", fixed)
    assert (code, "R-POOL-NOT-AUTOSCALED" in err) == (3, True)


def test_image_and_mounts_are_shown_without_keys(command: Command) -> None:
    secret = "c2VjcmV0"
    share = models.AzureFileShareConfiguration(
        account_name=ACCOUNT,
        azure_file_url="https://contract.file.core.windows.net/shared",
        account_key=secret,
        relative_mount_path="shared",
    )
    mount = models.MountConfiguration(azure_file_share_configuration=share)
    pool = command.things.pool(mount_configuration=[mount])
    shown = command.json("show", pool)
    assert shown["mounts"] == ["shared: share https://contract.file.core.windows.net/shared"]
    assert shown["image"] == "canonical:ubuntu-24_04-lts:server:latest"
    assert secret not in json.dumps(shown)


def test_nodes_show_their_kind_and_state(command: Command) -> None:
    pool = command.things.pool(target_dedicated_nodes=1, target_low_priority_nodes=1)
    command.things.wait_nodes(pool, 2)
    found = command.json("nodes", pool)
    assert sorted(node["spot"] for node in found) == [False, True]
    assert {node["state"] for node in found} == {"idle"}
    assert all(node["problem"] is None and node["log"] == [] for node in found)
    assert "yes" in command.text("nodes", pool)[0]


@pytest.mark.feature(10)
def test_failed_start_task_is_shown_with_the_end_of_its_log(command: Command) -> None:
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'echo no driver on this node >&2; exit 3'", wait_for_success=True
    )
    pool = command.things.pool(target_low_priority_nodes=1, start_task=start)
    command.things.wait_nodes(pool, 1, "starttaskfailed")
    (node,) = command.json("nodes", pool)
    assert node["state"] == "starttaskfailed"
    assert node["problem"] == "start task exited with 3"
    assert node["log"] == ["no driver on this node"]
    _, err = command.text("nodes", pool)
    assert "no driver on this node" in err
    assert "1 starttaskfailed" in command.text("ls")[0]


def test_disabled_nodes_are_counted(command: Command) -> None:
    pool = command.things.pool(target_low_priority_nodes=2)
    first, _ = command.things.wait_nodes(pool, 2)
    command.text("disable", pool, first.id)
    eventually(lambda: command.row(pool)["nodes"]["spot"].get("offline") == 1)
    assert "2 of 2, 1 offline  " in command.text("ls")[0]


@pytest.mark.feature(6)
def test_resize_of_a_fixed_pool_keeps_the_omitted_target(
    command: Command,
) -> None:
    pool = command.things.pool(target_low_priority_nodes=1, target_dedicated_nodes=1)
    command.things.wait_nodes(pool, 2)
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    _, err = command.text("resize", pool, "2")
    assert "1 to 2 spot" in err
    assert "USD per hour then: unknown" in err
    command.things.wait_nodes(pool, 3)
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    resized = command.json("resize", pool, "--dedicated", "0")
    assert (resized["spot_target"], resized["dedicated_target"]) == (2, 0)
    assert (resized["dedicated_target_before"], resized["usd_per_hour"]) == (1, None)
    command.things.wait_nodes(pool, 2)
    code, err = command.error("resize", pool)
    assert (code, "R-POOL-SIZE" in err) == (2, True)
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    command.text("resize", pool, "0", "--dedicated", "0")
    eventually(lambda: command.row(pool)["dedicated_target"] == 0)
    command.things.wait_nodes(pool, 0)


def test_resize_of_a_pool_with_a_formula_needs_its_removal(command: Command) -> None:
    pool = autoscaled(command.things, "$TargetLowPriorityNodes = 0; $TargetDedicatedNodes = 0;")
    code, err = command.error("resize", pool, "1")
    assert code == 3
    assert "R-POOL-AUTOSCALED" in err
    assert "--disable-autoscale" in err
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    [printed] = commands_in(err.partition("  more: ")[0])
    other = "$TargetLowPriorityNodes = 0;"
    command.text(*[other if word == "FORMULA" else word for word in printed.split()[2:]], "--yes")
    assert command.row(pool)["formula"] == other
    _, err = command.text("resize", pool, "1", "--disable-autoscale")
    assert "no longer scales to zero" in err
    assert "runner up" not in err, "no stack declares local pools"
    assert command.row(pool)["formula"] is None
    command.things.wait_nodes(pool, 1)


def test_resize_during_a_resize_is_refused(command: Command) -> None:
    pool = command.things.pool(target_low_priority_nodes=1)
    job = command.things.job(pool)
    command.things.wait_nodes(pool, 1)
    command.things.task(job, "/bin/sleep 60")
    eventually(lambda: command.row(pool)["running_tasks"] == 1)
    command.text("resize", pool, "0")  # waits for the task to end
    eventually(lambda: command.row(pool)["allocation"] == "resizing")
    code, err = command.error("resize", pool, "2")
    assert (code, "R-POOL-RESIZING" in err) == (5, True)


@pytest.mark.fix("R-REACH-NODE")
def test_nodes_of_a_pool_are_listed_after_one_was_lost(command: Command) -> None:
    pool = command.things.pool(target_low_priority_nodes=1)
    [node] = command.things.wait_nodes(pool, 1)
    connection = connect(load_settings({}, cwd=Path.cwd(), env=os.environ))
    with pytest.raises(RunnerError) as lost:
        find_address(connection, TaskPlace(pool, "tvm-gone", None))
    assert lost.value.code == "R-REACH-NODE"
    [printed] = commands_in(lost.value.fix)
    assert printed.startswith("runner pool ")
    assert node.id in command.text(*printed.split()[2:])[0]


@pytest.mark.parametrize("words", [("show",), ("nodes",), ("resize", "1")])
def test_unknown_pool_is_one_error_with_the_known_ones(
    command: Command, words: tuple[str, ...]
) -> None:
    known = command.things.pool()
    code, err = command.error(words[0], "nothing", *words[1:])
    assert code == 3
    assert "R-POOL-MISSING" in err
    assert known in err


@pytest.mark.parametrize("count", ["-1", "many", "100001"])
def test_invalid_size_is_one_error(command: Command, count: str) -> None:
    pool = command.things.pool()
    code, err = command.error("resize", pool, "--", count)
    assert code == 2
    assert err.startswith("error[")


def test_resize_shows_its_cost(command: Command) -> None:
    pool = command.things.pool(vm_size=PAID)
    eventually(lambda: command.row(pool)["allocation"] == "steady")
    assert f"USD per hour then: {3 * SPOT_USD:.3f}" in command.text("resize", pool, "3")[1]


def image_checks(sku: str, agent: str) -> list[Check]:
    """Return the entry of a pool's image in the list of the account."""
    settings = load_settings({}, cwd=Path.cwd(), env=os.environ)
    today = date(2026, 11, 21)
    values = {
        "location": "westeurope",
        "subscription_id": "00000000-0000-0000-0000-000000000000",
        "pools": [{"id": "t4", "vm_size": PAID}],
    }
    stack = parse_stack_config(values, stack="dev", file=Path("Pulumi.dev.yaml"))
    (plan,) = plan_pools(stack, load_price_table(None), today)
    image = MarketplaceImage("canonical", "ubuntu-24_04-lts", sku, "latest")
    return list(check_agents(settings, [replace(plan, image=image, node_agent=agent)], today))


@pytest.mark.usefixtures("command")
def test_supported_image_passes() -> None:
    (check,) = image_checks("server", "batch.node.ubuntu 24.04")
    assert check.state == "ok"


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(
    ("sku", "agent"),
    [("server", "batch.node.ubuntu 22.04"), ("unheard-of", "batch.node.ubuntu 24.04")],
)
def test_unsupported_image_fails(sku: str, agent: str) -> None:
    (check,) = image_checks(sku, agent)
    assert (check.state, check.code) == ("failed", "R-IMAGE-ENDED")


@pytest.mark.parametrize(
    ("refused", "code"), [(False, "R-SERVICES-DOWN"), (True, "R-ACCESS-DENIED")]
)
def test_unreadable_list_of_images_stops_no_deployment(
    command: Command, refused: bool, code: str
) -> None:
    """A private account, and whoever deploys without a role, still deploy by Resource Manager."""
    if refused:
        other = base64.b64encode(b"another key").decode()
        keys = HomePaths(Path(os.environ["RUNNER_HOME"])).keys
        keys.write_text(json.dumps({"batch": other, "storage": KEY}), encoding="utf-8")
    else:
        gone(command)
    checks = image_checks("server", "batch.node.ubuntu 24.04")
    assert [(check.state, check.code) for check in checks] == [("failed", code)]
    assert first_failure(checks) is None


def gone(command: Command) -> None:
    """Change the outputs to an endpoint without a service."""
    paths = HomePaths(Path(os.environ["RUNNER_HOME"]))
    text = paths.local_outputs.read_text(encoding="utf-8")
    paths.local_outputs.write_text(text.replace(command.running.url, "http://127.0.0.1:9"))


def test_stopped_services_are_one_error(command: Command) -> None:
    gone(command)
    code, err = command.error("ls")
    assert (code, "R-SERVICES-DOWN" in err) == (3, True)


def test_pool_names_are_completed_without_requests(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.cli.autocomplete import complete_pool

    gone(command)
    asked: Any = SimpleNamespace(params={})  # no confirmation was typed
    assert complete_pool(asked, "t") == ["t4"]
    assert complete_pool(asked, "") == ["t4", "big"]
    monkeypatch.setenv("RUNNER_HOME", "/nonexistent")
    assert complete_pool(asked, "") == []

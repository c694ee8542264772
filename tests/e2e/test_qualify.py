"""`runner qualify` on real pools: all rows pass, and each seeded fault turns one row red."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.contract import PoolOutput
from runner.core.progress import ignore_progress
from runner.core.settings import Settings, load_settings
from runner.features.qualify.criteria import ROWS, QualificationBounds
from runner.features.qualify.measure import PROBE, QualificationRequest
from runner.features.qualify.places import LocalPlace, Place, StackPlace
from runner.features.qualify.qualification import run_qualification
from runner.features.qualify.report import QualificationReport
from runner.flows.local.evict import evict
from runner.flows.runs.documents import runs_container
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec
from tests.e2e.conftest import Cli, interrupt, until
from tests.e2e.test_batches import batch_of, create_pool

_PRICE = ("Standard_NC4as_T4_v3", "southeastasia")


def pools(cli: Cli) -> set[str]:
    return {pool["pool"] for pool in cli.json("pool", "ls")}


def assert_nothing_left(cli: Cli) -> None:
    assert not [pool for pool in pools(cli) if pool.startswith("qualify-")]
    assert not [run for run in cli.json("ps") if run["recipe"] == "qualify"]
    jobs = [job for job in batch_of(cli).list_jobs() if job.state != "deleting"]
    assert not [job.id for job in jobs if job.id.startswith("qualify-")]
    assert not [*(cli.home / "qualify").glob("*.json")]


@pytest.mark.feature(9)
def test_every_row_passes_here_and_nothing_is_left(cli: Cli) -> None:
    cli.ok("local", "up")
    page = cli.cwd / "report.html"
    measure = ("qualify", "--html", page, "-o", "json")
    done = cli.run(*measure)
    if done.returncode:  # the machine may pause while a time is measured
        done = cli.run(*measure)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["rows"]}
    assert (document["passed"], [*rows]) == (True, [*ROWS])
    assert rows["capacity"]["values"]["came"] == 2
    assert rows["recovery"]["values"]["resumed"] > 0
    assert rows["cost per job"]["values"]["usd"] > 0
    assert all(row["values"]["seconds"] > 0 for row in (rows["recovery"], rows["fallback"]))
    assert "Ready: 7 passed" in page.read_text()
    assert_nothing_left(cli)


def test_ctrl_c_and_kill_leave_nothing_behind(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    killed = own_cli.start("qualify")
    until(lambda: any(run["recipe"] == "qualify" for run in own_cli.json("ps")))
    killed.kill()
    killed.communicate()
    left = {pool for pool in pools(own_cli) if pool.startswith("qualify-")}
    assert len(left) == 2
    stopped = own_cli.start("qualify")
    until(lambda: pools(own_cli) - left - {"local"})
    out, err = interrupt(stopped)
    assert stopped.returncode == 130, out + err
    assert "R-QUALIFY-INTERRUPTED" in err
    assert re.search(r"completion +NOT MEASURED", out)
    assert_nothing_left(own_cli)


def test_options_that_do_not_fit_are_refused_before_anything_is_made(cli: Cli) -> None:
    for words, text in (
        (("--pool", "local"), "unexpected --pool"),
        (("--second-pool", "x"), "unexpected --second-pool"),
        (("--bound", "boot=1m"), "invalid --bound"),
        (("--html", "no/such/folder.html"), "no such folder"),
    ):
        refused = cli.run("qualify", *words)
        assert (refused.returncode in (2, 3), text in refused.stderr) == (True, True), (
            refused.stderr
        )


# -- seeded faults


class NoCapacity(LocalPlace):
    """Gives one node less than asked for."""

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        super().ask(pool, nodes - (pool == self.first))


class SlowBoot(LocalPlace):
    """The nodes come after the time in which a run has to start."""

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        if pool != self.first:
            return super().ask(pool, nodes)
        threading.Timer(45, super().ask, (pool, nodes)).start()
        return None


class LostCheckpoint(LocalPlace):
    """The checkpoints are lost with the node."""

    def take_node(self, spec: RunSpec, node: str) -> str:
        evict(self.settings, node=node, pool=spec.pool, notice_s=0, away_s=15)
        container = runs_container(self.connection)
        container.delete_all(container.names(RunPaths(spec.run_id).checkpoints), lambda _: None)
        return "evicted, with its checkpoints"


class DeadSecondPool(LocalPlace):
    """The second pool gets no node."""

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        if pool == self.first:
            super().ask(pool, nodes)


# Wide, because the faults are measured at the same time.
_WIDE = QualificationBounds(
    capacity=240, cold=240, warm=120, recovery=240, lost=120, fallback=240, estimate=100
)


@dataclass(frozen=True)
class Fault:
    """A fault and the row that it turns red; `bounds` keep the waits short."""

    row: str
    why: str
    place: type[LocalPlace] = LocalPlace
    change: tuple[tuple[str, str], ...] = ()
    region: str = _PRICE[1]
    bounds: QualificationBounds = _WIDE
    nodes: int = 1


FAULTS = {
    "no capacity": Fault(
        "capacity", "did not come", NoCapacity, bounds=replace(_WIDE, capacity=30), nodes=2
    ),
    "slow boot": Fault(
        "start time", "cold: later than 15 s", SlowBoot, bounds=replace(_WIDE, cold=15)
    ),
    "lost checkpoint": Fault("recovery", "the checkpoint was not loaded", LostCheckpoint),
    "second pool dead": Fault(
        "fallback", "did not reach", DeadSecondPool, bounds=replace(_WIDE, fallback=30)
    ),
    "unknown price": Fault("cost per job", "is unknown", region="westeurope"),
    # A run that lost its node has the right result, so only the undisturbed ones are wrong.
    "wrong result": Fault(
        "completion",
        "wrong output",
        change=(
            (
                '"digest": digest, "starts": starts})',
                '"digest": digest if attempt > 1 else "", "starts": starts})',
            ),
        ),
    ),
    "missing logs and metrics": Fault(
        "observability",
        "logs: 8 of 8 lines did not arrive; metrics: 8 of 8 values did not arrive",
        change=(("sys.stdout.write(", "str("), ("lines.write(", "str(")),
    ),
}


def script_with(folder: Path, changes: tuple[tuple[str, str], ...]) -> Path:
    """Return a copy of the script with a fault."""
    shutil.copytree(PROBE, folder, ignore=shutil.ignore_patterns("__*__*"))
    text = (folder / "probe.py").read_text()
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    (folder / "probe.py").write_text(text)
    return folder


def measured(place: Place, settings: Settings, fault: Fault, probe: Path) -> QualificationReport:
    found = QualificationReport("local", fault.nodes, fault.bounds)
    request = QualificationRequest(fault.nodes, fault.bounds, _PRICE[0], fault.region, probe)
    run_qualification(place, settings, request, found, ignore_progress)
    return found


@pytest.mark.timeout(900)
def test_each_seeded_fault_turns_exactly_its_row_red(cli: Cli, tmp_path: Path) -> None:
    cli.ok("local", "up")

    def measure(name: str) -> QualificationReport:
        fault, home = FAULTS[name], tmp_path / name.replace(" ", "-")
        home.mkdir()
        (home / "local").symlink_to(cli.home / "local")  # the same services, another record
        settings = replace(load_settings({}, cwd=cli.cwd, env=cli.env), home=home)
        place = fault.place(connect(settings), settings)
        return measured(place, settings, fault, script_with(home / "probe", fault.change))

    with ThreadPoolExecutor(len(FAULTS)) as threads:
        found = dict(zip(FAULTS, threads.map(measure, FAULTS), strict=True))
    red = {
        name: [(row.name, row.state, row.why) for row in report.rows if row.state != "passed"]
        for name, report in found.items()
    }
    for name, fault in FAULTS.items():
        assert [(row, state) for row, state, _ in red[name]] == [(fault.row, "failed")], red
        assert fault.why in red[name][0][2]
        assert (found[name].passed, found[name].left) == (False, [])
    assert {fault.row for fault in FAULTS.values()} == {*ROWS}
    assert_nothing_left(cli)


@pytest.mark.timeout(900)
def test_pools_of_a_stack_are_measured_with_a_restart_and_a_requested_move(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    batch = batch_of(own_cli)
    for name in ("measured", "spare"):
        create_pool(batch, name, nodes=1)
    settings = load_settings({"pool": "measured"}, cwd=own_cli.cwd, env=own_cli.env)
    connection: Connection = connect(settings)
    first = PoolOutput("measured", "Standard_D2s_v3", 0, 2, True, 1, containers=False)
    declared = (first, replace(first, id="spare"))
    connection.outputs = replace(connection.outputs, pools=declared)
    until(lambda: [node.state for node in batch.list_nodes("measured")] == ["idle"])
    place = StackPlace(connection, settings, "spare")
    began = time.monotonic()
    found = measured(place, settings, Fault("start time", ""), PROBE)
    rows = {row.name: row for row in found.rows}
    assert {name for name, row in rows.items() if row.state != "passed"} == {"start time"}, rows
    assert rows["start time"].state == "not measured"
    assert "had nodes before" in rows["start time"].why
    assert "spare" in rows["fallback"].figure
    assert time.monotonic() - began < 600
    assert pools(own_cli) >= {"measured", "spare"}
    assert_nothing_left(own_cli)

"""The costs of runs from the index and from records, by the command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch import pools
from runner.azure.batch.pools import NodeView
from runner.azure.storage.blobs import BlobContainer
from runner.cli.commands.costs.cost import print_cost_notes
from runner.cli.ui.output import Output
from runner.contract import LOCAL_VM_SIZE
from runner.flows.costs.report import NO_SWEEP, CostQuery, CostReport, report_costs
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.runs import history
from runner.protocol.errors import RunnerError
from runner.protocol.results import index_blob, index_metadata
from runner.protocol.usage import load_usage, usage_to_json
from tests.unit.flows.runs.test_run_index import Page, pages_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SIZE = "Standard_NC16as_T4_v3"
HOUR = 3_600_000


class Records:
    """A container of runs and the nodes that exist, without services."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path, *, is_marked: bool) -> None:
        self.is_marked = is_marked
        self.home = home
        self.blobs: dict[str, bytes] = {}
        self.index: dict[str, Mapping[str, str]] = {}
        self.read: list[str] = []
        self.nodes: list[NodeView] = []
        monkeypatch.setattr(BlobContainer, "read", lambda _, blob: self._read(blob))
        monkeypatch.setattr(BlobContainer, "size", lambda _, blob: None)
        monkeypatch.setattr(BlobContainer, "list", lambda _, prefix: iter(()))
        monkeypatch.setattr(BlobContainer, "list_metadata", lambda _, prefix: self.index.items())
        monkeypatch.setattr(BlobContainer, "metadata_pages", self._pages)
        monkeypatch.setattr(history, "list_run_ids", lambda _: self._ids())
        monkeypatch.setattr(pools, "list_pool_nodes", lambda *_: tuple(self.nodes))

    def add(self, number: int, *, node: str = "tvm-1", indexed: bool = True, **run: Any) -> str:
        """Add a run that began `number` hours before now, ran for half an hour, and succeeded."""
        run_id = f"mnist-20261121-1200{number:02d}-abcd"
        began = NOW - timedelta(hours=number)
        created, ended = began - timedelta(minutes=6), began + timedelta(minutes=30)
        start = {"attempt": 1, "node": node, "started": began.isoformat(), "dedicated": False}
        end = {"attempt": 1, "ended": ended.isoformat(), "why": "succeeded"}
        document = {
            "format": 1,
            "run_id": run_id,
            "experiment": "digits",
            "created": created.isoformat(),
            "recipe": {"name": "mnist"},
            "params": {},
            "batch": {"pool": "t4", "vm_size": SIZE, "spot": True, "job_id": "j", "task_id": "t"},
            **run,
        }
        result = {
            "format": 1, "run_id": run_id, "status": "succeeded", "attempt": 1,
            "started": began.isoformat(), "ended": ended.isoformat(),
        }  # fmt: skip
        for name, content in {
            "run.json": document,
            "result.json": result,
            "attempts/1/start.json": {**start, "node_times": {"created": created.isoformat()}},
            "attempts/1/end.json": end,
            "attempts/1/events.jsonl": {
                "time": began.isoformat(), "stage": "command", "state": "start"
            },
        }.items():  # fmt: skip
            self.blobs[f"{run_id}/{name}"] = json.dumps(content).encode()
        usage = load_usage(self.blobs.get, run_id, nodes=1, status="succeeded")
        if indexed:
            metadata = index_metadata(document, result, usage_to_json(usage))
            self.index[index_blob(run_id)] = metadata
        return run_id

    def report(self, **query: Any) -> CostReport:
        query = {"region": "swedencentral", "by": "run", **query}
        outputs = local_outputs(LocalState(20001, 20002, 1, 1))
        connection = Connection(outputs, {"batch": "a2V5", "storage": "a2V5"})
        return report_costs(connection, CostQuery(**query), self.home, NOW)

    def _pages(self, prefix: str, first: int = 0, later: int = 0) -> Iterator[Page]:
        yield from pages_of(self.index, self._ids(), first) if self.is_marked else [([], False)]

    def _ids(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.blobs})

    def _read(self, blob: str) -> bytes | None:
        self.read.append(blob)
        return self.blobs.get(blob)


@pytest.fixture(params=[False, True], ids=["index by name", "index by time"])
def records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Records:
    return Records(monkeypatch, tmp_path, is_marked=request.param)


@pytest.mark.feature(54)
def test_the_cost_of_a_run_is_its_node_time_times_the_price(records: Records) -> None:
    run_id = records.add(3)
    report = records.report()
    (row,) = report.rows
    assert (row.name, row.runs) == (run_id, (run_id,))
    assert row.spent.ms["useful"] == HOUR // 2
    assert row.spent.ms["boot"] == HOUR // 10
    spot, dedicated = report.prices
    assert (spot.usd_per_hour, spot.as_of) == (0.3619, "2026-09-01")
    assert row.spent.total_micro == round(0.6 * 361_900)
    assert [gap.cause for gap in report.gaps] == ["end"]
    even = report.total.break_even
    assert even is not None
    assert even.limit == pytest.approx(1 - 0.3619 / (dedicated.usd_per_hour or 0), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"vm_size": "NC16", "region": "swedencentral"}, "R-MACHINE-UNKNOWN", SIZE),
        ({"vm_size": "NC16"}, "R-MACHINE-UNKNOWN", SIZE),
        ({"vm_size": SIZE}, "R-COST-REGION", "swedencentral"),
        ({"vm_size": SIZE, "region": "sweden"}, "R-SKUS-UNKNOWN", "swedencentral"),
        ({"region": "local"}, "R-SKUS-UNKNOWN", "similar"),
    ],
)
def test_unknown_size_or_region_or_missing_region_of_a_price_is_refused(
    records: Records, options: dict[str, str], code: str, said: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        records.report(**{"region": None, **options})
    assert caught.value.code == code
    assert said in caught.value.why


def test_size_without_a_known_price_is_accepted_with_given_prices(records: Records) -> None:
    records.add(1)
    given = {"vm_size": "Standard_New_v9", "spot_usd": 1.0, "dedicated_usd": 2.0}
    assert records.report(**given).total.total_micro == 600_000


def test_the_index_and_the_records_give_the_same_costs(records: Records) -> None:
    for number in range(1, 60):
        records.add(number, node=f"tvm-{number % 3}")
    by_index = records.report()
    assert not records.read
    for entry in records.index:
        records.index[entry] = {n: v for n, v in records.index[entry].items() if n != "attempts"}
    by_records = records.report()
    assert records.read
    assert (by_index.rows, by_index.gaps) == (by_records.rows, by_records.gaps)


def test_rows_are_recipes_experiments_or_pools(records: Records) -> None:
    first = records.add(1)
    second = records.add(3, node="tvm-2", experiment="letters", recipe={"name": "mnist"})
    names = {by: {row.name for row in records.report(by=by).rows} for by in
             ("run", "recipe", "experiment", "pool")}  # fmt: skip
    assert names == {
        "run": {first, second},
        "recipe": {"mnist"},
        "experiment": {"digits", "letters"},
        "pool": {"t4"},
    }


def test_costs_of_sweeps_are_those_of_their_trials(records: Records) -> None:
    first = records.add(1, group="net-20261121-143005-abcd")
    second = records.add(3, node="tvm-2", group="net-20261121-143005-abcd")
    alone = records.add(5, node="tvm-3")
    rows = {row.name: row for row in records.report(by="sweep").rows}
    assert {name: set(row.runs) for name, row in rows.items()} == {
        "net-20261121-143005-abcd": {first, second},
        NO_SWEEP: {alone},
    }
    chosen = records.report(by="sweep", run_ids=frozenset([first, second]))
    assert [row.name for row in chosen.rows] == ["net-20261121-143005-abcd"]
    assert chosen.total.total_micro == rows["net-20261121-143005-abcd"].spent.total_micro


def test_run_pays_its_share_of_a_shared_node(records: Records) -> None:
    alone = records.add(1)
    before = records.report(run_ids=frozenset([alone])).total.total_micro
    records.add(1, experiment="other")
    twin = f"{alone[:-4]}zzzz"
    for name in [n for n in records.blobs if n.startswith(alone)]:
        records.blobs[name.replace(alone, twin)] = records.blobs[name].replace(
            alone.encode(), twin.encode()
        )
    records.index.clear()
    shared = records.report(run_ids=frozenset([alone])).total.total_micro
    assert before is not None
    assert shared is not None
    assert abs(2 * shared - before) <= 1


def test_existing_node_is_idle_until_now(records: Records) -> None:
    records.add(1)
    node = NodeView("tvm-1", "idle", True, 0, 1, None, None, None)
    records.nodes = [node]
    assert records.report().total.ms["idle"] == HOUR // 2
    assert not records.report().gaps
    records.nodes = [NodeView("tvm-1", "preempted", True, 0, 1, None, None, None)]
    assert records.report().total.ms["idle"] == 0


def test_runs_submitted_before_the_period_are_not_counted(records: Records) -> None:
    records.add(1)
    assert len(records.report(since=NOW - timedelta(days=1)).rows) == 1
    assert not records.report(since=NOW + timedelta(hours=1)).rows


def test_price_missing_in_the_table_is_unknown(records: Records) -> None:
    records.add(1)
    report = records.report(region="westindia")
    assert report.total.total_micro is None
    assert report.total.unpriced_ms == report.total.total_ms > 0
    assert all(each.usd_per_hour is None for each in report.prices)
    assert records.report(region="westindia", spot_usd=2.0).total.total_micro == 1_200_000


def test_local_nodes_are_free_unless_a_price_is_given(records: Records) -> None:
    records.add(1)
    report = records.report(region=None)
    assert (report.is_free, report.total.total_micro) == (True, 0)


def test_unreadable_run_is_a_gap(records: Records) -> None:
    run_id = records.add(1, indexed=False)
    records.blobs[f"{run_id}/run.json"] = b'{"format": 99}'
    report = records.report()
    assert [(gap.cause, gap.run_id) for gap in report.gaps] == [("unreadable", run_id)]
    assert not report.rows


@pytest.mark.parametrize(
    ("vm_size", "region", "advice"),
    [
        (LOCAL_VM_SIZE, "westeurope", "add --vm-size"),
        (SIZE, "chinaeast2", "its price sheet is in CNY"),
        ("Standard_NC999_v9", "westeurope", "runner skus --refresh --region westeurope"),
    ],
)
def test_advice_about_an_unknown_price_helps(
    records: Records, capsys: pytest.CaptureFixture[str], vm_size: str, region: str, advice: str
) -> None:
    batch = {"pool": "p", "vm_size": vm_size, "spot": True, "job_id": "j", "task_id": "t"}
    records.add(1, batch=batch)
    print_cost_notes(Output(), records.report(region=region))
    assert advice in " ".join(capsys.readouterr().err.split())

"""Budgets as they are read from storage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.core.pricing.budgets import Budgets, Claim
from runner.flows.costs import budgets
from runner.flows.costs.budgets import (
    BLOB,
    BudgetReader,
    is_budgeted,
    load_budgets,
    release_claim,
    schedule_key,
)
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import RunnerError
from tests.unit.flows.costs.test_costs import NOW, Records


def connection(region: str = "swedencentral") -> Connection:
    outputs = replace(local_outputs(LocalState(20001, 20002, 1, 1)), location=region)
    return Connection(outputs, {"batch": "a2V5", "storage": "a2V5"})


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Records:
    return Records(monkeypatch, tmp_path, is_marked=True)


def put(records: Records, wanted: Budgets) -> None:
    records.blobs[BLOB] = json.dumps(wanted.to_json()).encode()


def test_stack_without_budgets_reads_no_runs(records: Records) -> None:
    assert load_budgets(connection(), records.home, NOW) is None
    put(records, Budgets())
    assert load_budgets(connection(), records.home, NOW) is None
    assert records.read == [BLOB, BLOB]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"claims": [1]}', b'{"experiments": 3}'])
def test_damaged_document_refuses_submissions(records: Records, body: bytes) -> None:
    records.blobs[BLOB] = body
    with pytest.raises(RunnerError) as caught:
        load_budgets(connection(), records.home, NOW)
    assert caught.value.code == "R-BUDGET-BROKEN"


def test_spending_is_the_sum_of_runner_cost(records: Records) -> None:
    records.add(3)
    records.add(5, node="tvm-2", experiment="other")
    put(records, Budgets(month_micros=9_000_000, experiments={"digits": 5_000_000}))
    state = load_budgets(connection(), records.home, NOW)
    assert state is not None
    total = records.report().total.total_micro
    spent = {each.experiment: each.spent for each in state.spending()}
    assert spent == {"": total, "digits": round(0.6 * 361_900)}
    assert state.left({"digits"}) == 5_000_000 - spent["digits"]
    assert state.left({"new"}) == 9_000_000 - (total or 0)


@pytest.fixture
def writable(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the document be changed; Batch has neither jobs nor schedules."""

    def update(_: BlobContainer, blob: str, change: Callable[[bytes], bytes]) -> bool:
        records.blobs[blob] = change(records.blobs[blob])
        return True

    monkeypatch.setattr(BlobContainer, "update", update)
    monkeypatch.setattr(budgets, "get_schedule", lambda *_: None)
    monkeypatch.setattr(budgets, "find_job_view", lambda *_: None)


def test_schedule_that_is_created_again_replaces_its_claim(
    records: Records, writable: None
) -> None:
    put(records, Budgets(month_micros=9_000_000))
    for _ in range(2):  # it was removed, or its creation failed
        state = load_budgets(connection(), records.home, NOW)
        assert state is not None
        state.claim(connection(), Claim(schedule_key("nightly"), NOW, {"digits": 6_000_000}))
    state = load_budgets(connection(), records.home, NOW)
    assert state is not None
    assert [(each.key, each.experiments["digits"]) for each in state.active] == [
        ("schedule nightly", 6_000_000)
    ]


def test_budget_includes_its_experiment_or_all(records: Records) -> None:
    assert not is_budgeted(connection(), {"digits"})
    put(records, Budgets(experiments={"digits": 5_000_000}))
    assert is_budgeted(connection(), {"digits", "other"})
    assert not is_budgeted(connection(), {"other"})
    assert not is_budgeted(connection("local"), {"digits"}), "nodes on this machine are free"
    put(records, Budgets(month_micros=9_000_000))
    assert is_budgeted(connection(), {"other"})


def test_run_with_an_unknown_price_counts_with_what_is_known(records: Records) -> None:
    records.add(3)
    put(records, Budgets(month_micros=9_000_000, experiments={"other": 1}))
    state = load_budgets(connection("norwayeast"), records.home, NOW)
    assert state is not None
    month, other = state.spending()
    assert (month.spent, month.left, len(month.unpriced)) == (0, 9_000_000, 1)
    assert other.unpriced == ()
    warning = state.warning({"digits"})
    assert warning.startswith(f"the price of {month.unpriced[0]} is unknown")
    assert warning.endswith("runner skus --refresh --region norwayeast")
    known = load_budgets(connection(), records.home, NOW)
    assert known is not None
    assert known.warning() == ""


def test_several_submissions_read_the_runs_once(records: Records, writable: None) -> None:
    records.add(3)
    put(records, Budgets(month_micros=9_000_000))
    reader = BudgetReader()
    first = reader.read(connection(), records.home)
    count = len(records.read)
    assert first is not None
    first.claim(connection(), Claim("job", NOW, {"digits": 6_000_000}))
    second = reader.read(connection(), records.home)
    assert second is not None
    assert set(records.read[count:]) == {BLOB}
    assert (first.left({"digits"}) or 0) - (second.left({"digits"}) or 0) == 6_000_000


def test_released_claim_is_left_again(records: Records, writable: None) -> None:
    key = schedule_key("nightly")
    put(records, Budgets(month_micros=9_000_000, claims=(Claim(key, NOW, {"digits": 6_000_000}),)))
    release_claim(connection(), key)
    release_claim(connection(), key)
    state = load_budgets(connection(), records.home, NOW)
    assert state is not None
    assert state.left({"digits"}) == 9_000_000
    assert state.budgets.claims == ()

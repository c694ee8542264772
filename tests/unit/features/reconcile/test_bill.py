"""Azure's bill, from cost exports of each kind of agreement, against the ledger."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.pricing.ledger import NodeLife
from runner.features.reconcile import bill as module
from runner.features.reconcile.bill import (
    CostExport,
    compare_bills,
    load_export,
    parse_export,
    total,
)
from runner.protocol.errors import RunnerError

FILE = Path("export.csv")
HOUR = 3_600_000
DAY = 24 * HOUR
MIDNIGHT = (date(2026, 11, 23) - date(1970, 1, 1)).days * DAY
ACCOUNT = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Batch/batchAccounts/Train"


def table(header: str, *rows: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header.split(), *rows])
    return text.getvalue()


VM = "Virtual Machines"
# Columns of a Microsoft Customer Agreement, of an Enterprise Agreement, and of FOCUS.
MCA = table(
    "date meterCategory ResourceId quantity unitOfMeasure billingCurrency costInBillingCurrency "
    "costInUsd tags",
    ("11/23/2026", VM, f"{ACCOUNT}/pools/T4", 3.5, "1 Hour", "EUR", 0.66, 0.7315, '{"a":"b"}'),
    ("11/23/2026", "Storage", f"{ACCOUNT}/pools/T4", 1, "1/Month", "EUR", 0.01, 0.02, ""),
    ("11/24/2026", VM, ACCOUNT.lower(), 0.2, "10 Hours", "EUR", 0.66, 0.418, '"pool": "T4"'),
    ("11/24/2026", VM, "/subscriptions/s/resourceGroups/g", 1, "1 Hour", "EUR", 9, 9, ""),
)
EA = table(
    "Date MeterCategory ResourceId Quantity UnitOfMeasure BillingCurrencyCode "
    "CostInBillingCurrency",
    ("2026-11-23", VM, ACCOUNT, 2, "1 Hour", "USD", 0.418),
    ("2026-11-23", VM, ACCOUNT, 1, "1 Hour", "EUR", 0.2),
)
FOCUS = table(
    "ChargePeriodStart ServiceName ResourceId ConsumedQuantity ConsumedUnit BillingCurrency "
    "BilledCost Tags",
    ("2026-11-23T00:00:00Z", VM, f"{ACCOUNT}/pools/t4", 2, "Hours", "USD", 0.418, "{}"),
)


def life(start_h: float, end_h: float, pool: str = "t4", price: int | None = 209_000) -> NodeLife:
    begin, end = MIDNIGHT + round(start_h * HOUR), MIDNIGHT + round(end_h * HOUR)
    return NodeLife(pool, "tvm-1", "Standard_NC4as_T4_v3", True, begin, end, price, None)


def parse(text: str) -> CostExport:
    return parse_export(text, FILE, "train")


@pytest.mark.feature(54)
def test_bill_of_a_pool_is_compared_with_its_nodes_by_day() -> None:
    export = parse(MCA)
    first, second = compare_bills(export, [life(22, 25), life(23, 23.5), life(48, 60)])
    assert (first.day, first.pool, first.billed_micro) == (date(2026, 11, 23), "t4", 731_500)
    assert (first.billed_hours, first.recorded_ms) == (Decimal("3.5"), 2.5 * HOUR)
    assert (first.recorded_micro, first.difference_micro) == (522_500, 209_000)
    assert first.other_micro == 20_000
    # The tag names the pool, and a unit has several hours. Hours after the export are excluded.
    assert (second.pool, second.billed_hours, second.recorded_ms) == ("t4", 2, HOUR)
    assert (export.others, export.until) == (1, date(2026, 11, 24))
    assert total((first, second)).billed_micro == 1_149_500


def test_rows_without_a_pool_are_compared_with_all_pools() -> None:
    export = parse(EA)
    [bill] = compare_bills(export, [life(1, 2), life(1, 3, pool="a100")])
    assert (bill.pool, bill.billed_hours, bill.recorded_ms) == ("", 3, 3 * HOUR)


def test_another_currency_and_an_unknown_price_are_unknown_and_not_zero() -> None:
    [bill] = compare_bills(parse(EA), [life(1, 2)])
    assert (bill.billed_micro, bill.difference_micro) == (None, None)
    assert parse(EA).currencies == {"EUR"}
    [bill] = compare_bills(parse(FOCUS), [life(1, 2), life(3, 4, price=None)])
    assert (bill.billed_micro, bill.recorded_micro, bill.difference_micro) == (418_000, None, None)


def test_compressed_export_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "export.csv.gz"
    path.write_bytes(gzip.compress(EA.encode("utf-8-sig")))
    assert len(load_export(path, "TRAIN").rows) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing columns: date"),
        ("a,b\n1,2\n", "missing columns: date, resourceid"),
        (
            MCA.replace("costInUsd", "x").replace("costInBillingCurrency", "y"),
            "missing columns: cost",
        ),
        (MCA.splitlines()[0], "the file has no rows"),
        (FOCUS.replace("2026-11-23T", "23.11.2026"), "line 2: invalid date '23.11.2026"),
        (FOCUS.replace("0.418", "free"), "line 2: a field is not a number"),
        (FOCUS.replace("0.418", "NaN"), "line 2: invalid amount NaN"),
        (FOCUS + '2026-11-23,"Virtual', "unexpected end"),
    ],
)
def test_invalid_export_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(RunnerError) as caught:
        parse(text)
    assert caught.value.code == "R-COST-EXPORT"
    assert why in (caught.value.why or "")


@pytest.mark.attack
def test_export_that_unpacks_to_more_than_its_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 1 << 20)
    path = tmp_path / "export.csv.gz"
    path.write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(RunnerError) as caught:
        load_export(path, "train")
    assert "unpacked file is larger" in str(caught.value.why)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x1f\x8b broken"])
def test_binary_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_bytes(content)
    with pytest.raises(RunnerError, match="as a cost export"):
        load_export(path, "train")


@given(st.integers(0, 100 * HOUR), st.integers(1, 100 * HOUR), st.integers(1, 40_000_000))
def test_days_of_a_node_sum_to_its_time_and_price(begin: int, length: int, price: int) -> None:
    node = NodeLife("t4", "n", "s", True, MIDNIGHT + begin, MIDNIGHT + begin + length, price, None)
    export = CostExport((), date(2026, 1, 1), date(2027, 1, 1), 0)
    bills = compare_bills(export, [node])
    assert sum(bill.recorded_ms for bill in bills) == length
    assert sum(bill.recorded_micro or 0 for bill in bills) == node.micro

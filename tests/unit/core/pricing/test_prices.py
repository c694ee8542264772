from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from runner.contract import PoolOutput
from runner.core.home import HomePaths
from runner.core.pricing.cost import BOOT_S, Work, plan_cost
from runner.core.pricing.machines import find_machine, machines
from runner.core.pricing.prices import (
    OS_DISK,
    Price,
    PriceKey,
    PriceTable,
    disk_row,
    disk_rows,
    is_size,
    load_price_table,
    parse_prices,
    render_prices,
)
from runner.protocol.errors import RunnerError

HEADER = "vm_size,location,kind,usd_per_hour,as_of,source\n"


def test_missing_price_is_none():
    table = load_price_table(None)
    assert table.find("Standard_NC4as_T4_v3", "nowhere", spot=True) is None
    assert PriceTable().find("Standard_NC4as_T4_v3", "eastus", spot=False) is None


def test_packaged_prices_have_known_size_date_and_source():
    table = load_price_table(None)
    assert table.rows
    for key, price in table.rows.items():
        assert find_machine(key.vm_size) is not None
        assert date(2024, 1, 1) < price.as_of <= date(2026, 11, 21)
        assert price.source
        assert 0 < price.usd_per_hour < 200


def test_spot_and_dedicated_have_separate_prices():
    table = load_price_table(None)
    spot = table.find("STANDARD_NC24ADS_A100_V4", "SouthEastAsia", spot=True)
    dedicated = table.find("Standard_NC24ads_A100_v4", "southeastasia", spot=False)
    assert spot is not None
    assert dedicated is not None
    assert spot.usd_per_hour < dedicated.usd_per_hour


def test_refreshed_prices_replace_packaged_ones(tmp_path: Path):
    key = PriceKey("standard_nc24ads_a100_v4", "eastus", spot=False)
    newer = {key: Price(9.5, date(2026, 11, 20), "a test, with a comma")}
    HomePaths(tmp_path).prices.write_text(render_prices(newer), encoding="utf-8")
    table = load_price_table(tmp_path)
    assert table.find("Standard_NC24ads_A100_v4", "eastus", spot=False) == newer[key]
    assert len(table.rows) == len(load_price_table(None).rows)


def test_written_prices_are_read_back(tmp_path: Path):
    rows = dict(load_price_table(None).rows)
    assert parse_prices(render_prices(rows), tmp_path) == rows


def test_higher_of_two_packaged_prices_counts(tmp_path: Path):
    text = HEADER + "a,b,spot,1.5,2026-01-01,x\nA,B,spot,1.2,2026-02-01,y\n"
    assert parse_prices(text, tmp_path)[PriceKey("a", "b", spot=True)].usd_per_hour == 1.5


@pytest.mark.parametrize(
    "line",
    [
        "a,b,spot,0,2026-01-01,x",
        "a,b,spot,-1,2026-01-01,x",
        "a,b,spot,nan,2026-01-01,x",
        "a,b,spot,inf,2026-01-01,x",
        "a,b,cheap,1,2026-01-01,x",
        "a,b,spot,1,yesterday,x",
        "a,b",
    ],
)
def test_invalid_price_line_is_reported_with_its_number(tmp_path: Path, line: str):
    HomePaths(tmp_path).prices.write_text(HEADER + line + "\n", encoding="utf-8")
    with pytest.raises(RunnerError) as caught:
        load_price_table(tmp_path)
    assert caught.value.code == "R-PRICES-READ"
    assert "line 2" in caught.value.why


def test_file_other_than_a_price_table_is_an_error(tmp_path: Path):
    HomePaths(tmp_path).prices.write_text("hello\n", encoding="utf-8")
    with pytest.raises(RunnerError, match=r"prices\.csv"):
        load_price_table(tmp_path)


def with_extras() -> PriceTable:
    day, older = date(2026, 11, 20), date(2026, 11, 1)
    size = "standard_nc4as_t4_v3"
    return PriceTable(
        {
            PriceKey(size, "westeurope", spot=True): Price(0.2, day, "test"),
            PriceKey(size, "westeurope", spot=False): Price(0.6, day, "test"),
            PriceKey(OS_DISK, "westeurope", spot=False): Price(0.027, older, "test"),
            PriceKey(size, "eastus", spot=True): Price(0.2, day, "test"),
        }
    )


def test_a_node_costs_its_machine_and_what_is_known_of_the_rest():
    table = with_extras()
    node = table.find_node("Standard_NC4as_T4_v3", "westeurope", spot=True)
    assert node == Price(
        0.227, date(2026, 11, 1), "test", "with OS disk, without public address (price unknown)"
    )
    alone = table.find_node("Standard_NC4as_T4_v3", "eastus", spot=True)
    assert alone is not None
    assert alone.usd_per_hour == 0.2
    assert table.find_node("Standard_NC4as_T4_v3", "eastus", spot=False) is None


def test_the_costs_of_a_submission_count_the_disk():
    pool = PoolOutput(
        id="t4", vm_size="Standard_NC4as_T4_v3", gpus=1, vcpus=4, spot=True, max_nodes=4,
        release_minutes=20,
    )  # fmt: skip
    work = [Work(expected_s=3600 - BOOT_S - 1200, limit_s=3600)]
    day = date(2026, 11, 21)
    found = plan_cost(pool, "westeurope", work, with_extras(), cap_micros=None, today=day)
    assert (found.spot.expected_micros, found.dedicated.expected_micros) == (227_000, 627_000)
    capped = plan_cost(pool, "westeurope", work, with_extras(), cap_micros=5_000_000, today=day)
    assert capped.cap is not None
    assert capped.cap.bound_micros <= 5_000_000


# In Azure's list, but with a price in no region of Europe (2026-06-18).
_NOT_IN_EUROPE: frozenset[str] = frozenset()


def test_every_gpu_size_has_a_price_in_europe():
    table, europe = load_price_table(None), {"westeurope", "northeurope", "swedencentral"}
    sold = [each.vm_size for each in machines() if each.gpu and each.retired is None]
    missing = {size for size in sold if not europe & set(table.locations(size))}
    assert missing == _NOT_IN_EUROPE
    assert table.find("Standard_NC4as_T4_v3", "West Europe", spot=False) is not None


@pytest.mark.parametrize(
    ("size_gib", "kind", "row"),
    [
        (None, "premium_ssd", OS_DISK),
        (30, "premium_ssd", "os_disk_p4"),
        (128, "standard_ssd", "os_disk_e10"),
        (129, "standard_ssd", "os_disk_e15"),
        (4095, "standard_hdd", "os_disk_s50"),
    ],
)
def test_disk_is_billed_as_the_next_size_of_its_type(size_gib: int | None, kind: str, row: str):
    assert disk_row(size_gib, kind) == row
    assert row in disk_rows().values()
    assert not is_size(row)


def test_price_of_a_node_has_the_disk_of_its_pool():
    day = date(2026, 11, 20)
    table = PriceTable(
        {
            **with_extras().rows,
            PriceKey("os_disk_e15", "westeurope", spot=False): Price(0.05, day, "t"),
        }
    )
    found = table.find_node(
        "Standard_NC4as_T4_v3", "westeurope", spot=True, disk="os_disk_e15", has_address=False
    )
    assert found is not None
    assert (found.usd_per_hour, found.extras) == (0.25, "with OS disk")

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator
from datetime import date
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from azure.core import PipelineClient
from azure.core.exceptions import ServiceResponseError

from runner.azure.arm.retail_prices import fetch_extras, fetch_prices
from runner.cli.main import main
from runner.core.home import HomePaths
from runner.core.pricing import machines as machines_module
from runner.core.pricing.prices import (
    OS_DISK,
    PUBLIC_ADDRESS,
    PriceKey,
    disk_rows,
    load_price_table,
)
from runner.flows.environment import skus as skus_flow
from runner.protocol.errors import RunnerError
from tests.loopback import listening

TODAY = date(2026, 11, 21)
T4 = "Standard_NC4as_T4_v3"


def item(sku: str, usd: float, **changes: Any) -> dict[str, Any]:
    """Return an item as in a page of the API."""
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": "westeurope",
        "location": "EU West",
        "effectiveStartDate": "2021-11-01T00:00:00Z",
        "meterName": sku,
        "productName": "Virtual Machines NCasT4 v3 Series",
        "skuName": sku,
        "serviceName": "Virtual Machines",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": T4,
        **changes,
    }


class PriceServer:
    """Serves pages of items and records the queries."""

    def __init__(self) -> None:
        self.pages: list[Any] = [[]]
        self.status = 200
        self.busy = 0  # requests that get HTTP 503 before the others are answered
        self.released = threading.Event()  # a slow server answers once it is set
        self.slow = False
        self.asked: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
                outer.asked.append(query)
                if outer.slow:
                    outer.released.wait(600)
                text = outer.answer(int(query.get("$skip", "0"))).encode()
                outer.busy -= 1
                self.send_response(503 if outer.busy >= 0 else outer.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self.handler = Handler
        self.url = ""

    def answer(self, page: int) -> str:
        if isinstance(self.pages[page], str):
            return self.pages[page]
        more = f"{self.url}?$skip={page + 1}" if page + 1 < len(self.pages) else None
        found = self.pages[page]
        body = {
            "BillingCurrency": "USD",
            "CustomerEntityId": "Default",
            "CustomerEntityType": "Retail",
            "Items": found,
            "NextPageLink": more,
            "Count": len(found),
        }
        return json.dumps(body)


@pytest.fixture
def server() -> Generator[PriceServer]:
    serving = PriceServer()
    with listening(serving.handler) as url:
        serving.url = f"{url}/api/retail/prices"
        yield serving


def fetched(server: PriceServer) -> dict[bool, float]:
    found = fetch_prices([T4], "westeurope", today=TODAY, endpoint=server.url)
    assert all(price.as_of == TODAY for price in found.values())
    return {key.spot: price.usd_per_hour for key, price in found.items()}


@pytest.mark.feature(8)
def test_only_linux_prices_are_stored(server: PriceServer):
    server.pages = [
        [
            item("NC4as T4 v3", 0.615),
            item("NC4as T4 v3 Spot", 0.18),
            item("NC4as T4 v3 Low Priority", 0.9),
            item("NC4as T4 v3", 0.8, productName="Virtual Machines NCasT4 v3 Series Windows"),
            item("NC4as T4 v3 Spot", 0.7, productName="Virtual Machines NCasT4 v3 Series Windows"),
            item("NC4as T4 v3", 3434.0, type="Reservation"),
            item("NC4as T4 v3", 3.0, type="DevTestConsumption"),
            item("NC4as T4 v3", 3.0, productName="NCasT4 v3 Series Cloud Services"),
            item("NC4as T4 v3", 3.0, unitOfMeasure="1 Month"),
            item("NC4as T4 v3", 3.0, armRegionName="eastus"),
            item("NC4as T4 v3", 3.0, effectiveStartDate="2027-01-01T00:00:00Z"),
            item("NC4as T4 v3", 3.0, currencyCode="EUR"),
            item("NC4as T4 v3", 3.0, armSkuName="Standard_Unknown"),
        ]
    ]
    assert fetched(server) == {False: 0.615, True: 0.18}


def test_highest_of_several_prices_counts(server: PriceServer):
    server.pages = [[item("NC4as T4 v3", usd) for usd in (0.5, 0.615, 0.6)]]
    assert fetched(server) == {False: 0.615}


def test_all_pages_of_prices_are_read(server: PriceServer):
    server.pages = [[item("NC4as T4 v3", 0.5)], [], [item("NC4as T4 v3 Spot", 0.1)]]
    assert fetched(server) == {False: 0.5, True: 0.1}
    assert len(server.asked) == 3


def test_price_of_zero_is_unknown(server: PriceServer):
    server.pages = [[item("NC4as T4 v3", 0.0)]]
    assert fetched(server) == {}


def test_query_has_the_documented_form(server: PriceServer):
    fetched(server)
    (asked,) = server.asked
    assert asked["api-version"] == "2023-01-01-preview"
    assert asked["meterRegion"] == "'primary'"
    assert asked["$filter"] == (
        "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and "
        f"armRegionName eq 'westeurope' and (armSkuName eq '{T4}')"
    )


@pytest.mark.parametrize("page", ["<html>", "[]", "{}", '{"Items": 3}', '{"Items": [3]}'])
def test_invalid_response_with_prices_is_an_error(server: PriceServer, page: str):
    server.pages = [page]
    with pytest.raises(RunnerError) as caught:
        fetched(server)
    assert caught.value.code == "R-PRICES-FETCH"


def test_prices_in_another_currency_only_are_an_error_that_names_it(server: PriceServer):
    server.pages = [[item("NC4as T4 v3", 0.5, currencyCode="EUR")]]
    with pytest.raises(RunnerError) as caught:
        fetched(server)
    assert caught.value.why == "the prices are in EUR, not in USD"


def test_rejected_request_for_prices_is_an_error(server: PriceServer):
    server.status = 400
    with pytest.raises(RunnerError, match="no prices"):
        fetched(server)


def test_busy_price_server_is_asked_again(server: PriceServer):
    server.busy = 2
    server.pages = [[item("NC4as T4 v3", 0.5)]]
    assert fetched(server) == {False: 0.5}
    assert len(server.asked) == 3


@pytest.mark.slow
def test_slow_price_server_is_given_up(server: PriceServer):
    server.slow = True
    try:
        with pytest.raises(RunnerError) as caught:
            fetch_prices([T4], "westeurope", today=TODAY, endpoint=server.url, read_timeout_s=0.1)
    finally:
        server.released.set()
    assert caught.value.code == "R-PRICES-FETCH"


def test_price_server_that_is_down_is_an_error(server: PriceServer):
    with listening(server.handler) as url:
        gone = url
    with pytest.raises(RunnerError) as caught:
        fetch_prices([T4], "westeurope", today=TODAY, endpoint=f"{gone}/api/retail/prices")
    assert caught.value.code == "R-PRICES-FETCH"


def test_sdk_error_without_a_text_is_named_by_its_class(
    server: PriceServer, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise ServiceResponseError("")

    monkeypatch.setattr(PipelineClient, "send_request", fail)
    with pytest.raises(RunnerError) as caught:
        fetched(server)
    assert (caught.value.code, caught.value.why) == ("R-PRICES-FETCH", "ServiceResponseError")


@pytest.mark.parametrize("usd", [None, "free", float("nan"), -0.5])
def test_invalid_price_is_an_error_and_not_zero(server: PriceServer, usd: Any):
    server.pages = [[item("NC4as T4 v3", 0.5), item("NC4as T4 v3 Spot", usd)]]
    with pytest.raises(RunnerError) as caught:
        fetched(server)
    assert "invalid price" in caught.value.why


def test_next_page_on_another_host_is_not_read(server: PriceServer):
    server.pages = [json.dumps({"Items": [], "NextPageLink": "https://example.invalid/x"})]
    with pytest.raises(RunnerError) as caught:
        fetched(server)
    assert "another host" in caught.value.why


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: PriceServer) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_PRICES_URL", server.url)
    return tmp_path / "home"


def test_refreshed_prices_are_stored_and_shown(
    home: Path, server: PriceServer, capsys: pytest.CaptureFixture[str]
):
    server.pages = [[item("NC4as T4 v3", 0.615), item("NC4as T4 v3 Spot", 0.18)]]
    assert main(["skus", "--refresh", "--region", "West Europe", "--gpu", "t4", "-o", "json"]) == 0
    rows = {row["vm_size"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[T4]["spot_usd_per_hour"] == 0.18
    assert rows[T4]["spot_source"] == "Azure Retail Prices API"
    assert rows["Standard_NC64as_T4_v3"]["spot_usd_per_hour"] is None
    kept = load_price_table(home)
    assert kept.find(T4, "westeurope", spot=False)
    assert PriceKey(T4.lower(), "eastus", spot=False) in kept.rows
    server.status = 500
    assert main(["skus", "--region", "westeurope", "--gpu", "T4"]) == 0
    assert "unknown" in capsys.readouterr().out


def test_second_refresh_keeps_prices_of_other_regions(home: Path, server: PriceServer):
    server.pages = [[item("NC4as T4 v3", 0.6), item("NC4as T4 v3", 0.7, armRegionName="eastus")]]
    assert main(["skus", "--refresh", "--region", "westeurope"]) == 0
    assert main(["skus", "--refresh", "--region", "eastus"]) == 0
    lines = HomePaths(home).prices.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert list(home.iterdir()) == [HomePaths(home).prices]


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["--refresh"], "R-SKUS-REGION", 2),
        (["--refresh", "--region", "atlantis"], "R-PRICES-REGION", 2),
        (["--gpu", "Voodoo2"], "R-SKUS-GPU", 2),
    ],
)
def test_invalid_options_of_skus_are_errors(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: str, exit_code: int
):
    assert main(["skus", *words]) == exit_code
    assert f"error[{code}]" in capsys.readouterr().err


EXTRAS = [
    item("P10 LRS", 19.71, meterName="P10 LRS Disk", armSkuName="", unitOfMeasure="1/Month",
         serviceName="Storage", productName="Premium SSD Managed Disks"),
    item("P10 LRS", 1.0, meterName="P10 LRS Disk Mount", armSkuName="", unitOfMeasure="1/Month"),
    item("P10 LRS", 2.5, meterName="P10 LRS Disk", armSkuName="", unitOfMeasure="1/Hour"),
    item("Standard", 0.005, meterName="Standard IPv4 Static Public IP", armSkuName="",
         serviceName="Virtual Network", productName="IP Addresses"),
    item("Standard", 0.9, meterName="Standard IPv4 Static Public IP", armRegionName="eastus"),
]  # fmt: skip


def test_disk_and_address_of_a_node_have_prices_per_hour(server: PriceServer):
    server.pages = [EXTRAS]
    found = fetch_extras("westeurope", today=TODAY, endpoint=server.url)
    usd = {key.vm_size: price.usd_per_hour for key, price in found.items()}
    assert usd == {OS_DISK: 0.027, PUBLIC_ADDRESS: 0.005}
    wanted = server.asked[0]["$filter"]
    place, _, meters = wanted.partition(" and (")
    assert place == "priceType eq 'Consumption' and armRegionName eq 'westeurope'"
    asked = set(meters.removesuffix(")").split(" or "))
    names = (*disk_rows(), "Standard IPv4 Static Public IP")
    assert asked == {f"meterName eq '{name}'" for name in names}
    assert len(quote(wanted)) < 1800, "the whole address stays below 2,000 characters"


def test_disk_and_address_are_stored_and_count_in_costs(home: Path, server: PriceServer):
    server.pages = [[item("NC4as T4 v3", 0.6), item("NC4as T4 v3 Spot", 0.2), *EXTRAS]]
    assert main(["skus", "--refresh", "--region", "westeurope"]) == 0
    kept = load_price_table(home)
    machine = kept.find(T4, "westeurope", spot=True)
    node = kept.find_node(T4, "westeurope", spot=True)
    assert machine is not None
    assert node is not None
    assert (machine.usd_per_hour, node.usd_per_hour) == (0.2, 0.232)
    assert kept.find_node("Standard_NC8as_T4_v3", "westeurope", spot=True) is None
    assert node.extras == "with OS disk and public address"
    other = kept.find_node(T4, "southeastasia", spot=True)
    packaged = kept.find(T4, "southeastasia", spot=True)
    assert other is not None
    assert packaged is not None
    assert other.usd_per_hour == packaged.usd_per_hour
    assert other.extras == "without OS disk and public address (price unknown)"


class RegionServer:
    """Answers each region with prices, none, an error for some time, or Ctrl-C of the client."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self.empty: set[str] = set()
        self.interrupt = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
                region = query["$filter"].split("armRegionName eq '")[1].split("'")[0]
                outer.asked.append(region)
                prices = [] if region in outer.empty else [item("NC4as T4 v3 Spot", 0.1)]
                items = [{**each, "armRegionName": region} for each in prices]
                text = json.dumps({"Items": items, "NextPageLink": None}).encode()
                self.send_response(400 if region in outer.failing else 200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self.handler = Handler


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[RegionServer]:
    serving = RegionServer()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(skus_flow, "REGIONS", frozenset(("eastus", "westeurope", "westus", "x")))
    monkeypatch.setattr(machines_module, "REGIONS", frozenset(("eastus", "westeurope", "westus")))
    with listening(serving.handler) as url:
        monkeypatch.setenv("RUNNER_PRICES_URL", f"{url}/api/retail/prices")
        yield serving


ALL = ["skus", "--refresh", "--all"]


@pytest.mark.feature(8)
def test_prices_of_all_regions_are_loaded_with_progress(
    regions: RegionServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    regions.empty = {"x"}
    assert main([*ALL, "--gpu", "T4"]) == 0
    out, err = capsys.readouterr()
    assert "eastus: 1 price" in err
    assert "x: no prices" in err
    assert "3 prices of 3 regions" in err
    assert "K80" not in out  # --all is about regions here
    table = load_price_table(tmp_path / "home")
    for region in ("eastus", "westeurope", "westus"):
        price = table.find(T4, region, spot=True)
        assert price is not None
        assert price.usd_per_hour == 0.1


@pytest.mark.fix("R-PRICES-FETCH")
def test_regions_that_fail_are_named_and_loaded_by_the_next_call(
    regions: RegionServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    regions.failing = {"westeurope"}
    assert main(ALL) != 0
    err = capsys.readouterr().err
    assert "westeurope: not loaded: HTTP 400" in err
    assert "error[R-PRICES-FETCH]: the prices of 1 of 4 regions were not loaded" in err
    assert load_price_table(tmp_path / "home").find(T4, "westus", spot=True)
    regions.failing, regions.asked = set(), []
    assert main(ALL) == 0
    assert set(regions.asked) == {"westeurope"}
    assert "loaded earlier today" in capsys.readouterr().err


def test_prices_that_were_loaded_before_an_interruption_are_kept(
    regions: RegionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    load = skus_flow.refresh_prices

    def interrupted(home: Path, location: str, **more: Any) -> int:
        if location == "westus":
            raise KeyboardInterrupt
        return load(home, location, **more)

    monkeypatch.setattr(skus_flow, "refresh_prices", interrupted)
    home = tmp_path / "home"
    with pytest.raises(KeyboardInterrupt):
        list(skus_flow.refresh_all(home, dict(os.environ), today=TODAY))
    assert load_price_table(home).find(T4, "westeurope", spot=True)
    monkeypatch.setattr(skus_flow, "refresh_prices", load)
    regions.asked = []
    found = list(skus_flow.refresh_all(home, dict(os.environ), today=TODAY))
    assert [each.name for each in found if not each.is_new] == ["eastus", "westeurope"]
    assert set(regions.asked) == {"westus", "x"}


def test_a_service_that_is_down_is_not_asked_for_every_region(regions: RegionServer):
    regions.failing = {"eastus", "westeurope", "westus", "x"}
    assert main(ALL) != 0
    assert len(set(regions.asked)) == 3


def test_an_unknown_price_names_the_command_for_all_regions(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["skus", "--gpu", "A100", "--region", "westus"]) == 0
    out, err = capsys.readouterr()
    assert "unknown" in out
    assert "runner skus --refresh --all" in err


def test_retired_sizes_are_listed_with_their_successor(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["skus", "--gpu", "K80", "--all", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["retired"] for row in rows} == {"2023-09-06"}
    assert all(row["successor"] for row in rows)
    assert main(["skus", "-o", "json"]) == 0
    assert "K80" not in capsys.readouterr().out

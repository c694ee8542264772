from __future__ import annotations

import json
import threading
from collections.abc import Generator
from datetime import date
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runner.azure.arm.retail_prices import fetch_prices
from runner.cli.main import main
from runner.core.home import HomePaths
from runner.core.pricing.prices import PriceKey, load_price_table
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
                    outer.released.wait(30)
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
    assert rows["Standard_NC64as_T4_v3"]["usd_per_hour"] is None
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


def test_retired_sizes_are_listed_with_their_successor(
    home: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["skus", "--gpu", "K80", "--all", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["retired"] for row in rows} == {"2023-09-06"}
    assert all(row["successor"] for row in rows)
    assert main(["skus", "-o", "json"]) == 0
    assert "K80" not in capsys.readouterr().out

"""Facts about spot nodes, from a stand-in of Resource Manager and Resource Graph."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runner.azure.arm.client import ArmClient
from runner.azure.arm.spot import load_eviction_rates, load_placement_scores, load_price_history
from runner.cli.main import main
from runner.core.pricing.machines import find_machine
from runner.flows.environment.skus import SkuFacts, SkuRow
from runner.protocol.errors import RunnerError
from tests.arm_server import SUBSCRIPTION, ArmServer
from tests.unit.core.pricing.test_cost import T4, table

SMALL, LARGE = "Standard_NC4as_T4_v3", "Standard_NC16as_T4_v3"


@pytest.fixture
def server() -> Generator[ArmServer]:
    with ArmServer() as serving:
        yield serving


@pytest.fixture
def management(server: ArmServer) -> ArmClient:
    return ArmClient(SUBSCRIPTION, endpoint=server.url, credential=server.credential)


def scores(_: str, body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """High in the first region of each request, Low in the others."""
    found = [
        {"sku": size["sku"], "region": region, "score": "Low" if number else "High"}
        for size in body["desiredSizes"]
        for number, region in enumerate(body["desiredLocations"])
    ]
    return 200, {"placementScores": found}, {}


def graph(_: str, body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Two pages of rates, one of prices."""
    if "skuspotpricehistory" in body["query"]:
        prices = [
            {"priceUSD": 0.2, "effectiveDate": "2026-11-01T00:00:00Z"},
            {"priceUSD": "free", "effectiveDate": "2026-10-01T00:00:00Z"},
            {"priceUSD": 0.3, "effectiveDate": "2026-09-01T00:00:00Z"},
        ]
        rows = [{"size": SMALL.lower(), "location": "westus2", "prices": prices}]
        return 200, {"data": rows}, {}
    if "$skipToken" not in body["options"]:
        rows = [{"size": SMALL, "location": "westus2", "rate": "20+"}]
        return 200, {"data": rows, "$skipToken": "more"}, {}
    return 200, {"data": [{"size": LARGE, "location": "westus2", "rate": "0-5"}]}, {}


def test_scores_are_requested_for_8_regions_and_5_sizes_at_once(
    server: ArmServer, management: ArmClient
) -> None:
    server.handle("POST", "placementscores/spot/generate", scores)
    regions = [f"region{number}" for number in range(9)]
    found = load_placement_scores(management, [f"Size_{n}" for n in range(6)], regions)
    assert len(found) == 54
    assert (found["size_5", "region8"], found["size_0", "region1"]) == ("High", "Low")
    bodies = [body for _, path, body in server.state.requests if "placementScores" in path]
    assert [(len(b["desiredLocations"]), len(b["desiredSizes"])) for b in bodies] == [
        (8, 5), (8, 1), (1, 5), (1, 1),
    ]  # fmt: skip


def test_all_pages_of_eviction_rates_are_read(server: ArmServer, management: ArmClient) -> None:
    server.handle("POST", "microsoft.resourcegraph/resources", graph)
    found = load_eviction_rates(management, [SMALL, LARGE], ["westus2"])
    assert found == {(SMALL.lower(), "westus2"): "20+", (LARGE.lower(), "westus2"): "0-5"}
    assert not any("subscriptions" in body for *_, body in server.state.requests)


def test_price_history_has_only_valid_prices(server: ArmServer, management: ArmClient) -> None:
    server.handle("POST", "microsoft.resourcegraph/resources", graph)
    [prices] = load_price_history(management, [SMALL], ["westus2"]).values()
    assert [each.usd_per_hour for each in prices] == [0.2, 0.3]


@pytest.mark.parametrize("answer", [{}, {"data": 3}, {"data": [3]}])
def test_answer_without_rows_is_an_error(
    server: ArmServer, management: ArmClient, answer: dict[str, Any]
) -> None:
    server.handle("POST", "microsoft.resourcegraph/resources", lambda *_: (200, answer, {}))
    with pytest.raises(RunnerError) as caught:
        load_eviction_rates(management, [SMALL], ["westus2"])
    assert "not a list of objects" in caught.value.why


def row(spot: float | None, dedicated: float | None, evictions: str | None = None) -> SkuRow:
    prices, size = table(spot, dedicated), find_machine(T4)
    assert size is not None
    return SkuRow(
        size,
        "westeurope",
        prices.find(T4, "westeurope", spot=True),
        prices.find(T4, "westeurope", spot=False),
        SkuFacts(evictions=evictions),
    )


def test_useful_hour_includes_what_evictions_cost() -> None:
    # 0.1 evictions per hour cost 630 s each: 1.75 % of an hour.
    assert row(1.0, None, "5-10").useful_usd_per_hour == pytest.approx(1.0175)
    assert row(1.0, None).useful_usd_per_hour == row(1.0, None, "20+").useful_usd_per_hour
    assert row(1.0, 1.01, "5-10").useful_usd_per_hour == 1.01
    assert row(None, None).useful_usd_per_hour is None


@pytest.fixture
def live(server: ArmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArmServer:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.handle("POST", "placementscores/spot/generate", scores)
    server.handle("POST", "microsoft.resourcegraph/resources", graph)
    server.add_batch_account("rg", "mine", "westus2", lowPriorityCoreQuota=32)
    server.add_size(SMALL, "StandardNCASv3_T4Family", "westus2")
    server.add_size(LARGE, "f", "westus2", restricted="NotAvailableForSubscription")
    return server


LIVE = ["skus", "--live", "--subscription", SUBSCRIPTION, "--gpu", "T4", "--region", "westus2"]


@pytest.mark.feature(8)
def test_sizes_are_sorted_by_the_cost_of_useful_work(
    live: ArmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LIVE, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    costs = [row["useful_usd_per_hour"] for row in rows]
    known = [cost for cost in costs if cost is not None]
    assert costs == sorted(known) + [None] * (len(costs) - len(known))
    found = {row["vm_size"]: row for row in rows}
    assert (found[SMALL]["quota_cores"], found[SMALL]["placement_score"]) == (32, "High")
    assert (found[SMALL]["restriction"], found[SMALL]["evictions_percent_per_hour"]) == ("", "20+")
    assert len(found[SMALL]["spot_price_history"]) == 2
    assert found[LARGE]["restriction"] == "NotAvailableForSubscription"
    assert found["Standard_NC8as_T4_v3"]["restriction"] == "NotOffered"


def test_refused_part_is_unknown_with_a_warning(
    live: ArmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    live.refuse("placementscores", 403, "AuthorizationFailed")
    assert main([*LIVE, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["vm_size"]: row for row in json.loads(out)}
    assert rows[SMALL]["placement_score"] is None
    assert rows[SMALL]["quota_cores"] == 32
    assert "unknown scores" in err


def test_columns_of_azure_are_unknown_without_live(
    live: ArmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["skus", "--gpu", "T4", "--region", "westus2", "-o", "json"]) == 0
    [first, *_] = json.loads(capsys.readouterr().out)
    assert first["useful_usd_per_hour"] == 0.526
    assert (first["quota_cores"], first["restriction"], first["placement_score"]) == (None,) * 3
    assert live.state.requests == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--region", "nowhere"], "R-SKUS-UNKNOWN"),
        (["--live", "--region", "westus2"], "R-SKUS-SUBSCRIPTION"),
    ],
)
def test_unknown_region_or_subscription_is_an_error(
    live: ArmServer, capsys: pytest.CaptureFixture[str], words: list[str], code: str
) -> None:
    assert main(["skus", *words]) == 2
    assert f"error[{code}]" in capsys.readouterr().err

"""Spot capacity of VM sizes: placement scores, eviction rates and price history.

The documentation has no page of the REST operation, so requests and responses follow callers in
public repositories. Scores need the Compute Recommendations Role. SpotResources has the scope of
the tenant, not of a subscription: https://caleta.io/blog/azure-spot-eviction-history-50-days/ (read
2026-11-24).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from runner.azure.arm.client import ArmClient, unreachable

_SCORES = "2025-06-05"
_GRAPH = "2022-10-01"
_GRAPH_PATH = "/providers/Microsoft.ResourceGraph/resources"
_MAX_REGIONS, _MAX_SIZES = 8, 5  # maximum of one request for scores
_MAX_PAGES = 100
Place = tuple[str, str]  # VM size and region, in lower case
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """A price and the time when it began, as Azure writes it."""

    usd_per_hour: float
    since: str


def load_placement_scores(
    management: ArmClient, sizes: Sequence[str], regions: Sequence[str]
) -> Mapping[Place, str]:
    """Return the score of one spot node: `High`, `Medium` or `Low`, else why there is none."""
    found: dict[Place, str] = {}
    for some_regions in _chunks(regions, _MAX_REGIONS):
        path = (
            f"{management.scope}/providers/Microsoft.Compute/locations/{some_regions[0]}"
            "/placementScores/spot/generate"
        )
        for some_sizes in _chunks(sizes, _MAX_SIZES):
            content = {
                "desiredLocations": list(some_regions),
                "desiredSizes": [{"sku": size} for size in some_sizes],
                "desiredCount": 1,
                "availabilityZones": False,
            }
            body = management.send("POST", path, _SCORES, content=content).body
            for item in _check_objects(body.get("placementScores"), path):
                found[_to_place(item.get("sku"), item.get("region"))] = str(item.get("score") or "")
    return found


def load_eviction_rates(
    management: ArmClient, sizes: Sequence[str], regions: Sequence[str]
) -> Mapping[Place, str]:
    """Return the band of evictions in percent per hour: `0-5`, `5-10`, ... or `20+`."""
    query = (
        "SpotResources | where type =~ 'microsoft.compute/skuspotevictionrate/location' "
        f"{_where_clause(sizes, regions)} "
        "| project size=tostring(sku.name), location, rate=tostring(properties.evictionRate)"
    )
    rows = _query_rows(management, query)
    return {_to_place(row.get("size"), row.get("location")): str(row.get("rate")) for row in rows}


def load_price_history(
    management: ArmClient, sizes: Sequence[str], regions: Sequence[str]
) -> Mapping[Place, tuple[SpotPrice, ...]]:
    """Return the prices of Linux spot nodes, newest first, without invalid ones."""
    query = (
        "SpotResources | where type =~ 'microsoft.compute/skuspotpricehistory/ostype/location' "
        f"and properties.osType =~ 'linux' {_where_clause(sizes, regions)} "
        "| project size=tostring(sku.name), location, prices=properties.spotPrices"
    )
    return {
        _to_place(row.get("size"), row.get("location")): tuple(_parse_prices(row.get("prices")))
        for row in _query_rows(management, query)
    }


def _where_clause(sizes: Sequence[str], regions: Sequence[str]) -> str:
    named = ", ".join(f"'{size.lower()}'" for size in sizes)
    placed = ", ".join(f"'{region.lower()}'" for region in regions)
    return f"| where sku.name in~ ({named}) and location in~ ({placed})"


def _query_rows(management: ArmClient, query: str) -> Iterator[Mapping[str, Any]]:
    options: dict[str, Any] = {"resultFormat": "objectArray"}
    for _ in range(_MAX_PAGES):
        content = {"query": query, "options": options}
        body = management.send("POST", _GRAPH_PATH, _GRAPH, content=content).body
        yield from _check_objects(body.get("data"), _GRAPH_PATH)
        token = body.get("$skipToken")
        if not token:
            return
        options = {**options, "$skipToken": token}
    raise unreachable(_GRAPH_PATH, f"the answer has more than {_MAX_PAGES} pages")


def _check_objects(value: Any, path: str) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, dict) for item in items):
        raise unreachable(f"requesting {path}", "the answer is not a list of objects")
    return items


def _parse_prices(value: Any) -> Iterator[SpotPrice]:
    for item in cast("list[Any]", value) if isinstance(value, list) else []:
        try:
            usd, since = float(item["priceUSD"]), str(item["effectiveDate"])
        except (KeyError, TypeError, ValueError):
            continue
        if math.isfinite(usd) and usd > 0:
            yield SpotPrice(usd, since)


def _to_place(size: Any, region: Any) -> Place:
    return str(size).lower(), str(region).lower()


def _chunks(items: Iterable[T], most: int) -> Iterator[list[T]]:
    listed = list(items)
    for start in range(0, len(listed), most):
        yield listed[start : start + most]

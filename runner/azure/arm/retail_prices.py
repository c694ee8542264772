"""The Azure Retail Prices API: public, without sign-in.

https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices (2025-07-08):
filter values are case-sensitive, a page has up to 1,000 items, `NextPageLink` is the next page.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

from azure.core import PipelineClient
from azure.core.exceptions import AzureError
from azure.core.pipeline import policies
from azure.core.rest import HttpRequest

from runner.azure.faults import JitteredRetries, first_line
from runner.core.pricing.machines import find_machine
from runner.core.pricing.prices import PUBLIC_ADDRESS, Price, PriceKey, disk_rows
from runner.protocol.errors import RunnerError

PUBLIC = "https://prices.azure.com/api/retail/prices"
_SOURCE = "Azure Retail Prices API"
_CURRENCY = "USD"
_SIZES_PER_REQUEST = 12  # keeps the URL below 2,000 characters
_MAX_PAGES = 100
_READ_TIMEOUT_S = 15.0
_BUDGET_S = 45  # time for one page, including retries
# The meters of what a node has besides its machine: name, unit, and hours of the unit.
_EXTRAS = {
    **{meter: (row, "1/Month", 730) for meter, row in disk_rows().items()},
    "Standard IPv4 Static Public IP": (PUBLIC_ADDRESS, "1 Hour", 1),
}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def fetch_prices(
    vm_sizes: Iterable[str],
    location: str,
    *,
    today: date,
    endpoint: str = PUBLIC,
    read_timeout_s: float = _READ_TIMEOUT_S,
) -> dict[PriceKey, Price]:
    """Return Linux prices of VM sizes in a region, spot and dedicated.

    Sizes without a price are missing from the result. If a size has several prices, the highest is
    used.

    Raises:
        RunnerError: R-PRICES-FETCH, the service did not return prices, or an invalid one.
    """
    sizes = sorted(set(vm_sizes))
    found: dict[PriceKey, Price] = {}
    others: set[str] = set()
    for start in range(0, len(sizes), _SIZES_PER_REQUEST):
        some = sizes[start : start + _SIZES_PER_REQUEST]
        any_size = " or ".join(f"armSkuName eq '{size}'" for size in some)
        wanted = f"serviceName eq 'Virtual Machines' and {_here(location)} and ({any_size})"
        for item in _fetch_items(endpoint, wanted, read_timeout_s):
            key = _parse_key(item, location, today)
            usd = _parse_usd(item) if key else 0.0
            if key and usd > 0 and (key not in found or found[key].usd_per_hour < usd):
                found[key] = Price(usd, today, _SOURCE)
            others |= {str(item.get("currencyCode", _CURRENCY))} - {_CURRENCY}
    if others and not found:
        raise _fetch_error(f"the prices are in {', '.join(sorted(others))}, not in {_CURRENCY}")
    return found


def fetch_extras(
    location: str,
    *,
    today: date,
    endpoint: str = PUBLIC,
    read_timeout_s: float = _READ_TIMEOUT_S,
) -> dict[PriceKey, Price]:
    """Return the prices per hour of disks and PUBLIC_ADDRESS in a region, as far as known.

    Raises:
        RunnerError: R-PRICES-FETCH, the service did not return prices, or an invalid one.
    """
    found: dict[PriceKey, Price] = {}
    any_meter = " or ".join(f"meterName eq '{meter}'" for meter in _EXTRAS)
    for item in _fetch_items(endpoint, f"{_here(location)} and ({any_meter})", read_timeout_s):
        name, unit, hours = _EXTRAS.get(str(item.get("meterName")), ("", "", 1))
        if not name or item.get("unitOfMeasure") != unit or not _is_offer(item, location, today):
            continue
        usd = round(_parse_usd(item) / hours, 9)
        key = PriceKey(name, location.lower(), spot=False)
        if usd > 0 and (key not in found or found[key].usd_per_hour < usd):
            found[key] = Price(usd, today, _SOURCE)
    return found


def _here(location: str) -> str:
    return f"priceType eq 'Consumption' and armRegionName eq '{location}'"


def _fetch_items(endpoint: str, wanted: str, read_timeout_s: float) -> Iterator[Mapping[str, Any]]:
    query = {
        "api-version": "2023-01-01-preview",
        "meterRegion": "'primary'",
        "$filter": wanted,
    }
    url: str = f"{endpoint}?{urlencode(query, quote_via=quote, safe='$')}"
    for _ in range(_MAX_PAGES):
        items = cast("list[Any]", (body := _fetch_page(endpoint, url, read_timeout_s))["Items"])
        if not all(isinstance(item, dict) for item in items):
            raise _fetch_error("an item of the response is not an object")
        yield from cast("list[Mapping[str, Any]]", items)
        url = str(body.get("NextPageLink") or "")
        if not url:
            return
        if urlsplit(url).hostname != urlsplit(endpoint).hostname:
            raise _fetch_error("the next page is on another host")
    raise _fetch_error(f"the list has more than {_MAX_PAGES} pages")


def _fetch_page(endpoint: str, url: str, read_timeout_s: float) -> Mapping[str, Any]:
    local: dict[str, Any] = (
        {"use_env_settings": False} if urlsplit(endpoint).hostname in _LOOPBACK else {}
    )
    chain: list[Any] = [
        policies.UserAgentPolicy("runner"),
        JitteredRetries(
            retry_total=2, retry_connect=1, retry_backoff_factor=0.2, timeout=_BUDGET_S
        ),
    ]
    # The logger warns about broken responses without naming them; the error below does.
    logging.getLogger("azure.core.pipeline.transport._requests_basic").setLevel(logging.ERROR)
    client: PipelineClient[Any, Any] = PipelineClient(
        endpoint, policies=chain, connection_timeout=10, read_timeout=read_timeout_s, **local
    )
    try:
        with client:
            response = client.send_request(HttpRequest("GET", url))
            if response.status_code != 200:
                raise _fetch_error(f"HTTP {response.status_code}")
            body: Any = response.json()
    except AzureError as err:
        raise _fetch_error(first_line(err)) from err
    except ValueError as err:
        raise _fetch_error("the response is not JSON") from err
    if not isinstance(body, dict) or not isinstance(
        cast("dict[str, Any]", body).get("Items"), list
    ):
        raise _fetch_error("the response has no Items")
    return cast("dict[str, Any]", body)


def _parse_usd(item: Mapping[str, Any]) -> float:
    try:
        usd = float(item["retailPrice"])
    except (KeyError, TypeError, ValueError):
        usd = math.nan
    if not math.isfinite(usd) or usd < 0:
        raise _fetch_error(f"invalid price {item.get('retailPrice')!r} for {item.get('skuName')}")
    return usd


def _parse_key(item: Mapping[str, Any], location: str, today: date) -> PriceKey | None:
    """Return the key of an hourly price for Linux on a known VM size, or None for other items."""
    size = str(item.get("armSkuName") or "")
    product, sku = str(item.get("productName") or ""), str(item.get("skuName") or "")
    other = "Windows" in product or "Cloud" in product or sku.endswith(" Low Priority")
    hourly = item.get("unitOfMeasure") == "1 Hour" and _is_offer(item, location, today)
    if other or not hourly or find_machine(size) is None:
        return None
    return PriceKey(size.lower(), location.lower(), sku.endswith(" Spot"))


def _is_offer(item: Mapping[str, Any], location: str, today: date) -> bool:
    """Return True for a pay-as-you-go price in dollars that applies in the region today."""
    here = str(item.get("armRegionName") or "").lower() == location.lower()
    dollars = item.get("currencyCode", _CURRENCY) == _CURRENCY
    begun = str(item.get("effectiveStartDate") or "")[:10] <= today.isoformat()
    return here and dollars and begun and item.get("type") == "Consumption"


def _fetch_error(why: str) -> RunnerError:
    return RunnerError(
        "R-PRICES-FETCH",
        "the Azure Retail Prices API returned no prices",
        why=why,
        fix="try again later, or run without --refresh to use the stored prices",
    )

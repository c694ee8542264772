"""What several pages know of costs: the report of a time, with the prices that the address says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.pricing.machines import find_machine, region_name
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.core.settings import Settings
from runner.core.units import parse_since
from runner.flows.costs.report import CostQuery, CostReport, report_costs
from runner.page.ask import Ask
from runner.protocol.errors import RunnerError

_FRESH_S = 10.0
_RECENT = timedelta(days=2)
_FIRST_YEAR, _LAST_YEAR = 2000, 2100
ALL = "all"


@dataclass(frozen=True, slots=True)
class Prices:
    """The VM size and the region whose prices are used, as if the nodes were there."""

    vm_size: str = ""
    region: str = ""

    @classmethod
    def parse(cls, ask: Ask) -> Prices:
        """Read the query of an address."""
        region = ask.text("region")
        return cls(ask.text("vm_size"), region_name(region) if region else "")

    @property
    def pairs(self) -> dict[str, str]:
        """The query of an address with these prices."""
        return {"vm_size": self.vm_size, "region": self.region}


def parse_time(ask: Ask, name: str, now: datetime) -> datetime | None:
    """Return a time of the query: a duration before now, or a date or time; None without one."""
    text = ask.text(name)
    if not text:
        return None
    try:
        found = parse_since(text, now)
    except RunnerError as err:
        raise _no_time(ask, name, err.why) from err
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise _no_time(ask, name, f"expected a time from {_FIRST_YEAR} to {_LAST_YEAR}")
    return found


def _no_time(ask: Ask, name: str, why: str) -> RunnerError:
    return RunnerError(
        "R-PAGE-QUERY",
        f"invalid {name}={ask.text(name)[:40]!r} in the address",
        why=why,
        fix=f"{ask.path}?{name}=7d",
    )


async def read_report(
    ask: Ask, prices: Prices, since: datetime | None, *, fresh_s: float = _FRESH_S
) -> CostReport:
    """Return the costs of the runs that were submitted since a time, with their charges."""
    settings = ask.source.settings
    if since is not None:  # so that readers of the next minutes ask the same
        is_recent = datetime.now(UTC) - since < _RECENT
        since = since.replace(second=0, microsecond=0)
        since = since if is_recent else since.replace(minute=0)

    def read(connection: Connection) -> CostReport:
        query = CostQuery(since=since, vm_size=prices.vm_size or None, region=prices.region or None)
        return report_costs(connection, query, settings.home, keep_charges=True)

    return await ask.source.read(("costs", prices, since), read, fresh_s=fresh_s)


def price_choices(settings: Settings, prices: Prices) -> dict[str, Any]:
    """Return what the form of the prices offers, and the size and region that it suggests."""
    table = load_price_table(settings.home)
    return {
        "prices": prices,
        "sizes": sorted({_named(key.vm_size) for key in table.rows}),
        "regions": sorted({key.location for key in table.rows}),
        "suggested": _suggest(table),
    }


def _suggest(table: PriceTable) -> Prices:
    """Return the cheapest size and region with known prices of spot and of dedicated nodes."""
    found = [
        (price.usd_per_hour, key.vm_size, key.location)
        for key, price in table.rows.items()
        if key.spot and table.find(key.vm_size, key.location, spot=False)
    ]
    _, size, region = min(found, default=(0.0, "", ""))
    return Prices(_named(size), region)


def _named(vm_size: str) -> str:
    machine = find_machine(vm_size)
    return machine.vm_size if machine else vm_size


def at_ms(ms: int) -> datetime:
    """Return milliseconds since 1970 as a time."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)

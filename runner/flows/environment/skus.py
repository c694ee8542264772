"""List VM sizes with prices and facts from Azure, and refresh the prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TypeVar

from runner.core.azure.clouds import cloud_of_region
from runner.core.home import HomePaths, not_writable, write_atomically
from runner.core.pricing.cost import BOOT_S
from runner.core.pricing.machines import REGIONS, Machine, machines, region_name
from runner.core.pricing.prices import (
    Price,
    PriceKey,
    PriceTable,
    is_size,
    load_price_table,
    parse_prices,
    render_prices,
)
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import CheckpointRule

K = TypeVar("K")
V = TypeVar("V")

# Evictions per hour: the upper end of each band of Azure. The value for 20+ and for unknown bands
# is our choice. That the bands are percent per hour is from a secondary source:
# https://techbrainblog.com/2025/11/30/key-points-about-azure-spot-vms-and-its-eviction
# (read 2026-11-24).
_EVICTIONS = {"0-5": 0.05, "5-10": 0.10, "10-15": 0.15, "15-20": 0.20, "20+": 0.25}
_HIGHEST_RATE = _EVICTIONS["20+"]
# Node time that one eviction costs: a boot, and half a checkpoint interval of work.
_EVICTION_COST_S = BOOT_S + CheckpointRule().interval_s / 2
_MOST_FAILURES = 3  # regions in a row, after which the service counts as unreachable
_SUBSCRIPTIONS = ("AZURE_SUBSCRIPTION_ID", "ARM_SUBSCRIPTION_ID")


@dataclass(frozen=True, slots=True)
class SkuFacts:
    """Facts from Azure about a size in a region; None is unknown.

    Attributes:
        quota_cores: The largest quota of a Batch account there for spot nodes.
        restriction: Why the subscription cannot use the size, or empty.
        score: Placement score of a spot node: `High`, `Medium`, `Low` or the reason for none.
        evictions: Band of evictions in percent per hour, such as `5-10`.
        history: Spot prices with their start times, newest first.
    """

    quota_cores: int | None = None
    restriction: str | None = None
    score: str | None = None
    evictions: str | None = None
    history: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SkuRow:
    """A size in a region; `region` is None if no region has a price for it."""

    machine: Machine
    region: str | None
    spot: Price | None
    dedicated: Price | None
    facts: SkuFacts = SkuFacts()

    @property
    def useful_usd_per_hour(self) -> float | None:
        """The expected cost of an hour of work on the cheaper kind of node, or None.

        Each eviction costs a boot and half a checkpoint interval. An unknown eviction rate counts
        as the highest band.
        """
        costs = [self.dedicated.usd_per_hour] if self.dedicated else []
        on_spot = self.useful_spot_usd_per_hour
        return min([*costs, *([on_spot] if on_spot else [])], default=None)

    @property
    def useful_spot_usd_per_hour(self) -> float | None:
        """The expected cost of an hour of work on a spot node with its evictions, or None."""
        evictions = _EVICTIONS.get(self.facts.evictions or "", _HIGHEST_RATE)
        if self.spot is None:
            return None
        return self.spot.usd_per_hour * (1 + evictions * _EVICTION_COST_S / 3600)


@dataclass(frozen=True, slots=True)
class LoadedRegion:
    """The result for one region: the number of its prices, or why none were loaded."""

    name: str
    prices: int = 0
    is_new: bool = True  # False: loaded earlier on the same day
    problem: RunnerError | None = None


def refresh_prices(home: Path, location: str, *, today: date, endpoint: str) -> int:
    """Download the prices of a region into `home` and return how many there are."""
    from runner.azure.arm.retail_prices import fetch_extras, fetch_prices  # noqa: PLC0415  azure-core, when asked for

    location = region_name(location)
    if (cloud := cloud_of_region(location)).prices:
        raise RunnerError(
            "R-PRICES-CLOUD",
            f"no prices are known for {location}, a region of {cloud.title}",
            why=cloud.prices,
            fix="run `runner skus` without --refresh; commands show its costs as unknown",
        )
    sizes = [each.vm_size for each in machines() if not _is_retired(each, today)]
    fetched = fetch_prices(sizes, location, today=today, endpoint=endpoint)
    if not fetched:
        raise RunnerError(
            "R-PRICES-REGION",
            f"the Azure Retail Prices API has no price for {location}",
            why="the region does not exist, or has no VM sizes of Batch",
            fix="use a name such as westeurope; `az account list-locations -o table` lists them",
        )
    extras = fetch_extras(location, today=today, endpoint=endpoint)
    text = render_prices({**_stored_prices(home), **fetched, **extras})
    write_atomically(HomePaths(home).prices, text)
    return len(fetched)


def _stored_prices(home: Path) -> dict[PriceKey, Price]:
    path = HomePaths(home).prices
    try:
        return parse_prices(path.read_text(encoding="utf-8"), path) if path.is_file() else {}
    except OSError as err:
        raise not_writable(home, err) from err


def refresh_region(home: Path, region: str | None, env: Mapping[str, str], *, today: date) -> int:
    """Call `refresh_prices` for a region. Raise R-SKUS-REGION if it is None."""
    if region is None:
        raise RunnerError(
            "R-SKUS-REGION",
            "--refresh requires --region or --all",
            why="prices depend on the region",
            fix="runner skus --refresh --region westeurope",
        )
    return refresh_prices(home, region, today=today, endpoint=_prices_endpoint(env))


def _prices_endpoint(env: Mapping[str, str]) -> str:
    from runner.azure.arm.retail_prices import PUBLIC  # noqa: PLC0415  azure-core, when asked for

    return env.get("RUNNER_PRICES_URL") or PUBLIC  # a mirror for networks with a firewall


def refresh_all(home: Path, env: Mapping[str, str], *, today: date) -> Iterator[LoadedRegion]:
    """Download the prices of all regions; yield each region when its prices are stored.

    A region that was loaded on the same day is not loaded again, so that a call after an
    interruption continues. After three failures in a row, the other regions are not tried.

    Raises:
        RunnerError: R-PRICES-FETCH, at the end, if some regions could not be loaded.
    """
    stored = _stored_prices(home)
    loaded = Counter(
        key.location for key, price in stored.items() if price.as_of == today and _is_size(key)
    )
    failed: list[str] = []
    in_a_row, regions = 0, sorted(REGIONS)
    last: RunnerError | None = None
    for region in regions:
        if loaded[region]:
            yield LoadedRegion(region, loaded[region], is_new=False)
            continue
        if in_a_row == _MOST_FAILURES:
            failed.append(region)
            continue
        try:
            count = refresh_prices(home, region, today=today, endpoint=_prices_endpoint(env))
        except RunnerError as err:
            if err.code in ("R-PRICES-REGION", "R-PRICES-CLOUD"):
                in_a_row = 0
                yield LoadedRegion(region)
            elif err.code == "R-PRICES-FETCH":
                in_a_row += 1
                last = err
                failed.append(region)
                yield LoadedRegion(region, problem=err)
            else:
                raise
        else:
            in_a_row = 0
            yield LoadedRegion(region, count)
    if failed:
        raise RunnerError(
            "R-PRICES-FETCH",
            f"the prices of {len(failed)} of {len(regions)} regions were not loaded",
            why=f"{', '.join(failed[:5])}{', ...' * (len(failed) > 5)}: {last.why if last else ''}",
            fix="run `runner skus --refresh --all` again; it loads only the missing regions",
        )


def _is_size(key: PriceKey) -> bool:
    return is_size(key.vm_size)


def list_skus(
    home: Path, *, gpu: str | None, region: str | None, include_retired: bool, today: date
) -> list[SkuRow]:
    """Return the sizes with a GPU model (None: all sizes), cheapest hour of useful work first.

    Sizes without a GPU are last. Without a region, each region with a price gets a row.

    Raises:
        RunnerError: R-SKUS-GPU, no size has the GPU; R-SKUS-UNKNOWN, the region is unknown.
    """
    table = load_price_table(home)
    region = region_name(region) if region else None
    if region is not None:
        table.check_region(region)
    chosen = [each for each in machines() if include_retired or not _is_retired(each, today)]
    if gpu is not None:
        chosen = [each for each in chosen if _normalize(each.gpu or "") == _normalize(gpu)]
        if not chosen:
            raise _no_gpu(gpu)
    rows = [row for each in chosen for row in _rows(each, region, table)]
    return sorted(rows, key=_order)


def load_facts(
    rows: Sequence[SkuRow], subscription_id: str | None, env: Mapping[str, str]
) -> tuple[list[SkuRow], list[str]]:
    """Return the rows with facts from Azure, sorted again, and the reasons for missing facts.

    Raises:
        RunnerError: no subscription, no sign-in, or an invalid endpoint.
    """
    from runner.azure.arm import spot, subscription  # noqa: PLC0415  azure-core, when asked for
    from runner.azure.arm.client import open_arm  # noqa: PLC0415

    chosen = subscription_id or next(filter(None, map(env.get, _SUBSCRIPTIONS)), None)
    if chosen is None:
        raise RunnerError(
            "R-SKUS-SUBSCRIPTION",
            "--live requires a subscription",
            why=f"neither --subscription nor {' nor '.join(_SUBSCRIPTIONS)} is set",
            fix="add --subscription ID; `az account list -o table` lists them",
        )
    management = open_arm(chosen, env)
    management.sign_in()
    sizes = list(dict.fromkeys(row.machine.vm_size for row in rows if row.region))
    regions = list(dict.fromkeys(row.region for row in rows if row.region))
    problems: list[str] = []

    def ask(what: str, question: Callable[[], Mapping[K, V]]) -> Mapping[K, V]:
        try:
            return question()
        except RunnerError as err:
            problems.append(f"{what}: {err.what}" + (f" ({err.why})" if err.why else ""))
            return {}

    def restrictions() -> Mapping[str, Mapping[str, str]]:
        return {each: subscription.load_restrictions(management, each) for each in regions}

    def quotas() -> Mapping[str, int]:
        found = dict.fromkeys(regions, 0)
        for account in subscription.list_batch_accounts(management):
            if (place := region_name(account.location)) in found:
                found[place] = max(found[place], account.spot_quota or 0)
        return found

    if not regions:
        return list(rows), problems
    quota, allowed = ask("quota", quotas), ask("restrictions", restrictions)
    scores = ask("scores", lambda: spot.load_placement_scores(management, sizes, regions))
    rates = ask("evictions", lambda: spot.load_eviction_rates(management, sizes, regions))
    prices = ask("price history", lambda: spot.load_price_history(management, sizes, regions))

    def facts(row: SkuRow) -> SkuFacts:
        region, size = row.region or "", row.machine.vm_size.lower()
        here = allowed.get(region)
        return SkuFacts(
            quota.get(region),
            None if here is None else here.get(size, "NotOffered"),
            scores.get((size, region)),
            rates.get((size, region)),
            tuple((each.since, each.usd_per_hour) for each in prices.get((size, region), ())),
        )

    return sorted((replace(row, facts=facts(row)) for row in rows), key=_order), problems


def _rows(machine: Machine, region: str | None, table: PriceTable) -> Iterator[SkuRow]:
    size = machine.vm_size
    for place in (region,) if region else table.locations(size) or (None,):
        if place is None:
            yield SkuRow(machine, None, None, None)
        else:
            spot = table.find(size, place, spot=True)
            yield SkuRow(machine, place, spot, table.find(size, place, spot=False))


def _order(row: SkuRow) -> tuple[bool, bool, bool, float, str, str]:
    usd, found = row.useful_usd_per_hour, row.machine
    no_gpu, gone = found.gpu is None, found.retired is not None
    return (gone, no_gpu, usd is None, usd or 0.0, found.vm_size, row.region or "")


def _is_retired(machine: Machine, today: date) -> bool:
    return machine.retired is not None and machine.retired <= today


def _normalize(text: str) -> str:
    return text.lower().replace(" ", "").replace("-", "")


def _no_gpu(gpu: str) -> RunnerError:
    known = sorted({each.gpu for each in machines() if each.gpu})
    return RunnerError(
        "R-SKUS-GPU",
        f"no VM size has GPU {gpu!r}",
        why=f"known GPUs: {', '.join(known)}; some only with --all",
        fix="runner skus",
    )

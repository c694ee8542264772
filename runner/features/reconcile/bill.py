"""Compare the ledger with Azure's bill: the rows of a cost export, by pool and day.

Exports are CSV files. Their columns depend on the billing agreement ("Understand cost details
fields"):
https://learn.microsoft.com/azure/cost-management-billing/automate/understand-usage-details-fields
(read 2026-11-24). The columns of FOCUS were not checked with a real file. A row belongs to the
pool that its tag `pool` or its resource ID names, else to the account as a whole. This is our
choice, because we found no page about the names of pools in an export.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path
from typing import Any, cast

from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.ledger import NodeLife
from runner.protocol.errors import RunnerError

POOL_TAG = "pool"  # tag of the pools of a stack
_DAY_MS = 86_400_000
_MAX_BYTES = 2 * 1024**3
# The columns that may contain a field; the first that a file has is used. Names are in lower case,
# without spaces and underscores.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "day": ("date", "usagedate", "usagedatetime", "chargeperiodstart"),
    "resource": ("resourceid", "instanceid"),
    "category": ("metercategory", "servicename", "consumedservice"),
    "usd": ("costinusd", "costusd", "xeffectivecostinusd"),
    "cost": ("costinbillingcurrency", "cost", "pretaxcost", "billedcost"),
    "currency": ("billingcurrencycode", "billingcurrency", "currency"),
    "quantity": ("quantity", "usagequantity", "consumedquantity"),
    "unit": ("unitofmeasure", "consumedunit", "pricingunit"),
    "tags": ("tags",),
}
_REQUIRED = ("day", "resource", "category")
_RESOURCE_ID = re.compile(
    r"/microsoft\.batch/batchaccounts/([^/]+)(?:/(?:batch)?pools?/([^/]+))?", re.I
)
_HOURS = re.compile(r"\s*(\d*)\s*hours?\s*", re.I)
_DATE_FORMATS = ("%Y-%m-%d", "%m/%d/%Y", "%Y%m%d")


@dataclass(frozen=True, slots=True)
class BilledRow:
    """A row of an export about a Batch account.

    Attributes:
        pool: ID of the pool in lower case; empty if the row does not name one.
        micro: The cost in micro-dollars, or None in another currency.
        is_compute: True for node time, False for a disk, an address or traffic.
        hours: Billed node hours of a row about nodes; None if the row has another unit.
    """

    day: date
    pool: str
    micro: int | None
    is_compute: bool
    hours: Decimal | None
    currency: str = "USD"


@dataclass(slots=True)
class Bill:
    """The billed and the recorded costs of nodes on one day.

    `pool` is empty for rows that name no pool. These rows also cover the pools without own rows.
    """

    day: date
    pool: str
    billed_micro: int | None = 0
    billed_hours: Decimal | None = Decimal(0)
    other_micro: int | None = 0
    recorded_micro: int | None = 0
    recorded_ms: int = 0

    def add(self, other: Bill) -> None:
        """Add the amounts of `other`. A sum with an unknown amount is unknown."""
        self.billed_micro = _add_amounts(self.billed_micro, other.billed_micro)
        self.other_micro = _add_amounts(self.other_micro, other.other_micro)
        self.recorded_micro = _add_amounts(self.recorded_micro, other.recorded_micro)
        hours = (self.billed_hours, other.billed_hours)
        self.billed_hours = None if None in hours else sum(filter(None, hours), Decimal(0))
        self.recorded_ms += other.recorded_ms

    @property
    def difference_micro(self) -> int | None:
        """The billed costs minus the recorded ones; negative if more is on record."""
        if self.billed_micro is None or self.recorded_micro is None:
            return None
        return self.billed_micro - self.recorded_micro


@dataclass(frozen=True, slots=True)
class CostExport:
    """The rows of a file about one Batch account.

    Attributes:
        since: First day in the file.
        until: Last day in the file.
        others: Number of rows about other resources.
        currencies: Currencies other than US dollars.
    """

    rows: Sequence[BilledRow]
    since: date
    until: date
    others: int
    currencies: frozenset[str] = field(default_factory=frozenset[str])


def load_export(path: Path, account: str) -> CostExport:
    """Read a cost export, as CSV or compressed with gzip.

    Raises:
        RunnerError: R-COST-EXPORT, the file cannot be read, is no export, or has an invalid line.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _invalid(path, "the file is larger than 2 GiB")
        raw = path.read_bytes()
    except OSError as err:
        raise _invalid(path, err.strerror or str(err)) from err
    return parse_content(raw, path, account)


def parse_content(raw: bytes, path: Path, account: str) -> CostExport:
    """Return the rows about `account` in the content of a file, also compressed with gzip.

    Raises:
        RunnerError: R-COST-EXPORT, as `load_export`; it names `path`.
    """
    try:
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(_MAX_BYTES + 1)
            if len(raw) > _MAX_BYTES:
                raise _invalid(path, "the unpacked file is larger than 2 GiB")
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as err:
        raise _invalid(path, getattr(err, "strerror", None) or str(err)) from err
    return parse_export(text, path, account)


def join_exports(exports: Sequence[CostExport]) -> CostExport:
    """Return one export with the rows of several; there is at least one."""
    return CostExport(
        [row for export in exports for row in export.rows],
        min(export.since for export in exports),
        max(export.until for export in exports),
        sum(export.others for export in exports),
        frozenset(chain.from_iterable(export.currencies for export in exports)),
    )


def parse_export(text: str, path: Path, account: str) -> CostExport:
    """Return the rows about `account`. Raise R-COST-EXPORT, which names `path` and the line."""
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = {_normalize_column(name): name for name in lines.fieldnames or ()}
        columns = {
            key: next((names[each] for each in known if each in names), "")
            for key, known in _COLUMNS.items()
        }
        missing = [_COLUMNS[key][0] for key in _REQUIRED if not columns[key]]
        if not (columns["usd"] or columns["cost"]):
            missing.append(_COLUMNS["cost"][0])
        if missing:
            raise _invalid(path, f"missing columns: {', '.join(missing)}")
        rows: list[BilledRow] = []
        days: list[date] = []
        others = 0
        for line in lines:
            try:
                day = _parse_day(line[columns["day"]] or "")
                days.append(day)
                found = _RESOURCE_ID.search(line[columns["resource"]] or "")
                if found is None or found[1].lower() != account.lower():
                    others += 1
                    continue
                rows.append(_parse_row(line, columns, day, found[2] or ""))
            except (ValueError, TypeError, InvalidOperation) as err:
                why = str(err) if isinstance(err, ValueError) else "a field is not a number"
                raise _invalid(path, f"line {lines.line_num}: {why}") from err
    except csv.Error as err:
        raise _invalid(path, f"line {lines.line_num}: {err}") from err
    if not days:
        raise _invalid(path, "the file has no rows")
    currencies = frozenset(row.currency for row in rows if row.micro is None)
    return CostExport(rows, min(days), max(days), others, currencies)


def compare_bills(export: CostExport, lives: Iterable[NodeLife]) -> tuple[Bill, ...]:
    """Return one bill per day and pool of an export.

    Nodes of pools without rows are compared with the rows that name no pool.
    """
    named = {row.pool for row in export.rows if row.pool}
    has_unnamed = any(not row.pool for row in export.rows)
    bills: dict[tuple[date, str], Bill] = {}

    def add(bill: Bill) -> None:
        bills.setdefault((bill.day, bill.pool), Bill(bill.day, bill.pool)).add(bill)

    for row in export.rows:
        if row.is_compute:
            add(Bill(row.day, row.pool, row.micro, row.hours))
        else:
            add(Bill(row.day, row.pool, other_micro=row.micro))
    for life in lives:
        key = life.pool.lower()
        key = key if key in named or not has_unnamed else ""
        for day, ms, micro in _split_by_day(life):
            if export.since <= day <= export.until:
                add(Bill(day, key, recorded_micro=micro, recorded_ms=ms))
    return tuple(bills[key] for key in sorted(bills))


def _split_by_day(life: NodeLife) -> Iterator[tuple[date, int, int | None]]:
    """Yield each day in UTC with the time and the price of a node on it.

    The prices of all days sum to the price of the node's life.
    """
    begin, before = life.started_ms, 0
    while begin < life.ended_ms:
        number = begin // _DAY_MS
        end = min((number + 1) * _DAY_MS, life.ended_ms)
        until = life.micro_until(end)
        micro = None if until is None else until - before
        yield date(1970, 1, 1) + timedelta(days=number), end - begin, micro
        begin, before = end, until or 0


def _parse_row(
    line: Mapping[str, str], columns: Mapping[str, str], day: date, pool: str
) -> BilledRow:
    def value(key: str) -> str:
        return (line.get(columns[key]) or "").strip() if columns[key] else ""

    currency = "USD" if columns["usd"] else value("currency").upper()
    amount = value("usd") if columns["usd"] else value("cost")
    micro = round(_parse_number(amount) * MICROS_PER_USD) if currency == "USD" else None
    is_compute = value("category").lower() in ("virtual machines", "microsoft.compute")
    hours = None
    if is_compute and (unit := _HOURS.fullmatch(value("unit"))):
        hours = _parse_number(value("quantity")) * int(unit[1] or 1)
    tag = _parse_tags(value("tags")).get(POOL_TAG)
    named = tag if isinstance(tag, str) and tag else pool
    return BilledRow(day, named.lower(), micro, is_compute, hours, currency or "unknown")


def _parse_tags(text: str) -> Mapping[str, Any]:
    """Return the tags of a row, which are JSON; older exports omit the braces."""
    for each in (text, f"{{{text}}}"):
        try:
            found: Any = json.loads(each)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    return {}


def _parse_number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(f"invalid amount {text}")
    return number


def _parse_day(text: str) -> date:
    first = text.strip()[:10]
    for form in _DATE_FORMATS:
        try:
            return datetime.strptime(first, form).replace(tzinfo=UTC).date()
        except ValueError:
            continue
    raise ValueError(f"invalid date {text!r}")


def _normalize_column(name: str) -> str:
    return re.sub(r"[\s_]", "", name).lower()


def _add_amounts(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _invalid(path: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-COST-EXPORT",
        f"cannot read {path} as a cost export",
        why=why,
        fix="use a CSV file from an export of Azure Cost Management: actual costs, or FOCUS",
    )


def total(bills: Sequence[Bill]) -> Bill:
    """Return the sum of bills."""
    summed = Bill(min(bill.day for bill in bills), "")
    for bill in bills:
        summed.add(bill)
    return summed

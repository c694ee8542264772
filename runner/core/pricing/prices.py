"""Prices of nodes per hour: a dated table in the package, and newer rows in RUNNER_HOME.

An unknown price is None, never zero. Prices are for Linux, in USD, without network and discounts,
as the Azure Retail Prices API returns them. `PriceTable.find` has the price of a machine alone;
`find_node` adds its OS disk and a public address where their prices are known.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple

from runner.core.home import HomePaths
from runner.core.pricing.machines import REGIONS, find_machine, region_name, unknown_machine
from runner.protocol.errors import RunnerError

_PACKAGED_FILE = Path(__file__).with_name("prices.csv")
_COLUMNS = ("vm_size", "location", "kind", "usd_per_hour", "as_of", "source")
_KINDS = {"spot": True, "dedicated": False}
# What each node has besides its machine, with prices per hour. Their rows have these names instead
# of a VM size and are "dedicated", because they cost the same for a spot node.
# Batch documents no default for the disk. A public cost export of nodes that Batch allocated (read
# 2026-11-29) has the meters "P10 LRS Disk" for the time of the nodes, and "Standard IPv4 Static
# Public IP" while the pool had nodes and for about an hour more.
OS_DISK = "os_disk_p10"
PUBLIC_ADDRESS = "public_address"
_DISK = "os_disk_"
# Managed disks are billed by the next size on the list, with these numbers:
# https://learn.microsoft.com/azure/virtual-machines/disks-types (read 2026-11-29)
_DISK_NUMBERS = {32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50}
_DISK_LETTERS = {"premium_ssd": "p", "standard_ssd": "e", "standard_hdd": "s"}
_EXTRA_WORDS = {OS_DISK: "OS disk", PUBLIC_ADDRESS: "public address"}


def disk_row(size_gib: int | None, kind: str) -> str:
    """Return the name of the row of a disk, such as `os_disk_e15`.

    Args:
        size_gib: the size of the disk; None means that of the nodes in the export above.
        kind: `premium_ssd`, `standard_ssd` or `standard_hdd`.
    """
    number = min(
        (number for size, number in _DISK_NUMBERS.items() if size >= (size_gib or 128)),
        default=max(_DISK_NUMBERS.values()),
    )
    return f"{_DISK}{_DISK_LETTERS[kind]}{number}"


def disk_rows() -> Mapping[str, str]:
    """Return the names of the rows of all disks, by their meter, such as `E15 LRS Disk`."""
    return {
        f"{letter.upper()}{number} LRS Disk": f"{_DISK}{letter}{number}"
        for letter in _DISK_LETTERS.values()
        for number in _DISK_NUMBERS.values()
    }


def is_size(name: str) -> bool:
    """Return True for the row of a VM size, False for those of disks and addresses."""
    return name != PUBLIC_ADDRESS and not name.startswith(_DISK)


class PriceKey(NamedTuple):
    """A VM size in a region, spot or dedicated; names are in lower case."""

    vm_size: str
    location: str
    spot: bool


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one node, its date and its source.

    `extras` says in words which parts of a node besides its machine are counted; it is empty for
    the price of a machine alone.
    """

    usd_per_hour: float
    as_of: date
    source: str
    extras: str = ""


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by size, region and kind."""

    rows: Mapping[PriceKey, Price] = field(default_factory=dict[PriceKey, Price])

    def find(self, vm_size: str, location: str, *, spot: bool) -> Price | None:
        """Return the price, or None if it is unknown."""
        return self.rows.get(PriceKey(vm_size.lower(), region_name(location), spot))

    def find_extra(self, name: str, location: str) -> Price | None:
        """Return the price of a disk or of PUBLIC_ADDRESS, or None if it is unknown."""
        return self.find(name, location, spot=False)

    def find_node(
        self,
        vm_size: str,
        location: str,
        *,
        spot: bool,
        disk: str | None = None,
        has_address: bool = True,
    ) -> Price | None:
        """Return the price of a machine with its OS disk and a public address.

        A pool has one address for up to 100 nodes, so that one for each node is an upper limit.
        Without the price of a part, the part is not counted; without that of the machine, the
        result is None.

        Args:
            vm_size: the size.
            location: the region.
            spot: True for a spot node.
            disk: the row of the price of its disk; None means OS_DISK.
            has_address: False for a node in a network of its own.
        """
        price = self.find(vm_size, location, spot=spot)
        if price is None:
            return None
        wanted = {disk or OS_DISK: _EXTRA_WORDS[OS_DISK]}
        if has_address:
            wanted[PUBLIC_ADDRESS] = _EXTRA_WORDS[PUBLIC_ADDRESS]
        known = {
            words: extra
            for name, words in wanted.items()
            if (extra := self.find_extra(name, location))
        }
        unknown = [words for words in wanted.values() if words not in known]
        parts = [price, *known.values()]
        texts = [f"with {' and '.join(known)}"] if known else []
        texts += [f"without {' and '.join(unknown)} (price unknown)"] if unknown else []
        return Price(
            round(sum(each.usd_per_hour for each in parts), 9),
            min(each.as_of for each in parts),
            price.source,
            ", ".join(texts),
        )

    def check_size(self, vm_size: str) -> None:
        """Raise RunnerError R-MACHINE-UNKNOWN for a size without a price that no table has."""
        if find_machine(vm_size) is None and not self.locations(vm_size):
            raise unknown_machine(vm_size)

    def check_region(self, location: str) -> None:
        """Raise RunnerError R-SKUS-UNKNOWN for a region that neither Azure nor a price names."""
        region = region_name(location)
        if region in REGIONS or any(key.location == region for key in self.rows):
            return
        import difflib  # noqa: PLC0415  only a mistake needs it

        near = difflib.get_close_matches(region, REGIONS, n=3)
        raise RunnerError(
            "R-SKUS-UNKNOWN",
            f"unknown region {region!r}",
            why=f"similar: {', '.join(near)}" if near else "no region has this or a similar name",
            fix=f"run `runner skus --region {near[0] if near else 'westeurope'}`, or add --refresh "
            "if Azure has added the region",
        )

    def locations(self, vm_size: str) -> tuple[str, ...]:
        """Return the regions with a known price of the size, sorted."""
        wanted = vm_size.lower()
        return tuple(sorted({key.location for key in self.rows if key.vm_size == wanted}))


def load_price_table(home: Path | None) -> PriceTable:
    """Return the packaged table, updated with the rows of `runner skus --refresh` in `home`.

    Raises:
        RunnerError: the table in `home` is invalid.
    """
    packaged = parse_prices(_PACKAGED_FILE.read_text(encoding="utf-8"), _PACKAGED_FILE)
    if home is None:
        return PriceTable(packaged)
    path = HomePaths(home).prices
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return PriceTable(packaged)
    except (OSError, UnicodeDecodeError) as err:
        raise _invalid_table(path, str(err)) from err
    return PriceTable(packaged | parse_prices(text, path))


def parse_prices(text: str, path: Path) -> dict[PriceKey, Price]:
    """Parse a table. If a key has two prices, return the higher one.

    Raises:
        RunnerError: a line is invalid; the error names `path` and the line.
    """
    lines = csv.DictReader(text.splitlines(), strict=True)
    if tuple(lines.fieldnames or ()) != _COLUMNS:
        raise _invalid_table(path, f"expected {','.join(_COLUMNS)} in the first line")
    found: dict[PriceKey, Price] = {}
    for row in lines:
        try:
            key, price = _parse_row(row)
        except (TypeError, ValueError, AttributeError) as err:
            raise _invalid_table(path, f"line {lines.line_num}: {err}") from err
        if key not in found or found[key].usd_per_hour < price.usd_per_hour:
            found[key] = price
    return found


def render_prices(rows: Mapping[PriceKey, Price]) -> str:
    """Return the rows, sorted, as text that `parse_prices` reads."""
    kinds = {spot: name for name, spot in _KINDS.items()}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for key in sorted(rows):
        price = rows[key]
        each = (price.usd_per_hour, price.as_of.isoformat(), price.source)
        lines.writerow((key.vm_size, key.location, kinds[key.spot], *each))
    return text.getvalue()


def _parse_row(row: Mapping[str, str]) -> tuple[PriceKey, Price]:
    usd = float(row["usd_per_hour"])
    if not math.isfinite(usd) or usd <= 0:
        raise ValueError(f"invalid price {row['usd_per_hour']}")
    if row["kind"] not in _KINDS:
        raise ValueError(f"invalid kind {row['kind']!r}: expected spot or dedicated")
    key = PriceKey(row["vm_size"].lower(), region_name(row["location"]), _KINDS[row["kind"]])
    return key, Price(usd, date.fromisoformat(row["as_of"]), row["source"])


def _invalid_table(path: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-PRICES-READ",
        f"cannot read the prices in {path}",
        why=why,
        fix="delete the file, or run `runner skus --refresh --region REGION` to write it again",
    )

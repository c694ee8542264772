"""How long Batch takes pools with which operating system."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

# Azure/Batch#180 (14.04 to 18.04), #174 (20.04), #200 (22.04): issues of the service's own team
# (read 2026-11-20).
# None: current, without an announced end.
END_OF_LIFE: Mapping[str, date | None] = {
    "batch.node.ubuntu 16.04": date(2024, 12, 31),
    "batch.node.ubuntu 18.04": date(2024, 12, 31),
    "batch.node.ubuntu 20.04": date(2025, 4, 23),
    "batch.node.ubuntu 22.04": date(2027, 6, 30),
    "batch.node.ubuntu 24.04": None,
}

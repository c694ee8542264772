"""How many bytes, as people read it."""

from __future__ import annotations


def size(size_bytes: float) -> str:
    """`812 B`, `4.1 kB`, `11 MB`: powers of ten."""
    units = ["B", "kB", "MB", "GB"]
    while size_bytes >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or size_bytes >= 10 else 1
    return f"{size_bytes:.{digits}f} {units[0]}"

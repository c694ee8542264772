"""Where what is shown as it was came from: kept beside the fields, so that no copy has its keys."""

from __future__ import annotations

from typing import Any


def bind(snapshot: Any, **kept: object) -> None:
    """Keep connections and documents with a frozen object.

    As fields they would stand in `dataclasses.asdict`, and so in a `pandas.DataFrame` of a table.
    """
    for name, value in kept.items():
        object.__setattr__(snapshot, name, value)

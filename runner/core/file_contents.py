"""Whether two files of a model hold the same, where their bytes differ.

An archive carries the time at which each member was packed. Keras writes a date into
`metadata.json`, and into `config.json` the addresses that objects had in memory. None of these says
anything about the model: every member's content counts, and of addresses which are the same.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, cast

# Of a `.keras` archive (Keras 3, saving/saving_lib.py and saving/serialization_lib.py).
_KERAS_TEXTS = ("metadata.json", "config.json")
_KERAS_DATE = "date_saved"
_KERAS_ADDRESS = "shared_object_id"  # id(object)
_SHOWN = 4


def content_difference(one: Path, other: Path) -> str | None:
    """What differs between two files, in a few words; None where only bytes do."""
    if zipfile.is_zipfile(one) and zipfile.is_zipfile(other):
        return _difference(_members(one), _members(other), "members")
    if one.suffix == ".json" and other.suffix == ".json":
        before, after = _values(one), _values(other)
        if before is not None and after is not None:
            return _difference(before, after, "keys")
    return "bytes"


def _difference(one: dict[str, str], other: dict[str, str], what: str) -> str | None:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"


def _members(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                found[name] = _member(archive, name, keras=path.suffix == ".keras")
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError) as err:
        found["?"] = f"{path}: {err}"  # what cannot be read is equal to nothing
    return found


def _member(archive: zipfile.ZipFile, name: str, *, keras: bool) -> str:
    if keras and name in _KERAS_TEXTS:
        try:
            return json.dumps(_timeless(json.loads(archive.read(name)), {}))
        except (ValueError, RecursionError):
            pass
    with archive.open(name) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]


def _timeless(value: Any, addresses: dict[Any, int]) -> Any:
    """Keras' JSON without the date, and with addresses counted in the order they appear."""
    if isinstance(value, list):
        return [_timeless(item, addresses) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", value).items():
        if name == _KERAS_ADDRESS:
            found[name] = addresses.setdefault(repr(item), len(addresses))
        elif name != _KERAS_DATE:
            found[name] = _timeless(item, addresses)
    return found


def _values(path: Path) -> dict[str, str] | None:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): repr(value) for name, value in raw.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None

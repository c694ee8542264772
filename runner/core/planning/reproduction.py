"""Compare a reproduced run with the original: its environment and the contents of its files."""

from __future__ import annotations

import hashlib
import json
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from runner.contract import PoolOutput
from runner.protocol.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference, as text for users: its subject, the old and the new value."""

    what: str
    was: str
    now: str


# Keys of `attempts/<n>/environment.json`, with the names that users see.
_ENVIRONMENT_KEYS = (
    ("python", "Python"),
    ("platform", "platform"),
    ("libc", "C library"),
    ("cpu", "CPU"),
    ("cpus", "number of CPUs"),
    ("gpus", "GPUs"),
    ("driver", "GPU driver"),
)
# Fields that are compared entry by entry, with the name that users see for an entry.
_MAPPINGS = (("params", "parameter"), ("env", "variable"), ("inputs", "input"))


def plan_drift(spec: RunSpec, pool: PoolOutput, agent_sha256: str) -> list[Drift]:
    """Return the differences that are known before a run is repeated on the pool."""
    drift: list[Drift] = []
    _add_difference(drift, "node agent", _text(spec.agent_sha256)[:12], agent_sha256[:12])
    _add_difference(drift, "VM size", _text(spec.vm_size), pool.vm_size)
    return drift


def spec_drift(original: RunSpec, repeated: RunSpec) -> list[Drift]:
    """Return the differences between the specifications of two runs."""
    drift: list[Drift] = []
    _add_difference(drift, "code", original.code.sha256[:12], repeated.code.sha256[:12])
    _add_difference(drift, "node agent", original.agent_sha256[:12], repeated.agent_sha256[:12])
    _add_difference(drift, "command", _command_text(original), _command_text(repeated))
    for part, shown in _MAPPINGS:
        was, now = getattr(original, part), getattr(repeated, part)
        for name in dict.fromkeys((*was, *now)):
            _add_difference(
                drift,
                f"{shown} {name}",
                *(_entry_text(part, each.get(name)) for each in (was, now)),
            )
    _add_difference(
        drift, "data", *(_text(run.data and run.data.prefix) for run in (original, repeated))
    )
    _add_difference(drift, "image", _text(original.image), _text(repeated.image))
    _add_difference(drift, "VM size", _text(original.vm_size), _text(repeated.vm_size))
    return drift


def environment_drift(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Drift]:
    """Return the differences between the known environments of two attempts."""
    drift: list[Drift] = []
    for name, shown in _ENVIRONMENT_KEYS:
        if name in was and name in now:
            _add_difference(drift, shown, _text(was[name]), _text(now[name]))
    before: Mapping[str, str] = was.get("packages") or {}
    after: Mapping[str, str] = now.get("packages") or {}
    if "packages" in was and "packages" in now:
        for name in sorted({*before, *after}):
            _add_difference(
                drift, f"package {name}", before.get(name, "none"), after.get(name, "none")
            )
    return drift


def _add_difference(drift: list[Drift], what: str, was: str, now: str) -> None:
    if was != now:
        drift.append(Drift(what, was, now))


def _command_text(run: RunSpec) -> str:
    """Return the command without the parameters, which are compared one by one."""
    if run.template:
        return shlex.join(word for word in run.template if word is not None)
    words, given = list(run.command), run.to_arguments(run.params)
    for n in range(len(words) - len(given) + 1):
        if given and words[n : n + len(given)] == given:
            del words[n : n + len(given)]
            break
    return shlex.join(words) or "none"


def _entry_text(part: str, value: Any) -> str:
    if part != "inputs" or not isinstance(value, dict):
        return "none" if value is None else json.dumps(value, sort_keys=True)
    document = cast("dict[str, Any]", value)
    # If hashes of the files are known, their location does not matter.
    files = [(file.get("name"), file.get("sha256")) for file in document.get("files") or ()]
    if len(files) == 1 and files[0][1]:
        return f"{files[0][0]} {files[0][1][:12]}"
    if files and all(sha256 for _, sha256 in files):
        return f"{len(files)} files {_digest(files)}"
    kind = str(document.get("kind"))
    return f"{kind}:{document.get(kind)} {_digest(document)}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _text(value: object) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, cast("list[object]", value)))
    return "none" if value in (None, "") else str(value)


# Volatile parts of a `.keras` archive (Keras 3, saving/saving_lib.py, serialization_lib.py).
_KERAS_JSON_FILES = ("metadata.json", "config.json")
_KERAS_DATE = "date_saved"
_KERAS_ADDRESS = "shared_object_id"  # id(object)
_MAX_NAMES = 4
# Larger archives of models that a record names could fill the memory, or take hours to read.
_MAX_JSON = 64 << 20
_MAX_UNPACKED = 1 << 30
_MAX_RATIO = 100


def content_difference(one: Path, other: Path) -> str | None:
    """Return the difference between two files in a few words, or None if contents are equal."""
    if zipfile.is_zipfile(one) and zipfile.is_zipfile(other):
        return _difference(_hash_members(one), _hash_members(other), "members")
    if one.suffix == ".json" and other.suffix == ".json":
        before, after = _load_values(one), _load_values(other)
        if before is not None and after is not None:
            return _difference(before, after, "keys")
    return "bytes"


def _difference(one: dict[str, str], other: dict[str, str], what: str) -> str | None:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if not names:
        return None
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{what} {', '.join(names[:_MAX_NAMES])}{more}"


def _hash_members(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > max(_MAX_UNPACKED, _MAX_RATIO * path.stat().st_size):
                raise zipfile.BadZipFile(f"its {unpacked:,} bytes are not read")
            for name in archive.namelist():
                found[name] = _content_hash(archive, name, keras=path.suffix == ".keras")
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError) as err:
        found["?"] = f"{path}: {err}"  # an unreadable file is not equal to any other
    return found


def _content_hash(archive: zipfile.ZipFile, name: str, *, keras: bool) -> str:
    # zipfile reads no more than the size in the directory.
    small = archive.getinfo(name).file_size <= _MAX_JSON
    if keras and small and name in _KERAS_JSON_FILES:
        try:
            return json.dumps(_without_volatile_parts(json.loads(archive.read(name)), {}))
        except (ValueError, RecursionError):
            pass
    with archive.open(name) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]


def _without_volatile_parts(value: Any, addresses: dict[Any, int]) -> Any:
    """Return the JSON of Keras without its date, and with object IDs replaced by numbers."""
    if isinstance(value, list):
        return [_without_volatile_parts(item, addresses) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in cast("dict[str, Any]", value).items():
        if name == _KERAS_ADDRESS:
            found[name] = addresses.setdefault(repr(item), len(addresses))
        elif name != _KERAS_DATE:
            found[name] = _without_volatile_parts(item, addresses)
    return found


def _load_values(path: Path) -> dict[str, str] | None:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): repr(value) for name, value in raw.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return None

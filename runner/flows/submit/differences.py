"""What differs between runs: parameters, environments, and the files of their code."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import in_parallel
from runner.core.curves import differing
from runner.flows.runs.documents import code_container, find_run, runs_container
from runner.flows.submit.reproduce import load_environment
from runner.protocol.run_spec import RunSpec

_MOST_ARCHIVES = 4  # different ones whose files are compared
_MOST_DIFFERING = 40  # files
_MOST_DIFF_BYTES = 100_000  # of a file whose lines are compared
_MOST_DIFF_LINES = 400
_MOST_BYTES = 4 * 1024**2  # of an archive that is read, compressed
_MOST_FILES = 2000
_MOST_UNPACKED = 32 * 1024**2


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """A file that differs: by run the first digits of its hash, and the lines that differ."""

    path: str
    hashes: tuple[str | None, ...]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between runs, with one value per run for each name."""

    params: Mapping[str, tuple[object, ...]]
    environment: Mapping[str, tuple[object, ...]]
    code: Mapping[str, tuple[object, ...]]
    files: tuple[CodeDifference, ...] = ()
    unread: bool = False  # the archives are too large or too many


def load_differences(connection: Connection, run_ids: Sequence[str]) -> Differences:
    """Return what differs between a few runs, from their documents."""
    specs = in_parallel(lambda run_id: find_run(connection, run_id), run_ids)
    environments = in_parallel(lambda spec: load_environment(connection, spec) or {}, specs)
    code = [
        {
            "git revision": spec.code.git_revision,
            "uncommitted changes": "yes" if spec.code.git_dirty else None,
            "code": spec.code.sha256[:12] or None,
            "recipe": spec.recipe,
            "command": " ".join(spec.command),
        }
        for spec in specs
    ]
    files, unread = _compare_code(connection, specs)
    return Differences(
        differing([spec.all_params for spec in specs]),
        differing([_flat(each) for each in environments]),
        differing(code),
        files,
        unread,
    )


def _flat(environment: Mapping[str, Any]) -> dict[str, object]:
    """Return an environment as names and values: its packages, and what is no container."""
    found: dict[str, object] = {
        name: value for name, value in environment.items() if isinstance(value, (str, int, float))
    }
    packages: Any = environment.get("packages")
    if isinstance(packages, dict):
        found |= cast("dict[str, object]", packages)
    return found


def _compare_code(
    connection: Connection, specs: Sequence[RunSpec]
) -> tuple[tuple[CodeDifference, ...], bool]:
    distinct = {spec.code.sha256: spec for spec in specs if spec.code.sha256}
    if len(distinct) < 2:
        return (), False
    if len(distinct) > _MOST_ARCHIVES:
        return (), True
    read = in_parallel(lambda spec: _load_code(connection, spec), distinct.values())
    archives = dict(zip(distinct, read, strict=True))
    if any(files is None for files in read):
        return (), True
    paths = sorted({path for files in read for path in files or ()})
    found: list[CodeDifference] = []
    for path in paths:
        contents = [(archives.get(spec.code.sha256) or {}).get(path) for spec in specs]
        if len(set(contents)) > 1:
            hashes = tuple(
                None if each is None else hashlib.sha256(each).hexdigest()[:8] for each in contents
            )
            found.append(CodeDifference(path, hashes, _lines(path, specs, contents)))
    return tuple(found[:_MOST_DIFFERING]), False


def _lines(
    path: str, specs: Sequence[RunSpec], contents: Sequence[bytes | None]
) -> tuple[str, ...]:
    """Return the lines that differ between the first content and the first other one."""
    other = next(n for n, each in enumerate(contents) if each != contents[0])
    texts: list[list[str]] = []
    for each in (contents[0], contents[other]):
        if each is not None and (len(each) > _MOST_DIFF_BYTES or b"\0" in each):
            return ()
        texts.append((each or b"").decode("utf-8", "replace").splitlines())
    names = f"{specs[0].run_id}/{path}", f"{specs[other].run_id}/{path}"
    found = difflib.unified_diff(texts[0], texts[1], names[0], names[1], lineterm="")
    return tuple(islice(found, _MOST_DIFF_LINES))


def _load_code(connection: Connection, spec: RunSpec) -> dict[str, bytes] | None:
    """Return the files of a run's code by path, or None if they are large, damaged or deleted."""
    code = spec.code
    if not code.sha256 or code.size_bytes > _MOST_BYTES:
        return None
    places = [runs_container(connection)]
    if connection.outputs.container_code is not None:
        places.insert(0, code_container(connection))
    content = next(filter(None, (place.read(code.blob) for place in places)), None)
    return None if content is None else _unpack(content)


def _unpack(archive: bytes) -> dict[str, bytes] | None:
    found: dict[str, bytes] = {}
    try:
        # Bounded: a small archive may unpack to very much.
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(archive)).read(_MOST_UNPACKED + 1)
        if len(unpacked) > _MOST_UNPACKED:
            return None
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                file = tar.extractfile(member)
                found[member.name] = file.read() if file is not None else b""
                if len(found) > _MOST_FILES:
                    return None
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return None
    return found

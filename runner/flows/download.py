"""Fetch a file from several mirrors: resumed after a cut, accepted only with the right SHA-256."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.core.home import not_writable
from runner.flows.local_files import sha256_of

_CHUNK = 1 << 16
_TIMEOUT_S = 15.0
_TRIES = 4  # per mirror, as long as each brings something
_TROUBLE = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


@dataclass(slots=True)
class Mirrors:
    """Base URLs with a closing slash; `unreachable` ones are not asked again, with the reason."""

    urls: Sequence[str]
    unreachable: dict[str, str] = field(default_factory=dict[str, str])


def fetch(
    name: str,
    sha256: str,
    folder: Path,
    mirrors: Mirrors,
    on_bytes: Callable[[int], None],
) -> bool:
    """Bring `name` into `folder`; False when no mirror gave it.

    `on_bytes` gets the bytes there so far; a part stays beside the file for the next call.
    """
    part = folder / f".{name}.part"
    for url in mirrors.urls:
        if url in mirrors.unreachable:
            continue
        problem = _from_mirror(url + name, part, on_bytes)
        if problem is None and sha256_of(part) == sha256:
            part.replace(folder / name)
            return True
        if problem is None:
            part.unlink(missing_ok=True)  # a wrong file is of no use to the next mirror
        mirrors.unreachable[url] = problem or f"{name} has a wrong SHA-256"
    return False


def _from_mirror(url: str, part: Path, on_bytes: Callable[[int], None]) -> str | None:
    """None when the mirror said that this was all; else what went wrong."""
    problem = ""
    for _ in range(_TRIES):
        before = _size(part)
        try:
            _continue(url, part, on_bytes)
        except _TROUBLE as err:
            problem = str(getattr(err, "reason", None) or err) or type(err).__name__
            if _size(part) <= before:
                return problem
        except OSError as err:
            raise not_writable(part.parent, err) from err
        else:
            return None
    return problem


def _continue(url: str, part: Path, on_bytes: Callable[[int], None]) -> None:
    request = urllib.request.Request(url)  # noqa: S310  the table of mirrors holds https only
    have = _size(part)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        reply = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as err:
        if err.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is there; the SHA-256 decides
        raise
    with reply:
        resumed = reply.status == http.client.PARTIAL_CONTENT
        have = have if resumed else 0
        expected = reply.length
        with part.open("ab" if resumed else "wb") as file:
            received = 0
            while chunk := reply.read(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                on_bytes(have + received)
    if expected is not None and received < expected:
        raise http.client.IncompleteRead(b"", expected - received)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

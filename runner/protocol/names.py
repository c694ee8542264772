"""Names of files in blob storage: unchanged if blob storage accepts them, otherwise escaped.

Linux allows every byte but NUL and `/` in a name. The name of a blob has no control character, no
backslash and no part that ends with a dot, is valid Unicode, and has at most 1,024 characters in
254 parts (REST docs, "Naming and Referencing Containers, Blobs, and Metadata", read 2026-11-23).

The *stored path* of a file has `%xHH` for each byte that a blob name cannot contain: `a%x5Cb` is
the file `a\\b`. Documents, listings and commands use it. If the name of a file contains such a
sequence itself, its `%` becomes `%x25`, so that a stored path identifies one file. Documents
contain the whole stored path, even if it is too long for a blob. The name of that blob consists of
the start of the path and a hash.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

_PLANES = range(0x1FFFE, 0xF0000, 0x10000)  # each plane ends with two noncharacters
# Control characters, the backslash, bytes that are not UTF-8 (surrogates), private use (`\uE000` in
# the documentation), noncharacters, and a dot at the end of a part. A container cannot be listed
# any more once it has a blob with `\x1b` or `\uffff` in its name (Azurite 3.35 answers 500).
_NOT_IN_BLOBS = re.compile(
    "[\x01-\x1f\x7f-\x9f\\\\\ud800-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff"
    + "".join(f"{chr(last)}{chr(last + 1)}" for last in _PLANES)
    + r"]|\.(?=/|\Z)"
)
_LOOKS_ESCAPED = re.compile("%(?=x[0-9A-F]{2})")
# Only sequences that `stored_path` writes: similar names from older agents stay unchanged.
_ESCAPED = re.compile(rb"%x(0[1-9A-F]|1[0-9A-F]|5C|7F|[89A-F][0-9A-F]|25(?=x[0-9A-F]{2})|2E\Z)")
_MAX_CHARACTERS, _MAX_PARTS = 1024, 254
_KEPT_CHARACTERS, _KEPT_PARTS = 500, 200  # the part of a name that is kept if it is too long
_KEPT_OF_NAME = 60  # the number of characters that are kept of a name that is replaced
_SHORT = 2 * _MAX_PARTS - 1  # a name with at most this many characters cannot have too many parts
_SHORTENED = re.compile(r"(?:\A|/)%x/[0-9a-f]{64}\Z")


def stored_path(path: str) -> str:
    """Return the stored path of a file on this system. `path` is relative, with slashes."""
    return stored_path_from_bytes(os.fsencode(path))


def stored_path_from_bytes(path: bytes) -> str:
    """Return the stored path of a file on Linux. This function works on any system."""
    return as_stored(_LOOKS_ESCAPED.sub("%x25", path.decode("utf-8", "surrogateescape")))


def as_stored(text: str) -> str:
    """Return the stored path of a path that a user typed, which may be escaped already."""
    return _NOT_IN_BLOBS.sub(_escape, text)


def file_path(stored: str) -> str:
    """Return the path of a file from its stored path.

    A byte that is not UTF-8 becomes a surrogate on every system, as Python does on Linux.
    `os.fsdecode` would reject it on Windows.
    """
    return "/".join(map(_unescape, stored.split("/"))) if "%x" in stored else stored


def file_paths(
    stored: Iterable[str],
    possible: Callable[[str], str] = str,
    alike: Callable[[str], str] = str,
    same: Callable[[str, str], bool] = operator.eq,
) -> dict[str, str]:
    """Return the path of each file by its stored path. All paths are different.

    Two stored paths may stand for the same path: an older version wrote the blob `notes.`, which is
    now `notes%x2E`. And a blob `a` may exist together with `a/b`. In these cases, one file gets a
    name with a hash, which is the same on every machine.

    Args:
        stored: relative stored paths, in any order.
        possible: returns the name that the file system accepts for a name.
        alike: returns a key that is equal for all names that might denote the same file.
        same: returns True if two names with equal keys denote the same file.
    """
    names = sorted(set(stored))
    folders = {"/".join(parts[:end]) for parts in (name.split("/") for name in names)
               for end in range(1, len(parts))}  # fmt: skip
    chosen: dict[tuple[str, str, bool], str] = {}
    taken = defaultdict[tuple[str, str], list[str]](list)

    def in_use(parent: str, kept: str) -> bool:
        others = taken[parent, alike(kept)]
        return any(other == kept or same(other, kept) for other in others)

    def choose(parent: str, part: str, *, is_folder: bool) -> str:
        if (parent, part, is_folder) not in chosen:
            start = kept = possible(file_path(part))
            hashed = part
            while in_use(parent, kept):  # another stored path claimed it
                kept = with_hash(start, hashed)
                hashed += "/"
            taken[parent, alike(kept)].append(kept)
            chosen[parent, part, is_folder] = f"{parent}{kept}"
        return chosen[parent, part, is_folder]

    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name in folders, name)):
        *above, last = name.split("/")
        parent = ""
        for part in above:
            parent = f"{choose(parent, part, is_folder=True)}/"
        found[name] = choose(parent, last, is_folder=False)
    return found


def with_hash(start: str, name: str) -> str:
    """Return a name that begins with `start` and contains a hash of `name`."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{start[:_KEPT_OF_NAME]}~{digest[:8]}"


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    errors = "surrogateescape" if "\udc80" <= text <= "\udcff" else "surrogatepass"
    return "".join(f"%x{byte:02X}" for byte in text.encode("utf-8", errors))


def _unescape(part: str) -> str:
    encoded = part.encode("utf-8", "surrogateescape")
    data = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), encoded)
    return part if data in (encoded, b".", b"..") else data.decode("utf-8", "surrogateescape")


def blob_name(name: str) -> str:
    """Return the name of the blob for the full name of a file, shortened if it is too long."""
    if len(name) <= _SHORT or (
        name.count("/") < _MAX_PARTS
        and len(name.encode("utf-16-le", "surrogatepass")) <= 2 * _MAX_CHARACTERS
    ):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{listed_prefix(name)}%x/{digest}"


def listed_prefix(prefix: str) -> str:
    """Return the prefix of all blobs whose full names start with `prefix`.

    It is shorter than `prefix` if names are shortened there.
    """
    folders = prefix.split("/")[: _KEPT_PARTS + 1]
    kept = ""
    for folder in folders[:-1]:
        if len(kept) + len(folder) >= _KEPT_CHARACTERS:
            break
        kept += f"{folder}/"
    return kept


def is_shortened(blob: str) -> bool:
    """Return True if a blob has the form of a shortened name."""
    return _SHORTENED.search(blob) is not None

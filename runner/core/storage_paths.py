"""Parse paths in the storage account as users type them: `cats/2024`, `runs:ID`, `share:x`.

In a container, the path is a stored path, whose special characters are escaped: see
`runner.protocol.paths`. Files on a share, which nodes mount, have the names that scripts see.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from runner.protocol.errors import RunnerError
from runner.protocol.paths import as_stored, file_path, stored_path

SHARE = "share"
SHARE_PARTS = ".runner-parts"  # folder at the root of the share for partial uploads
# 3 to 63 of a-z, 0-9 and single dashes; `$root` and `$web` too (REST docs "Naming and Referencing
# Containers, Blobs, and Metadata", read 2026-11-21).
_CONTAINER = re.compile(r"\$?[a-z0-9](?:-?[a-z0-9]){2,62}")
# The service rejects these characters. It also removes dots at the end of a name, which would store
# the file under another name (REST docs "Naming and referencing shares, directories, files, and
# metadata", read 2026-11-21).
_NOT_IN_SHARE = re.compile(r'[":|<>*?]')
_MAX_SHARE_PART = 255
# Storage rejects or changes these characters, so names of versions without escaping have none.
_NEVER_IN_BLOBS = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class StoragePath:
    """A blob, a file of the share, or a folder of either; `path` has no slash at either end.

    `older` is the name that versions without escaping used, "" if it is the same.
    """

    store: str
    path: str
    older: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The last part of the path, or the store if there is no path."""
        return self.path.rpartition("/")[2] or self.store

    @property
    def file_name(self) -> str:
        """The last part of the path as the name of a file on this machine."""
        return self.name if self.store == SHARE else file_path(self.name)

    def below(self, path: str) -> StoragePath:
        """Return the path in storage, below this folder, of a local file with a relative path."""
        name = path if self.store == SHARE else stored_path(path)
        return replace(self, path=f"{self.path}/{name}".lstrip("/"), older="")

    @property
    def as_input(self) -> str:
        """The path in the form of `inputs:` in a `train.yaml`."""
        if self.store == SHARE:
            return f"share: {self.path}"
        return f"blob: {self.store}/{self.path}"

    def __str__(self) -> str:
        return f"{self.store}:{self.path}"


def parse_storage_path(text: str, default_store: str) -> StoragePath:
    """Parse `[STORE:]PATH`; a store is `share` or the name of a container.

    Raises:
        RunnerError: the store or the path is invalid.
    """
    head, colon, rest = text.partition(":")
    # A colon after a slash belongs to the name of a file.
    store, path = (head, rest) if colon and "/" not in head else (default_store, text)
    if store != SHARE and not _CONTAINER.fullmatch(store):
        raise _invalid_path(
            text,
            f"{store!r} is not a valid container name",
            f"use CONTAINER:PATH or share:PATH, or {default_store}:{text} for a file of this name",
        )
    typed = path.strip("/")
    name = check_storage_name(text, typed, store)
    may_be_older = name != typed and not _NEVER_IN_BLOBS.search(typed)
    return StoragePath(store, name, typed if may_be_older else "")


def check_storage_name(text: str, name: str, store: str = "") -> str:
    """Return the path in `store` for a `name` that a user typed.

    Args:
        text: the whole argument, for errors.
        name: the path in the store.
        store: `share` or the name of a container.

    Raises:
        RunnerError: the name is not allowed.
    """
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") for part in parts):
        raise _invalid_path(
            text, "parts cannot be empty, '.' or '..'", "use a plain path such as folder/file"
        )
    if store != SHARE:
        return as_stored(name)
    if any(as_stored(char) != char for char in name if char != "."):
        why = "names on a file share must be UTF-8 without backslash and control characters"
        raise _invalid_path(as_stored(text), why, "rename it")
    _check_share_parts(text, parts)
    return name


def _check_share_parts(text: str, parts: list[str]) -> None:
    if parts and parts[0].lower() == SHARE_PARTS:  # names on a share ignore case
        raise _invalid_path(text, f"{SHARE_PARTS} is reserved for partial uploads", "rename it")
    for part in parts:
        if bad := _NOT_IN_SHARE.search(part):
            raise _invalid_path(text, f"names on a file share cannot contain {bad[0]}", "rename it")
        if part.endswith("."):
            raise _invalid_path(
                text, "a file share removes a dot at the end of a name", "rename it"
            )
        if len(part) > _MAX_SHARE_PART:
            why = f"a name on a file share has at most {_MAX_SHARE_PART} characters"
            raise _invalid_path(f"{text[:40]}…", why, "shorten it")


def _invalid_path(text: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-DATA-PATH", f"invalid path in storage {text!r}", why=why, fix=fix)

"""Names of shares, directories and files: which are good, and which are the same.

Source: "Naming and referencing shares, directories, files, and metadata" of the Files REST API.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

MAX_COMPONENT = 255  # characters; a Linux folder holds 255 bytes, longer names are refused [S]
MAX_DEPTH = 250
MAX_PATH = 2048

_SHARE = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")
_SHARE_LENGTHS = range(3, 64)
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\ud800-\udfff"\\/:|<>*?]')
_DEVICES = re.compile(r"(?:LPT[1-9]|COM[1-9]|PRN|AUX|NUL|CON|CLOCK\$)", re.IGNORECASE)
_METADATA = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # a C# identifier, as far as headers carry it


class BadNameError(ValueError):
    """A name that the service refuses."""


def check_share(name: str) -> str:
    """The name when it is one of a share. Raises BadNameError."""
    if len(name) not in _SHARE_LENGTHS or not _SHARE.fullmatch(name):
        raise BadNameError(f"'{name[:64]}' is not a name of a share")
    return name


def parse_path(raw: str, *, allow_trailing_dot: bool = False) -> tuple[str, ...]:
    """The components of a path as it stands in a URL, () for the root. Raises BadNameError.

    A slash separates even when it is percent-encoded. Dots at the end of a component go unless
    `allow_trailing_dot` (header x-ms-allow-trailing-dot).
    """
    try:
        text = unquote(raw, errors="strict")
    except UnicodeDecodeError as err:
        raise BadNameError("the path is not UTF-8") from err
    if len(text) > MAX_PATH:
        raise BadNameError(f"the path has more than {MAX_PATH} characters")
    text = text.strip("/")
    parts = tuple(_component(part, allow_trailing_dot) for part in text.split("/")) if text else ()
    if len(parts) > MAX_DEPTH:
        raise BadNameError(f"the path is deeper than {MAX_DEPTH}")
    return parts


def _component(text: str, allow_trailing_dot: bool) -> str:
    kept = text if allow_trailing_dot or text in (".", "..") else text.rstrip(".")
    if not kept or kept in (".", "..") or _FORBIDDEN.search(kept) or _DEVICES.fullmatch(kept):
        raise BadNameError(f"'{text[:64]}' is not a name of a file or directory")
    if len(kept) > MAX_COMPONENT or len(kept.encode("utf-8", "surrogatepass")) > MAX_COMPONENT:
        raise BadNameError(f"a name has more than {MAX_COMPONENT} bytes")
    return kept


def is_metadata_name(name: str) -> bool:
    """Whether metadata may be called so."""
    return bool(_METADATA.fullmatch(name))


def folded(name: str) -> str:
    """What two names have in common that SMB holds for the same."""
    if name.isascii():
        return name.upper()
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in name)

"""Mask secrets in what a page shows: keys, signatures, tokens, and properties that are secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import quote

from batch_emulator.http.secrets import SECRET_PROPERTIES

MASK = "•••"
_HEADERS = frozenset({"cookie", "x-ms-encryption-key", "x-ms-copy-source-authorization"})
_PATTERNS = (
    re.compile(r"(?i)((?:\b|(?<=%3F)|(?<=%26))sig(?:=|%3D))(?:(?!%26)[^&\s\"'<>\\;])+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]+"),
    re.compile(r"(?i)(\bsharedkey(?:lite)?\s+[^:\s\"]+:)[\w+/=]+"),
    re.compile(r"(?i)(\b(?:AccountKey|SharedAccessSignature)=)[^;\s\"']+"),
    re.compile(r"(?i)(/_emulator/imds/[^/\s\"]+/[^/\s\"]+/)[^/\s\"?]+"),  # the secret of a node
)
# of a JSON body that was cut: everything after the name, since an object may be the secret
_CUT_SECRET = re.compile(rf'("(?:{"|".join(sorted(SECRET_PROPERTIES))})"\s*:).*', re.DOTALL)
_SECRET_VARIABLE = re.compile(r"(?i)key|secret|passw|token|credential|sas\b|connection_?string")


class SecretMasks:
    """Replaces the secrets of one emulator, and everything that looks like one."""

    def __init__(self, known: Iterable[str]) -> None:
        forms = {form for one in known if one for form in (one, quote(one, safe=""))}
        self._known = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return text without secrets."""
        for secret in self._known:
            text = text.replace(secret, MASK)
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\g<1>{MASK}", text)
        return text

    def header(self, name: str, value: str) -> str:
        """Return the value of a header without secrets."""
        if name.lower() not in _HEADERS:
            return self.text(value)
        return MASK

    def document(self, value: Any) -> Any:
        """Return a JSON value without secrets."""
        if isinstance(value, dict):
            found = cast("dict[str, Any]", value)
            return {
                name: MASK if _is_secret(name, found) else self.document(each)
                for name, each in found.items()
            }
        if isinstance(value, list):
            return [self.document(each) for each in cast("list[Any]", value)]
        return self.text(value) if isinstance(value, str) else value

    def body(self, content: bytes) -> str:
        """Return a body without secrets: JSON with an indent, other text as it is."""
        text = content.decode("utf-8", "replace")
        try:
            return json.dumps(self.document(json.loads(text)), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return self.text(_CUT_SECRET.sub(rf"\g<1> {MASK}", text))


def _is_secret(name: str, inside: dict[str, Any]) -> bool:
    """Return True for a secret property, and for the value of a variable with such a name."""
    if name in SECRET_PROPERTIES:
        return True
    variable = inside.get("name")
    return name == "value" and isinstance(variable, str) and bool(_SECRET_VARIABLE.search(variable))

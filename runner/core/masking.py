"""Mask secrets in texts and documents that a person passes on, such as those of a bug report.

The agent masks the secrets of a run in what it writes. This module also finds values that nobody
declared as secrets, by their form or by the name of their variable. A report that lacks a harmless
value can still be read, so names and forms are matched generously.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote, urlsplit

MARK = "***"
# Shorter values occur in any text by chance; the agent has the same limit.
MIN_LENGTH = 6
_NAME = (
    r"(?:passwords?|passwd|pwd|passphrase|secrets?|credentials?|token(?!s)|(?<![a-z])pat(?![a-z])|sas"
    r"|connection_?string|(?:api|access|account|secret|private|shared|storage|batch|auth|ssh|"
    r"encryption|license|subscription|client|signing)[_-]?key)"
)
# The name may be a part of a longer one: WANDB_API_KEY, HF_TOKEN_FILE, dbPassword.
_SECRET_NAME = re.compile(rf"(?:^|[^a-z]|(?<=[a-z])){_NAME}(?![a-rt-z])", re.IGNORECASE)
_SNAKE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Names that end like secrets and are references to them, or counts.
_HARMLESS_NAME = re.compile(
    r"(?:_|-|^)(?:file|path|name|url|uri|id|type|count|env|enabled|mode|length|size|expir\w*)$"
    r"|^(?:OLD)?PWD$",
    re.IGNORECASE,
)
# `name=value`, `name: value`, `--name value` and `"name": "value"`.
_ASSIGNMENT = re.compile(
    rf"(?P<lead>(?<![\w-])(?:--)?[\w.-]*{_NAME}[\w.-]*[\"']?(?:\s*[=:]\s*|(?<=\w)\s+(?=[^\s=:-]))"
    rf"(?:Bearer\s+)?[\"']?)(?P<value>[^\s\"',;&]+)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"[=:]\s*(?:Bearer\s+)?[\"']?$|^--", re.IGNORECASE)
_FORMS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # a signature of Azure Storage or Service Bus, and a key of a connection string
        (r"(?<=sig=)[^&\s\"'<>]+", re.IGNORECASE),
        (r"(?<=AccountKey=)[^;\s\"']+", re.IGNORECASE),
        (r"(?<=SharedKey )[^\s\"',]+|(?<=SharedKeyLite )[^\s\"',]+", re.IGNORECASE),
        (r"(?<=Bearer )[A-Za-z0-9._~+/=-]{6,}|(?<=Basic )[A-Za-z0-9+/=]{8,}", re.IGNORECASE),
        # user and password of a URL
        (r"(?<=://)[^/\s\"'@]+(?=@)", 0),
        # 64 bytes in base64: the account keys of Azure Batch and Storage
        (r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}==", 0),
        # JSON Web Tokens, and tokens of GitHub, Hugging Face, OpenAI, Slack, AWS, Pulumi and PyPI
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", 0),
        (r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}", 0),
        (r"\bhf_[A-Za-z0-9]{20,}|\bsk-[\w-]{20,}|\bxox[abeprs]-[\w-]{10,}", 0),
        (r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b|\bpul-[0-9a-f]{40}\b|\bpypi-[\w-]{20,}", 0),
        # a private key in PEM
        (r"(?<=KEY-----)[^-]+(?=-----END)", 0),
    )
)


def is_secret_name(name: str) -> bool:
    """Return True if a variable, option or key of this name probably contains a secret."""
    words = _SNAKE.sub("_", name)
    return bool(_SECRET_NAME.search(words)) and not _HARMLESS_NAME.search(words)


class Mask:
    """Replaces secrets by `***`, and counts them.

    Args:
        values: Known secrets. Values of less than six characters are ignored.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {
            form
            for value in values
            for form in (value, value.strip(), quote(value, safe=""), quote(value))
            if len(form) >= MIN_LENGTH
        }
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self.count = 0

    def __repr__(self) -> str:
        return f"Mask({self.count} masked)"

    def text(self, text: str) -> str:
        """Return the text without known values and without values that look like secrets."""
        for pattern in (self._values, *_FORMS):
            if pattern is not None:
                text, count = pattern.subn(MARK, text)
                self.count += count
        return _ASSIGNMENT.sub(self._assignment, text)

    def document(self, value: Any, name: str = "") -> Any:
        """Return a JSON document with masked strings. Values below secret names are masked whole.

        Args:
            value: A value as `json.loads` returns it.
            name: The key of the value, or an empty string.
        """
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[str, Any]", value))
        if isinstance(value, list | tuple):
            return [self.document(each, name) for each in cast("list[Any]", value)]
        if isinstance(value, str):
            return self._hide(value) if is_secret_name(name) else self.text(value)
        return value

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables with masked values, sorted by name."""
        return {name: self.document(values[name], name) for name in sorted(values)}

    def _mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        # `{"name": "HF_TOKEN", "value": "..."}`, as Batch and Kubernetes write variables
        named = value.get("name") if "value" in value else None
        found: dict[str, Any] = {}
        for key, each in value.items():
            of = str(named) if key == "value" and isinstance(named, str) else str(key)
            found[self.text(str(key))] = self.document(each, of)
        return found

    def _hide(self, value: str) -> str:
        if not value or value == MARK:
            return value
        self.count += 1
        return MARK

    def _assignment(self, match: re.Match[str]) -> str:
        lead, value = match["lead"], match["value"]
        name = re.search(r"[\w.-]+(?=[\"']?\s*(?:[=:]|\s))", lead)
        assigned = _ASSIGNED.search(lead) is not None
        if value.startswith(MARK) or not assigned or name is None or not is_secret_name(name[0]):
            return match[0]
        self.count += 1
        return f"{lead}{MARK}"


def find_secret_values(variables: Mapping[str, str]) -> set[str]:
    """Return the values of environment variables that are secrets, by name, and of their URLs."""
    found = {value for name, value in variables.items() if is_secret_name(name)}
    for value in variables.values():
        if "://" in value and "@" in value:
            try:
                found.add(urlsplit(value).password or "")
            except ValueError:
                continue
    return {value for value in found if len(value) >= MIN_LENGTH}

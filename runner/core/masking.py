"""Mask secrets in texts and documents that a person passes on, such as those of a bug report.

The agent masks the secrets of a run in what it writes. This module also finds values that nobody
declared as secrets, by their form or by the name of their variable. A report that lacks a harmless
value can still be read, so names and forms are matched generously.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from runner.protocol.host import MIN_BYTES, encode_forms

MARK = "***"
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
# `name=value`, `name: value`, `--name value` and `"name": "value"`, also in JSON in a JSON string.
# A value in quotes ends with the same quote; a quote after a backslash is a part of it.
_ASSIGNMENT = re.compile(
    rf"(?P<lead>(?<![\w-])(?:--)?[\w.-]*{_NAME}[\w.-]*(?P<end>\\*[\"'])?"
    rf"(?:\s*[=:]\s*|(?<=\w)\s+(?=[^\s=:-]))(?:Bearer\s+)?(?P<quote>\\*[\"'])?)"
    rf"(?P<value>(?(quote)(?:(?!(?<!\\)(?P=quote))[^\n])+|[^\s\"',;&]+))",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"[=:]\s*(?:Bearer\s+)?(?:\\*[\"'])?$|^--", re.IGNORECASE)
_SEPARATOR = re.compile(r"\s*;\s*")  # of a connection string
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
        values: Known secrets, which are masked in all their forms. Values of less than six bytes
            are ignored.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {
            form.decode("utf-8", "surrogateescape")
            for value in values
            if _is_text(value)
            for stripped in {value, value.strip()}
            for form in encode_forms(stripped)
            if len(form) >= MIN_BYTES
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
            return [
                self.document(each, of) for each, of in _named_words(cast("list[Any]", value), name)
            ]
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
        name = re.search(r"[\w.-]+(?=\\*[\"']?\s*(?:[=:]|\s))", lead)
        assigned = _ASSIGNED.search(lead) is not None
        if value.startswith(MARK) or not assigned or name is None or not is_secret_name(name[0]):
            return match[0]
        self.count += 1
        return f"{lead}{MARK}"


def _named_words(words: Sequence[Any], name: str) -> Iterable[tuple[Any, str]]:
    """Yield the values of a list with their name; in a command, this may be the option before."""
    before = ""
    for word in words:
        is_value = isinstance(word, str) and not word.startswith("--")
        is_option = before.startswith("--") and "=" not in before and is_secret_name(before)
        yield word, before.lstrip("-") if is_value and is_option else name
        before = word if isinstance(word, str) else ""


def find_document_secrets(document: object) -> set[str]:
    """Return the secrets of a JSON document or of variables, to mask them in other files.

    They are values below secret names, values of secret options in a command, and passwords in
    URLs and connection strings.
    """
    found = {value for name, value in _named_texts(document, "") if is_secret_name(name)}
    for _, value in _named_texts(document, ""):
        found.update(_passwords(value))
    return {value for value in found if len(value) >= MIN_BYTES}


def _is_text(value: str) -> bool:
    """Return False for half of a character, which only JSON can contain."""
    with suppress(UnicodeEncodeError):
        return bool(value.encode("utf-8", "surrogateescape"))
    return False


def _named_texts(value: object, name: str) -> Iterable[tuple[str, str]]:
    """Yield each string of a document with its name: a key, an option, or an empty string."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, object]", value).items():
            yield from _named_texts(each, key)
    elif isinstance(value, list | tuple):
        for each, of in _named_words(cast("list[Any]", value), name):
            yield from _named_texts(each, of)


def _passwords(text: str) -> Iterable[str]:
    """Yield the password of a URL, and the secret values of `name=value` words."""
    if "://" in text and "@" in text:
        with suppress(ValueError):
            yield urlsplit(text).password or ""
    for part in _SEPARATOR.split(text):
        name, _, value = part.partition("=")
        if value and is_secret_name(name.strip(" -")):
            yield value.strip()

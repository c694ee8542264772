"""Replace secrets by `***` in everything that leaves the node: logs, metrics, events, messages."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from itertools import chain
from urllib.parse import parse_qs

from runner.protocol.host import MIN_BYTES, encode_forms

MARK = b"***"
_PLAIN = re.compile(rb"[A-Za-z0-9]+")


@dataclass(frozen=True)
class _Secret:
    """One value: its encoded forms, and words, at least one of which is in each form.

    A block is first searched for the few words, because `in` is a hundred times faster than a
    regular expression for all forms.
    """

    words: tuple[bytes, ...]
    forms: tuple[bytes, ...]

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the positions of all forms in the data."""
        if not any(word in data for word in self.words):
            return []
        present = (re.compile(re.escape(form)) for form in self.forms if form in data)
        return [match.span() for form in present for match in form.finditer(data)]


class Redactor:
    """Replaces secret values in their usual encodings by `***`."""

    def __init__(self) -> None:
        self._values: tuple[_Secret, ...] = ()
        self._longest = 0

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"

    def add(self, value: str) -> None:
        """Redact this value from now on. Values of less than six characters are ignored."""
        forms = tuple(dict.fromkeys(form for form in encode_forms(value) if len(form) >= MIN_BYTES))
        if forms and all(forms != known.forms for known in self._values):
            self._values = (*self._values, _Secret(_choose_words(forms), forms))
            self._longest = max(self._longest, *map(len, forms))

    def add_sas(self, sas: str) -> None:
        """Redact a shared access signature: the whole query, and its signature alone."""
        self.add(sas)
        for signature in parse_qs(sas.lstrip("?")).get("sig", []):
            self.add(signature)

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if not self._values:
            return text
        data, errors = _encode_text(text)
        clean = self.data(data)
        return text if clean is data else clean.decode("utf-8", errors)

    def data(self, data: bytes) -> bytes:
        """Return the bytes without secrets; the same object if there are none."""
        hits = self._hits(data)
        if not hits:
            return data
        parts: list[bytes] = []
        position = 0
        for start, end in hits:
            parts += (data[position:start], MARK)
            position = end
        return b"".join((*parts, data[position:]))

    def split(self, data: bytes) -> int:
        """Return how many bytes can be shipped. The rest may be the beginning of a secret."""
        cut = len(data) - self._partial_size(data)
        if cut == len(data):
            return cut
        # Do not split a whole secret at the cut.
        over = [end for start, end in self._hits(data) if start < cut < end]
        return over[0] if over else cut

    def _partial_size(self, data: bytes) -> int:
        """Return the size of the longest end of the data that may be the beginning of a secret."""
        window = data[-(self._longest - 1) :] if self._longest > 1 else b""
        longest = 0
        for form in chain.from_iterable(value.forms for value in self._values):
            at = max(len(window) - len(form) + 1, 0)
            while (at := window.find(form[:1], at)) >= 0:
                if form.startswith(window[at:]):
                    longest = max(longest, len(window) - at)
                    break
                at += 1
        return longest

    def _hits(self, data: bytes) -> list[tuple[int, int]]:
        """Return the positions of secrets in order, with overlapping ones merged."""
        found = sorted(chain.from_iterable(value.spans(data) for value in self._values))
        merged: list[tuple[int, int]] = []
        for start, end in found:
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


class RedactingFormatter(logging.Formatter):
    """Formats the agent's own log, which is the task's output in Batch."""

    def __init__(self, redactor: Redactor, pattern: str, dates: str) -> None:
        super().__init__(pattern, dates)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return the record with its traceback, without secrets."""
        return self._redactor.text(super().format(record))


def log_to_stdout(redactor: Redactor) -> None:
    """Write the log of this process to stdout, which is the task's output in Batch."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(RedactingFormatter(redactor, "%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _encode_text(text: str) -> tuple[bytes, str]:
    """Encode text that may contain lone surrogates. Also return the error handler for decoding."""
    try:
        return text.encode("utf-8", "surrogateescape"), "surrogateescape"
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass"), "surrogatepass"


def _choose_words(forms: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return a few alphanumeric words, at least one of which is in each form."""
    words: list[bytes] = []
    for form in forms:
        if not any(word in form for word in words):
            run = max(_PLAIN.findall(form), key=len, default=b"")
            words.append(run if len(run) >= MIN_BYTES else form)
    return tuple(words)

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from batch_emulator.http.call import Verdict, check

ETAG = "0x8D123"
CHANGED = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def http(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


SAME = http(CHANGED)
BEFORE = http(CHANGED - timedelta(seconds=1))
AFTER = http(CHANGED + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("headers", "reading", "writing"),
    [
        ({}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": ETAG}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": f'"{ETAG}"'}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": f'W/"{ETAG}"'}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": f'"other", "{ETAG}"'}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": "*"}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-match": "0x8D999"}, Verdict.FAILED, Verdict.FAILED),
        ({"if-none-match": f'"{ETAG}"'}, Verdict.NOT_MODIFIED, Verdict.FAILED),
        ({"if-none-match": "*"}, Verdict.NOT_MODIFIED, Verdict.FAILED),
        ({"if-none-match": "0x8D999"}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-modified-since": BEFORE}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-modified-since": SAME}, Verdict.NOT_MODIFIED, Verdict.FAILED),
        ({"if-modified-since": AFTER}, Verdict.NOT_MODIFIED, Verdict.FAILED),
        ({"if-unmodified-since": BEFORE}, Verdict.FAILED, Verdict.FAILED),
        ({"if-unmodified-since": SAME}, Verdict.PROCEED, Verdict.PROCEED),
        ({"if-unmodified-since": AFTER}, Verdict.PROCEED, Verdict.PROCEED),
    ],
)
def test_single_condition_is_evaluated(
    headers: dict[str, str], reading: Verdict, writing: Verdict
) -> None:
    assert check(headers, ETAG, CHANGED, reading=True) is reading
    assert check(headers, ETAG, CHANGED, reading=False) is writing


def test_etag_takes_precedence_over_the_date() -> None:
    pair = {"if-none-match": "0x8D999", "if-modified-since": AFTER}
    assert check(pair, ETAG, CHANGED, reading=True) is Verdict.PROCEED
    pair = {"if-match": "0x8D999", "if-unmodified-since": AFTER}
    assert check(pair, ETAG, CHANGED, reading=True) is Verdict.FAILED


@pytest.mark.parametrize(
    "names",
    [
        ("if-match", "if-none-match"),
        ("if-match", "if-modified-since"),
        ("if-none-match", "if-unmodified-since"),
        ("if-modified-since", "if-unmodified-since"),
        ("if-match", "if-none-match", "if-modified-since"),
    ],
)
def test_other_combinations_are_not_supported(names: tuple[str, ...]) -> None:
    headers = {n: SAME if n.endswith("since") else ETAG for n in names}
    assert check(headers, ETAG, CHANGED, reading=True) is Verdict.UNSUPPORTED


@pytest.mark.parametrize("text", ["yesterday", "2026-03-01T00:00:00Z", "Foo, 99 Bar 2026"])
def test_invalid_date_is_malformed(text: str) -> None:
    headers = {"if-modified-since": text}
    assert check(headers, ETAG, CHANGED, reading=True) is Verdict.MALFORMED

"""Secrets are masked wherever the page shows texts of others."""

from __future__ import annotations

import json

import pytest

from batch_emulator.page.masking import MASK, SecretMasks

KEY = "c2VjcmV0L2tleSs9PQ=="
MASKS = SecretMasks([KEY, ""])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"key {KEY}.", f"key {MASK}."),
        ("c2VjcmV0L2tleSs9PQ%3D%3D", MASK),
        ("https://a/b?sv=1&sig=a%2Fb%3D&se=2", f"https://a/b?sv=1&sig={MASK}&se=2"),
        ("u=https%3A//a%3Fsig%3Dabc%26se%3D2", f"u=https%3A//a%3Fsig%3D{MASK}%26se%3D2"),
        ("Authorization: Bearer ab.c-d_e=", f"Authorization: Bearer {MASK}"),
        ("SharedKey acc:ab+/c==", f"SharedKey acc:{MASK}"),
        ("AccountName=a;AccountKey=b;X=c", f"AccountName=a;AccountKey={MASK};X=c"),
        (
            "/_emulator/imds/p/n/0a1b/metadata/scheduledevents",
            f"/_emulator/imds/p/n/{MASK}/metadata/scheduledevents",
        ),
        ("design=1 signal=2", "design=1 signal=2"),
    ],
)
def test_text_is_masked(text: str, shown: str) -> None:
    assert MASKS.text(text) == shown


def test_secret_properties_and_variables_are_masked_in_json() -> None:
    body = {
        "userAccounts": [{"name": "u", "password": "p1"}],
        "extensions": [{"name": "e", "protectedSettings": {"k": "p2"}}],
        "environmentSettings": [
            {"name": "MY_TOKEN", "value": "p3"},
            {"name": "MODE", "value": "fast"},
        ],
        "resourceFiles": [{"httpUrl": "https://a/b?sig=p4"}],
    }
    shown = MASKS.body(json.dumps(body).encode())
    assert not any(f"p{n}" in shown for n in range(1, 5))
    assert '"fast"' in shown
    assert json.loads(shown)["userAccounts"][0]["name"] == "u"


def test_body_that_was_cut_is_masked_to_its_end() -> None:
    cut = b'{"a": "https://x?sig=p1", "protectedSettings": {"password": "p2", "more": "p3'
    shown = MASKS.body(cut)
    assert "p1" not in shown
    assert "p2" not in shown
    assert "p3" not in shown


def test_value_of_a_secret_header_is_masked_as_a_whole() -> None:
    assert MASKS.header("Cookie", "a=b") == MASK
    assert MASKS.header("accept", "a/b") == "a/b"

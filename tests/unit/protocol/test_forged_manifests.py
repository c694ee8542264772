"""Manifests that no agent wrote: each is refused, none stops the attempt or costs another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.protocol.checkpoints import BadManifestError, CheckpointBlobs, parse_checkpoint

BLOBS = CheckpointBlobs("mnist-1")
HASH = "0" * 64


def entry(path: str, **changes: Any) -> dict[str, Any]:
    blob = f"mnist-1/checkpoints/files/1/{HASH}"
    return {"path": path, "size_bytes": 1, "sha256": HASH, "blob": blob, "mtime_ns": 5, **changes}


def manifest(**changes: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"format": 1, "checkpoint": 3, "attempt": 1, "time": "now"}
    return {**empty, "files": [entry("w")], "links": [], "folders": [], **changes}


def test_valid_manifest_is_read() -> None:
    whole = manifest(files=[entry("a/w"), entry("b")], folders=["a/c"])
    assert parse_checkpoint(json.dumps(whole).encode(), BLOBS, 3).number == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": 4},  # deleting it would delete another one
        {"checkpoint": float("inf")},
        {"format": float("-inf")},
        {"attempt": float("nan")},
        {"files": [entry("w", mtime_ns=1 << 70)]},
        {"files": [entry("w", size_bytes=float("inf"))]},
        {"files": [entry("w", mode="4755")]},
        {"files": [entry("w", mode="rwx")]},
        {"files": [entry("w", mode=493)]},
        {"files": [entry("w", sha256="/dev/zero")]},
        {"files": [entry("w", sha256="../../secret")]},
        {"files": [entry("w"), entry("w")]},
        {"files": [entry("w"), entry("./w")]},
        {"files": [entry("w"), entry("w/x")]},
        {"files": [entry("w/x"), entry("w")]},
        {"files": [entry(".")]},
        {"files": [entry("w")], "folders": ["w"]},
        {"folders": ["w/x"]},
        {"links": [{"path": "w", "target": "x"}]},
    ],
)
def test_forged_manifest_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadManifestError):
        parse_checkpoint(json.dumps(manifest(**changes)).encode(), BLOBS, 3)


def test_endlessly_nested_manifest_is_refused() -> None:
    with pytest.raises(BadManifestError):
        parse_checkpoint(b"[" * 200_000, BLOBS, 3)

"""Checkpoints that a client can resume from, and the problems of the others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from runner.azure.storage.blobs import BlobContainer
from runner.flows.runs.attempts import incomplete_checkpoints, list_checkpoints


class Memory:
    """As much of a container as a listing reads."""

    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs

    def list(self, prefix: str) -> list[SimpleNamespace]:
        found = [(name, body) for name, body in self._blobs.items() if name.startswith(prefix)]
        return [SimpleNamespace(name=name, size_bytes=len(body)) for name, body in found]

    def read(self, name: str) -> bytes | None:
        return self._blobs.get(name)


def manifest(number: int, size: int, **changes: Any) -> bytes:
    file = {"path": "model", "size_bytes": size, "sha256": "0" * 64}
    file["blob"] = f"r/checkpoints/files/1/{number}"
    said = {"format": 1, "checkpoint": number, "attempt": 1, "time": "t", "files": [file]}
    return json.dumps({**said, **changes}).encode()


def test_unusable_checkpoint_is_listed_with_the_reason() -> None:
    blobs = {
        "r/checkpoints/files/1/1": b"whole",
        "r/checkpoints/files/1/2": b"sho",
        "r/checkpoints/1/manifest.json": manifest(1, 5),
        "r/checkpoints/2/manifest.json": manifest(2, 5),
        "r/checkpoints/3/manifest.json": manifest(3, 5),
        "r/checkpoints/4/manifest.json": manifest(4, 5, format=2),
        "r/checkpoints/5/manifest.json": b"{",
    }
    container = cast("BlobContainer", Memory(blobs))
    assert [checkpoint.number for checkpoint in list_checkpoints(container, "r")] == [1]
    problems = incomplete_checkpoints(container, "r")
    assert problems[:2] == (
        "checkpoint 2: model is missing or incomplete",
        "checkpoint 3: model is missing or incomplete",
    )
    assert problems[2] == "checkpoint 4: its format is 2; this agent reads up to 1"
    assert problems[3].startswith("checkpoint 5: its manifest is damaged")

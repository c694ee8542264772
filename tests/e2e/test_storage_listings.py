"""Azurite lists and deletes by its index of names exactly as it does without it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from azure.storage.blob import ContainerClient

from tests.e2e.test_storage_scopes import running_azurite

NAMES = (
    "1", "2", "10", "1a", "1e3", "0x10", "9/1", "a", "a/", "a/b", "a/b/c", "a/b.c", "a/[b]*",
    "a-b/c",
    "A/b", "a/é", "a/\U0001f600", "a/Ω/x", "by-time/79738878856994-a", "by-time/.complete",
    "by-time/79738878856993-b", "index/a", "index/a$^(x)", "z/\uffee", "z/\ufffd/x",
)  # fmt: skip
PREFIXES = (
    "", "1", "9/", "a", "a/", "a/b", "a/b/", "a/[", "a-b/", "by-time/", "by-time/797388788569",
    "index/a$", "z/", "z/\ufffd", "nothing/", "a/é", "a/\U0001f600",
)  # fmt: skip


def listed(container: ContainerClient, prefix: str, **more: Any) -> list[str]:
    return [str(blob.name) for blob in container.list_blobs(prefix, **more)]


def expected(names: set[str], prefix: str) -> list[str]:
    # JavaScript compares units of UTF-16.
    matching = (name for name in names if name.startswith(prefix))
    return sorted(matching, key=lambda name: name.encode("utf-16-be"))


@pytest.mark.slow
def test_listings_and_deletions_by_the_index_of_names(tmp_path: Path) -> None:
    random = Random(33)
    with running_azurite(tmp_path / "home") as storage:
        container, other = storage.container("runs"), storage.container("data")
        for name in random.sample(NAMES, len(NAMES)):
            container.upload_blob(name, b"one")
            other.upload_blob(name, b"other")
        names, kept = set[str](NAMES), ""
        for gone in random.sample(NAMES, 8):
            for prefix in PREFIXES:
                assert listed(container, prefix) == expected(names, prefix), prefix
                assert listed(container, prefix, results_per_page=2) == expected(names, prefix)
            container.delete_blob(gone)
            names.remove(gone)
            assert not container.get_blob_client(gone).exists()
            kept = random.choice(sorted(names))
            container.upload_blob(kept, b"again", overwrite=True, metadata={"of": "x"})
            assert container.download_blob(kept).readall() == b"again"
        snapshot = str(container.get_blob_client(kept).create_snapshot()["snapshot"])
        assert len(listed(container, kept, include=["snapshots"])) > len(listed(container, kept))
        container.delete_blob(kept, delete_snapshots="include")
        assert not container.get_blob_client(kept, snapshot=snapshot).exists()
        assert set(listed(other, "")) == set(NAMES)

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runner.azure.storage.blobs import BlobInfo
from runner.features.reconcile.stored import newest_parts

_COSTS = "costs/costs-runner-dev"


def _blob(name: str, day: int) -> BlobInfo:
    return BlobInfo(f"{_COSTS}/{name}", 1, modified=datetime(2026, 11, day, tzinfo=UTC))


@pytest.mark.feature(54)
def test_newest_run_of_each_month_counts_with_all_its_parts() -> None:
    october, november = "20261001-20261031", "20261101-20261130"
    blobs = [
        _blob(f"{october}/a/part_0_0001.csv", 1),
        _blob(f"{november}/z-older/part_0_0001.csv", 20),
        _blob(f"{november}/b/part_0_0001.csv", 21),
        _blob(f"{november}/b/part_1_0001.csv.gz", 21),
        _blob(f"{november}/b/manifest.json", 22),
        _blob("readme.csv", 23),
    ]
    assert [part.name.removeprefix(f"{_COSTS}/") for part in newest_parts(blobs)] == [
        f"{october}/a/part_0_0001.csv",
        f"{november}/b/part_0_0001.csv",
        f"{november}/b/part_1_0001.csv.gz",
    ]


def test_folder_of_an_export_by_its_time_is_found() -> None:
    name = "20261101-20261130/202611201200/1c2d/part_0_0001.csv"
    assert len(newest_parts([_blob(name, 1)])) == 1

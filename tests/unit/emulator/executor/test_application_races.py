"""Packages that are stored, replaced and deleted while others are at it."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_emulator.domain.applications import Applications
from batch_emulator.domain.faults import Fault
from batch_emulator.executor.application_packages import PackageError, PackageInstaller
from batch_emulator.executor.layout import NodeLayout

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFERENCE = {"applicationId": "app", "version": "1"}


def zipped(text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("f", text)
    return file.getvalue()


async def chunks(data: bytes, until: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    yield data[:10]
    if until is not None:
        await until.wait()
    yield data[10:]


def test_application_deleted_during_an_upload_has_only_that_version(tmp_path: Path) -> None:
    async def main() -> None:
        applications = Applications(tmp_path)
        await applications.store("app", "1", chunks(zipped("one")), NOW)
        go_on = asyncio.Event()
        upload = asyncio.ensure_future(
            applications.store("app", "2", chunks(zipped("two"), go_on), NOW)
        )
        await asyncio.sleep(0)
        applications.delete("app", None)
        go_on.set()
        await upload
        assert list(applications.require("app").versions) == ["2"]
        assert list(Applications(tmp_path).require("app").versions) == ["2"]

    asyncio.run(main())


def test_fixed_version_is_stored_once_by_concurrent_uploads(tmp_path: Path) -> None:
    async def main() -> None:
        applications = Applications(tmp_path)
        applications.change("app", {"allowUpdates": False})
        go_on = asyncio.Event()
        slow = asyncio.ensure_future(
            applications.store("app", "1", chunks(zipped("slow"), go_on), NOW)
        )
        await asyncio.sleep(0)
        first = await applications.store("app", "1", chunks(zipped("first")), NOW)
        go_on.set()
        with pytest.raises(Fault):
            await slow
        found = applications.find(REFERENCE)
        assert found == first
        assert zipfile.ZipFile(first.zip).read("f") == b"first"

    asyncio.run(main())


def test_package_replaced_before_opening_is_installed_in_its_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        applications = Applications(tmp_path / "a")
        old = await applications.store("app", "1", chunks(zipped("old")), NOW)
        new = await applications.store("app", "1", chunks(zipped("new")), NOW)
        assert not old.zip.exists()
        answers = [old, new]
        monkeypatch.setattr(applications, "find", lambda _: answers.pop(0))
        layout = NodeLayout(tmp_path / "node" / "tasks")
        layout.create()
        found = await PackageInstaller(applications).for_task([REFERENCE], layout)()
        [folder] = set(found.values())
        assert (Path(folder) / "f").read_text() == "new"

    asyncio.run(main())


def test_package_deleted_before_opening_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        applications = Applications(tmp_path / "a")
        old = await applications.store("app", "1", chunks(zipped("old")), NOW)
        applications.delete("app", "1")
        answers = [old, None]
        monkeypatch.setattr(applications, "find", lambda _: answers.pop(0))
        layout = NodeLayout(tmp_path / "node" / "tasks")
        layout.create()
        install = PackageInstaller(applications)._install  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(PackageError, match="has no such version"):
            await install([REFERENCE], layout)
        assert list(layout.applications.iterdir()) == []

    asyncio.run(main())

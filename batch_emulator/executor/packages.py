"""Application packages on nodes: unpacked once per node, named by variables of its tasks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from batch_emulator.applications import Applications, Package, reference_text, short_id
from batch_emulator.deletion import remove_tree
from batch_emulator.executor.launch import USER_ERROR, ExecutionError, Failure
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_setup import Booted, NodeError, Step
from batch_emulator.executor.unpacking import BrokenArchiveError, unpack

log = logging.getLogger(__name__)

CODE = "ApplicationPackageError"
_INVALID = "One or more application packages specified for the {} are invalid"
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")
Reference = Mapping[str, Any]


class PackageError(Exception):
    """A package cannot be installed: which, and why."""

    def __init__(self, reference: Reference, why: str) -> None:
        super().__init__(why)
        self.details = (
            ("ApplicationPackageReference", reference_text(reference)),
            ("Message", why),
        )


class _GoneError(Exception):
    """The package was replaced or deleted before it was opened."""


def variables(reference: Reference, package: Package, folder: Path) -> dict[str, str]:
    """The variables that name a package: with its version, and without when none was asked for.

    Both were seen on nodes whose pool names no version. The id keeps its case (docs).
    """
    names = [f"{package.application}_{package.version}"]
    if not reference.get("version"):
        names.append(package.application)
    return {f"AZ_BATCH_APP_PACKAGE_{_NOT_ALPHANUMERIC.sub('_', one)}": str(folder) for one in names}


def installed(layout: NodeLayout) -> dict[str, str]:
    """The variables of the packages that came with the node's last boot."""
    try:
        return json.loads(layout.packages.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        log.warning("%s cannot be read: %s", layout.packages, err)
        return {}


class Packages:
    """Installs the packages of pools and of tasks; tasks of a node share what is there."""

    def __init__(self, applications: Applications) -> None:
        self._applications = applications
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def step(self) -> Step:
        """The part of a node's set-up that installs the packages of its pool."""
        return Step(
            "application packages",
            lambda spec: bool(spec.get("applicationPackageReferences")),
            self._for_pool,
        )

    async def _for_pool(self, node: Booted) -> None:
        references: list[Reference] = node.spec["applicationPackageReferences"]
        try:
            found = await self._install(references, node.layout)
            node.layout.packages.write_text(json.dumps(found))
        except PackageError as err:
            raise NodeError(CODE, _INVALID.format("pool"), err.details) from err

    def for_task(
        self, references: Iterable[Reference], layout: NodeLayout
    ) -> Callable[[], Awaitable[dict[str, str]]]:
        """What installs the packages of a task and returns their variables.

        Raises ExecutionError, of the user [S].
        """

        async def install() -> dict[str, str]:
            try:
                return await self._install(references, layout)
            except PackageError as err:
                failure = Failure(USER_ERROR, CODE, _INVALID.format("task"), err.details)
                raise ExecutionError(failure) from err

        return install

    async def _install(self, references: Iterable[Reference], layout: NodeLayout) -> dict[str, str]:
        found: dict[str, str] = {}
        for reference in references:
            found |= await self._install_one(reference, layout)
        return found

    async def _install_one(self, reference: Reference, layout: NodeLayout) -> dict[str, str]:
        while True:
            package = self._applications.find(reference)
            if package is None:
                raise PackageError(reference, _missing(reference))
            folder = layout.applications / package.folder_name
            lock = self._locks.setdefault(folder, asyncio.Lock())
            async with lock:
                if not folder.is_dir():
                    try:
                        await self._unpack(reference, package, folder)
                    except _GoneError:
                        continue
            return variables(reference, package, folder)

    async def _unpack(self, reference: Reference, package: Package, folder: Path) -> None:
        stop = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(_unpack, package.zip, folder, stop))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({work})
            raise
        except BrokenArchiveError as err:
            raise PackageError(reference, f"Resource extraction failed: {err}") from err
        except OSError as err:
            if folder.parent.is_dir() and not package.zip.exists():
                raise _GoneError from err
            why = err.strerror or str(err)
            raise PackageError(reference, f"Resource download failed: {why}") from err


def _missing(reference: Reference) -> str:
    wanted = "version" if reference.get("version") else "default version"
    return f"Resource download failed: '{short_id(reference)}' has no such {wanted}"


def _unpack(archive: Path, folder: Path, stop: threading.Event) -> None:
    """Unpack beside the folder and rename, so that what has its name is whole."""
    beside = folder.parent / f".{uuid4().hex}"
    beside.mkdir()  # the node's folders exist, or it is gone
    try:
        unpack(archive, beside, stop)
        beside.rename(folder)
    finally:
        remove_tree(beside)

"""One running emulator: its account, store, clock and background loop, opened from a data dir."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from batch_emulator.domain.account import Account, Limits
from batch_emulator.domain.applications import Applications, Certificates
from batch_emulator.domain.clock import Clock, SystemClock
from batch_emulator.domain.fault_rules import RuleSet
from batch_emulator.domain.model import (
    Job,
    JobSchedule,
    JobState,
    Json,
    Node,
    Pool,
    PoolState,
    ScheduleState,
    parts,
)
from batch_emulator.domain.request_metrics import RequestMetrics
from batch_emulator.domain.transitions import eviction, fault_rules, job_schedules, jobs, pools
from batch_emulator.executor.application_packages import PackageInstaller
from batch_emulator.executor.blob_client import NodeIdentity
from batch_emulator.executor.blob_mounts import BlobMounts, forget_leftovers, mounted_below
from batch_emulator.executor.executor import Executor
from batch_emulator.executor.isolation import Isolation, choose_isolation, remove_abandoned
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_images import ImageFolder, NodeImages
from batch_emulator.executor.node_mounts import NodeMounts
from batch_emulator.executor.node_setup import Booted, NodeSetup
from batch_emulator.executor.processes import kill_node_processes
from batch_emulator.executor.task_containers import TaskContainers
from batch_emulator.files_share.shares import Shares, StorageAccount
from batch_emulator.folders import remove_below, remove_tree, shortage
from batch_emulator.launches import LaunchBuilder, NodeNames
from batch_emulator.loop import Loop
from batch_emulator.proxies import exclude_loopback
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import AccountStore, StoreFormatError, store_name
from batch_emulator.storage.exports import (
    APPLICATIONS,
    CERTIFICATES,
    ExportedAccount,
    import_account,
    require_empty,
)


def delete_everything(account: Account, now: datetime) -> None:
    """Begin to delete all schedules, jobs and pools, at once; the loop finishes it."""
    account.hurried |= entities_of(account)
    for schedule in list(account.schedules.values()):
        if schedule.state is not ScheduleState.DELETING:
            job_schedules.delete(account, schedule, now)
    for job in list(account.jobs.values()):
        if job.state is not JobState.DELETING:
            jobs.delete(account, job, now)
    for pool in list(account.pools.values()):
        if pool.state is not PoolState.DELETING:
            pools.delete(account, pool, now)
    account.dirty_schedules.update(account.schedules)  # those that clients deleted before, too
    account.dirty_jobs.update(account.jobs)
    account.dirty_pools.update(account.pools)


def entities_of(account: Account) -> set[JobSchedule | Job | Pool]:
    """Return all schedules, jobs and pools."""
    return {*account.schedules.values(), *account.jobs.values(), *account.pools.values()}


log = logging.getLogger(__name__)

_ALWAYS_PASSED = ("LANG",)
_RESET_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """The settings of an emulator. `key` is base64; patterns name variables that tasks inherit."""

    data_dir: Path
    account: str
    key: str = field(repr=False)
    url: str = "http://127.0.0.1"
    limits: Limits = field(default_factory=Limits)
    pass_env: tuple[str, ...] = ()
    kill_grace_s: float = 5.0
    storage: StorageAccount | None = None  # its shares are served and mounted
    blob_endpoint: str | None = None  # for mounts of containers; the path is the account
    time_scale: float = 1.0
    container_engine: str = "auto"  # or podman, docker, none, a path
    container_options: tuple[str, ...] = ()  # for every container
    isolation: str = "environment"  # or user, auto
    names: NodeNames | None = None  # Azure's host names, served to tasks
    faults: RuleSet = field(default_factory=RuleSet)
    images: tuple[ImageFolder, ...] = ()  # what images of nodes have
    exposed: bool = False  # other machines reach its ports, under any host name
    files_url: str = ""  # of the storage account, if its shares are served


class Emulator:
    """A running emulator and its parts. `isolation` is by default the one of the settings.

    Raises StoreInUseError, StoreFormatError, IsolationError if tasks cannot run as another user, or
    ImageError if they cannot run the programs of an image.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        clock: Clock | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock(settings.time_scale)
        if isolation is None:
            isolation = choose_isolation(settings.isolation, settings.data_dir)
        self.isolation = isolation
        self.images = NodeImages(settings.images, isolation.owner)
        self.store = AccountStore(settings.data_dir)
        store_name(settings.data_dir, settings.account)
        if settings.blob_endpoint is not None:
            self.store.follow_storage(settings.blob_endpoint)
        isolation.settle(settings.data_dir)
        self.shares = settings.storage and Shares(
            settings.data_dir, settings.storage, isolation.folder, isolation.owner
        )
        self.account = Account(settings.account, settings.limits, _network(settings.data_dir))
        environment = inherited_environment(os.environ, settings.pass_env)
        self.applications = Applications(settings.data_dir / APPLICATIONS)
        self.service_logs = settings.data_dir / "service-logs"  # while they are uploaded
        self.transfers = settings.data_dir / "transfers"  # exported accounts on their way
        self.starting: str | None = None  # why the emulator is not ready yet
        self.certificates = Certificates(settings.data_dir / CERTIFICATES)
        self.account.check_references = self._check_references
        self.account.image_of = self.images.folder_of
        self.requests = RequestMetrics()
        self.new_page_link: Callable[[], str] | None = None  # set if the page is served
        packages = PackageInstaller(self.applications, isolation.owner)
        self.launches = self._launches(packages, environment.get("PATH"))
        self.containers = TaskContainers(
            settings.data_dir, settings.container_engine, settings.container_options
        )
        self.identity = _identity(settings)
        self.executor = Executor(
            identity=self.identity,
            pass_environment={**environment, **isolation.variables},
            kill_grace_s=settings.kill_grace_s,
            containers=self.containers,
            owner=isolation.owner,
        )
        blobs = BlobMounts(settings.blob_endpoint, self.identity, isolation.owner)
        self._mounts = mounts = NodeMounts(isolation.folder, self.shares, blobs, isolation.owner)
        steps = [mounts.step(), packages.step(), self.containers.step()]
        self.node_setup = NodeSetup(steps, mounts.blobs, self._prepare_node)
        self.loop = Loop(
            self.account, self.store, self.executor, self.clock, self.launches, self.node_setup
        )
        self.started: datetime = self.clock.now()
        self._background: asyncio.Task[None] | None = None
        isolation.close_folders(settings.data_dir)
        self._load()

    def _launches(self, packages: PackageInstaller, node_path: str | None) -> LaunchBuilder:
        settings = self.settings
        return LaunchBuilder(
            settings.data_dir,
            settings.account,
            settings.url,
            node_path,
            packages=packages,
            certificates=self.certificates,
            time_scale=self.clock.scale,
            imds=partial(eviction.imds_url, settings.url, settings.key),
            folder=self.isolation.folder,
            names=settings.names,
            images=self.images,
        )

    def _prepare_node(self, layout: NodeLayout, pool: Mapping[str, Any]) -> None:
        """Create the folders and files beside the root of a node. Blocks. Raises OSError."""
        image = self.images.of(pool)
        self.isolation.prepare_node(layout, image and image.python)
        if self.settings.names is not None:
            self.settings.names.write(layout)
        else:
            remove_tree(layout.authorities)

    def _check_references(self, pool: Json) -> None:
        self.applications.check(parts(pool, "applicationPackageReferences"))
        self.check_certificates(pool)

    def check_certificates(self, pool: Json) -> None:
        """Refuse a pool that names a certificate that is missing or being deleted. Raises Fault."""
        self.certificates.settle(self.account.pools.values(), self.clock.now())
        self.certificates.check(parts(pool, "certificateReferences"))

    def _load(self) -> None:
        self.containers.remove_leftovers()
        kill_node_processes(self.launches.nodes)
        forget_leftovers(self.launches.nodes)
        try:
            self._load_account()
        except (LookupError, TypeError, ValueError, AttributeError) as err:
            self.store.close()
            raise StoreFormatError(f"its state cannot be read ({err!r})") from err
        fault_rules.load(self.account, self.settings.faults, self.clock.now())
        self.store.write(self.account.take_journal())
        self._delete_leftovers()

    def _load_account(self) -> None:
        known = (self.store.newest(), self.certificates.newest())
        newest = max((time for time in known if time is not None), default=None)
        if newest is not None:
            self.clock.resume(newest)
        with restart.without_collection():
            restart.load(self.account, self.store, self.clock.now(), self._has_disk)
        restart.spread_samples(self.account, self.clock.now())
        self.store.write(self.account.take_journal())

    def import_account(self, exported: ExportedAccount) -> None:
        """Take over a checked account; this one must be empty. Raises ExportError."""
        require_empty(self.account)
        self.store.write(self.account.take_journal())  # not after the rows of the import
        import_account(self.store, exported)
        self.account.usage.clear()
        if self.settings.blob_endpoint is not None:
            self.store.follow_storage(self.settings.blob_endpoint)
        self.applications.read()
        self.certificates.read()
        self._load_account()
        for pool in self.account.pools.values():
            self._follow_image(pool)
        self.loop.wake()

    def _has_disk(self, node: Node) -> bool:
        return self.launches.layout(node.pool.id, node.id).root.is_dir()

    def _delete_leftovers(self) -> None:
        """Delete what a crash left: nodes, folders being deleted, and logs being uploaded."""
        remove_tree(self.launches.trash)
        remove_tree(self.service_logs)
        remove_tree(self.transfers)
        known = {
            self.launches.node_dir(pool.id, node.id)
            for pool in self.account.pools.values()
            for node in pool.nodes.values()
            if node.booted is not None  # otherwise its disk was about to be deleted
        }
        for folder in self.launches.nodes.glob("*/*"):
            if folder not in known and not mounted_below(folder):  # never delete a mount's files
                remove_below(folder, self.launches.nodes)

    def start(self) -> None:
        """Start the background work; needs a running event loop."""
        for pool in self.account.pools.values():
            self._follow_image(pool)
            for node in pool.nodes.values():
                layout = self.launches.layout(pool.id, node.id)
                if layout.root.is_dir():
                    self._prepare_node(
                        layout, pool.spec
                    )  # it may be from another mode or an older version
                self._mounts.resume(Booted(pool.id, node.id, pool.spec, layout))
        if self.isolation.owner is not None:
            self.loop.spawn(asyncio.to_thread(remove_abandoned))
        self._background = asyncio.get_running_loop().create_task(self.loop.run())
        self._background.add_done_callback(_report)

    def _follow_image(self, pool: Pool) -> None:
        """Record the folder of a pool's image, and log if it is another one than before."""
        folder = self.images.folder_of(pool.spec)
        if folder != pool.image:
            before, after = (one or "no folder" for one in (pool.image, folder))
            log.warning("the image of pool %s has %s now, before %s", pool.id, after, before)
            pool.image = folder
            self.account.save_pool(pool)

    @property
    def healthy(self) -> bool:
        """Return True while the background work runs."""
        running = self._background is not None and not self._background.done()
        return running and not self.store.failed

    @property
    def trouble(self) -> str | None:
        """Return why a healthy emulator accepts nothing new, or None."""
        found = self.store.blocked or shortage(self.settings.data_dir)
        if found is not None:
            self.loop.make_room()
        return found

    async def reset(self) -> None:
        """End and delete all jobs, schedules and pools; return when they are gone.

        Entities that are added in the meantime stay.
        """
        doomed = entities_of(self.account)
        delete_everything(self.account, self.clock.now())
        self.loop.wake()
        while self.healthy and doomed:
            await asyncio.sleep(_RESET_POLL_S)
            doomed &= entities_of(self.account)
        self.account.hurried &= entities_of(self.account)

    async def close(self) -> None:
        """Stop everything that runs. The state on disk is then as after a crash."""
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})
        await self.loop.close()
        if self.shares is not None:
            self.shares.close()
        self.store.close()


def _identity(settings: EmulatorSettings) -> NodeIdentity | None:
    account = settings.storage
    endpoint = settings.blob_endpoint
    return account and NodeIdentity(account.name, account.key, endpoint, account.seed)


def _network(data_dir: Path) -> int:
    """Return a network; two emulators have the same with a probability of 1/250 [S]."""
    return 1 + hashlib.sha256(os.fsencode(data_dir.absolute())).digest()[0] % 250


def _report(background: asyncio.Task[None]) -> None:
    if not background.cancelled() and background.exception() is not None:
        log.critical("the background work failed", exc_info=background.exception())


def inherited_environment(
    environment: Mapping[str, str], patterns: tuple[str, ...]
) -> dict[str, str]:
    """Return the variables of this process that tasks inherit: LANG and matches of the patterns.

    Nodes have their own PATH, unless a pattern matches PATH.
    """
    wanted = (*_ALWAYS_PASSED, *patterns)
    passed = {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in wanted)
    }
    return {**passed, **exclude_loopback(passed)}

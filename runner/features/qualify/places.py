"""The pools that a qualification measures: two of its own on this machine, or those of a stack."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Protocol

from runner.azure.auth.credentials import Connection
from runner.azure.batch.job_control import note_job, read_job
from runner.azure.batch.pools import (
    delete_pool,
    ensure_pool,
    find_pool,
    resize_pool,
    restart_node,
)
from runner.contract import PoolOutput
from runner.core.home import HomePaths
from runner.core.job_moves import JobNote, may_claim
from runner.core.planning.fallback import listed_pools
from runner.core.planning.pool_choice import choose_pool, pools_for
from runner.core.settings import Settings
from runner.flows.local.evict import evict
from runner.flows.local.state import (
    ensure_keys,
    load_isolation,
    load_state,
    make_node_cache,
    pool_spec,
    services_down,
)
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import NO_RESOURCES, RunSpec

PREFIX = "qualify-"
_AWAY_S = 3600.0  # an evicted pool stays empty for longer than a qualification takes
_CLAIMS = 5


class Place(Protocol):
    """Two pools, the way to get nodes, and the way to lose them.

    Attributes:
        first: The pool that is measured.
        second: The pool that runs fall over to; None if there is none.
        own: Those of them that `open` creates.
    """

    connection: Connection
    first: PoolOutput
    second: PoolOutput | None
    own: tuple[PoolOutput, ...]

    def open(self) -> None:
        """Make the pools ready; they may have no nodes."""
        ...

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        """Ask for nodes, unless the pool does so by itself for waiting tasks."""
        ...

    def take_node(self, spec: RunSpec, node: str) -> str:
        """Take the node of a run. Return what was done, in words."""
        ...

    def take_pool(self, spec: RunSpec) -> str:
        """Let a run lose its pool, so that it moves to the second. Return what was done."""
        ...


class LocalPlace:
    """Two new pools of the local services, so that the runs of others lose no node."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self.settings = settings
        suffix = secrets.token_hex(3)
        template = replace(connection.outputs.pools[0], max_nodes=256, task_nodes=1)
        self.first = replace(template, id=f"{PREFIX}{suffix}-a")
        self.second: PoolOutput | None = replace(template, id=f"{PREFIX}{suffix}-b")
        self.own = (self.first, self.second)
        pools = (*connection.outputs.pools, *self.own)
        self.connection = connection
        connection.outputs = replace(connection.outputs, pools=pools)

    def open(self) -> None:
        """Create both pools, without nodes."""
        paths = HomePaths(self.settings.home)
        state = load_state(paths)
        if state is None:
            raise services_down()
        cache = make_node_cache(paths, load_isolation(state))
        spec = pool_spec(state, ensure_keys(paths)["storage"], cache)
        for pool in self.own:
            own = replace(spec, id=pool.id, spot_nodes=0, slots_per_node=1, inter_node=False)
            ensure_pool(self.connection, own)

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        """Resize a pool."""
        resize_pool(self.connection, pool.id, spot=nodes, dedicated=0)

    def take_node(self, spec: RunSpec, node: str) -> str:
        """Evict the node without notice; another one takes its place."""
        evict(self.settings, node=node, pool=spec.pool, notice_s=0)
        return "evicted without notice"

    def take_pool(self, spec: RunSpec) -> str:
        """Evict all nodes of its pool for a long time."""
        evict(self.settings, pool=spec.pool, everything=True, notice_s=0, away_s=_AWAY_S)
        return "all nodes of the pool were evicted"


class StackPlace:
    """Pools of a stack, which get nodes for waiting tasks by their formulas.

    Azure evicts nobody on request, so nodes are restarted, and the move to the second pool is
    requested in the way in which a client does when it is due.
    """

    def __init__(self, connection: Connection, settings: Settings, second: str | None) -> None:
        self.connection = connection
        self.own: tuple[PoolOutput, ...] = ()
        outputs = connection.outputs
        fitting = pools_for(None, settings.pool, outputs)
        self.first = choose_pool(settings.pool, fitting, NO_RESOURCES, NO_RESOURCES)
        self.second: PoolOutput | None = None
        if second is not None:
            [self.second] = listed_pools((second,), (), outputs, {})
        if self.second is not None and self.second.id == self.first.id:
            raise RunnerError(
                "R-FLAG-VALUE",
                f"--second-pool {second} is the pool that is measured",
                why="a run falls over to another pool",
                fix="name another pool of the stack: runner pool ls",
            )

    def open(self) -> None:
        """Fail now if a pool does not exist."""
        for pool in (self.first, self.second):
            if pool is not None and find_pool(self.connection, pool.id) is None:
                raise RunnerError(
                    "R-POOL-MISSING",
                    f"pool {pool.id!r} does not exist in Azure",
                    why="the stack declares it",
                    fix="run `runner up`, which creates it again",
                )

    def ask(self, pool: PoolOutput, nodes: int) -> None:
        """Do nothing: the formula of the pool asks for the nodes of waiting tasks."""

    def take_node(self, spec: RunSpec, node: str) -> str:
        """Restart the node; its task returns to the queue."""
        restart_node(self.connection, spec.pool, node)
        return "node restarted, because Azure evicts nobody on request"

    def take_pool(self, spec: RunSpec) -> str:
        """Request the move that a client requests when a run was evicted too often."""
        second = self.second.id if self.second else ""
        note = JobNote("fallback", spec.run_id, second, "evicted")
        for _ in range(_CLAIMS):  # another client may change the job at the same time
            job = read_job(self.connection, spec.job_id)
            if job is not None and may_claim(job) and note_job(self.connection, job, note):
                return "move requested, because Azure evicts nobody on request"
        return "the move could not be requested: the job was changed by somebody else"


def refuse_pools_here(settings: Settings, second: str | None) -> None:
    """Raise RunnerError for an option that names a pool of this machine."""
    flag = "--second-pool" if second else "--pool"
    if not settings.target.runs_here or not (second or settings.origins["pool"] == flag):
        return
    raise RunnerError(
        "R-FLAG-VALUE",
        f"unexpected {flag}: this machine has no pools to measure",
        why="on this machine, qualify creates two pools of its own and removes them",
        fix=f"--target azure, or remove {flag}",
    )


def refuse_nodes(place: Place, nodes: int) -> None:
    """Raise RunnerError for more nodes than the pool may have."""
    most = place.first.max_nodes
    if nodes > most:
        raise RunnerError(
            "R-FLAG-VALUE",
            f"--nodes {nodes}: pool {place.first.id} has at most {most}",
            why="the stack sets the maximum of a pool",
            fix=f"--nodes {most}, or raise the maximum in the stack and run `runner up`",
        )


def open_place(connection: Connection, settings: Settings, second: str | None) -> Place:
    """Return the pools to measure: those of a stack, or two new ones on this machine."""
    if settings.target.runs_here:
        return LocalPlace(connection, settings)
    return StackPlace(connection, settings, second)


def remove_pool(connection: Connection, pool_id: str, limit_s: float) -> bool:
    """Delete a pool. Return False if it still exists after the limit."""
    deadline = time.monotonic() + limit_s
    delete_pool(connection, pool_id)
    while find_pool(connection, pool_id) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True

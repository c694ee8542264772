"""Evaluate autoscale formulas on a pool, simulate them, and check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.pools import (
    FORMULA_CODES,
    PoolAutoscale,
    PoolView,
    enable_autoscale,
    evaluate_formula,
    list_pools,
)
from runner.core.pricing.machines import find_machine
from runner.core.pricing.prices import load_price_table
from runner.core.settings import Settings
from runner.features.simulation.engine import simulate
from runner.features.simulation.formula_lint import Finding, lint
from runner.features.simulation.result import SimulationResult
from runner.features.simulation.scenario import Scenario, ScenarioError
from runner.flows.environment.pools import get_pool
from runner.protocol.errors import RunnerError


def evaluate(settings: Settings, pool_id: str | None, text: str) -> tuple[PoolView, PoolAutoscale]:
    """Evaluate a formula on a pool without changing it. Return the pool and the result.

    Args:
        settings: the target.
        pool_id: the pool; by default that of the settings, or the only one that has a formula.
        text: a formula, or the path of a file with one.

    Raises:
        RunnerError: the file cannot be read, no pool is chosen, or the pool has no formula.
    """
    formula = read_formula(text)
    connection = connect(settings)
    pool, _ = _scaled_pool(connection, settings, pool_id)
    return pool, evaluate_formula(connection, pool.id, formula)


def _scaled_pool(
    connection: Connection, settings: Settings, pool_id: str | None
) -> tuple[PoolView, PoolAutoscale]:
    """Return the named pool, or the only one that has a formula, with its autoscale."""
    named = pool_id or settings.pool
    pool = get_pool(connection, named) if named else _only_scaled_pool(connection, settings)
    if pool.autoscale is None:
        raise _not_autoscaled(pool, connection, settings)
    return pool, pool.autoscale


@dataclass(frozen=True, slots=True)
class LastEvaluation:
    """The last evaluation of a pool's formula; `overdue` is True if the next one is late."""

    pool: PoolView
    run: PoolAutoscale
    age_s: float | None
    overdue: bool


def last_evaluation(settings: Settings, pool_id: str | None) -> LastEvaluation:
    """Return time and result of the last evaluation of a pool's formula.

    Raises:
        RunnerError: no pool is chosen, or it has no formula.
    """
    pool, run = _scaled_pool(connect(settings), settings, pool_id)
    if run.evaluated is None:
        return LastEvaluation(pool, run, None, overdue=False)
    age_s = max(0.0, (datetime.now(UTC) - run.evaluated).total_seconds())
    return LastEvaluation(pool, run, age_s, age_s > 2 * run.interval_s)


@dataclass(frozen=True, slots=True)
class FormulaChange:
    """A planned change of a pool's formula.

    Attributes:
        pool: The present pool, with its formula if it has one.
        formula: The new formula.
        interval_s: Time between two evaluations; None keeps it.
        findings: Warnings about the formula.
        evaluation: The present result of the formula; None for a pool without a formula, whose
            samples the service does not collect.
    """

    pool: PoolView
    formula: str
    interval_s: float | None
    findings: Sequence[Finding]
    evaluation: PoolAutoscale | None


def plan_formula(
    settings: Settings, pool_id: str | None, text: str, interval_s: float | None = None
) -> FormulaChange:
    """Plan the change of a pool's formula. Change nothing.

    Args:
        settings: The target.
        pool_id: The pool; by default that of the settings, or the only one that has a formula.
        text: A formula, or the path of a file with one.
        interval_s: Time between two evaluations; None keeps it.

    Raises:
        RunnerError: R-FORMULA-DECLARED, the stack declares the pool; R-FORMULA-INVALID, the formula
            cannot work; or no pool is chosen.
    """
    formula = read_formula(text)
    connection = connect(settings)
    named = pool_id or settings.pool
    pool = get_pool(connection, named) if named else _only_scaled_pool(connection, settings)
    declared = any(each.id.lower() == pool.id.lower() for each in connection.outputs.stack_pools)
    if declared and settings.target.has_stacks:
        raise RunnerError(
            "R-FORMULA-DECLARED",
            f"stack {settings.stack!r} declares pool {pool.id!r}",
            why="the pool would differ from the stack, and the next `runner up` would restore the "
            "formula of the stack",
            fix=f"set `scenario: formula` and `formula` of the pool in Pulumi.{settings.stack}.yaml"
            " and run `runner up`",
        )
    if pool.allocation != "steady":
        raise RunnerError(
            "R-POOL-RESIZING",
            f"pool {pool.id!r} is {pool.allocation}",
            why="the formula of a pool cannot be changed during a resize",
            fix=f"wait until `runner pool show {pool.id}` shows steady, then try again",
        )
    now_s = pool.autoscale.interval_s if pool.autoscale else None
    findings = lint(formula, slots=pool.slots, interval_s=interval_s or now_s)
    wrong = next((each for each in findings if each.level == "error"), None)
    if wrong is not None:
        place = "" if wrong.line is None else f"line {wrong.line}: "
        raise _invalid(pool, f"{place}{wrong.what}", wrong.better)
    found = None
    if pool.autoscale is not None:
        found = evaluate_formula(connection, pool.id, formula)
        if found.error is not None and found.error.code in FORMULA_CODES:
            raise _invalid(pool, f"{found.error.code}: {found.error.message}", "correct the line")
    return FormulaChange(pool, formula, interval_s, findings, found)


def _invalid(pool: PoolView, why: str, better: str) -> RunnerError:
    return RunnerError(
        "R-FORMULA-INVALID", f"the formula does not work on pool {pool.id!r}", why=why, fix=better
    )


def apply_formula(settings: Settings, change: FormulaChange) -> None:
    """Set the planned formula; the service evaluates it when the next evaluation is due."""
    interval = None if change.interval_s is None else timedelta(seconds=change.interval_s)
    enable_autoscale(connect(settings), change.pool.id, change.formula, interval)


def read_formula(text: str) -> str:
    """Return a formula, or the formula in a file. Raise R-FORMULA-READ if it is neither."""
    if not text.strip() or text.lstrip().startswith("="):
        raise RunnerError(
            "R-FORMULA-READ",
            f"{text!r} is not a formula",
            why="nothing precedes its `=`: a shell replaces $NAME between double quotes",
            fix="put the formula in single quotes: '$TargetLowPriorityNodes = 1;'",
        )
    if "=" in text or "\n" in text:  # every formula assigns a target
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as err:
        raise RunnerError(
            "R-FORMULA-READ",
            f"{text!r} is neither a formula nor a readable file",
            why=(err.strerror if isinstance(err, OSError) else None) or str(err),
            fix="use the path of a file, or a formula such as '$TargetLowPriorityNodes = 1;'",
        ) from err


def _only_scaled_pool(connection: Connection, settings: Settings) -> PoolView:
    scaled = [pool for pool in list_pools(connection) if pool.autoscale is not None]
    if len(scaled) == 1:
        return scaled[0]
    if not scaled:
        raise _not_autoscaled(None, connection, settings)
    names = sorted(pool.id for pool in scaled)
    raise RunnerError(
        "R-POOL-UNNAMED",
        f"{len(names)} pools have a formula",
        why=f"a formula is evaluated with the samples of one pool: {', '.join(names)}",
        fix=f"--pool {names[0]}",
    )


def _not_autoscaled(
    pool: PoolView | None, connection: Connection, settings: Settings
) -> RunnerError:
    pools = list_pools(connection)
    scaled = sorted(each.id for each in pools if each.autoscale is not None)
    some = pool or next(iter(pools), None)
    name, nodes = (some.id, some.spot_target) if some else ("POOL", 0)
    other = f"set its `scenario` in Pulumi.{settings.stack}.yaml and run `runner up`"
    if scaled:
        other = f"--pool {scaled[0]}"
    return RunnerError(
        "R-POOL-NOT-AUTOSCALED",
        f"pool {pool.id!r} has no formula" if pool else "no pool has a formula",
        why="Batch collects samples and evaluates formulas only for pools with autoscale",
        fix=other
        if scaled or settings.target.has_stacks
        else f"runner pool autoscale apply '$TargetLowPriorityNodes = {nodes};' --pool {name}",
    )


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """The pool of a simulation; None takes the value of the named pool or the default.

    Attributes:
        pool: A pool of the target; its formula, interval, slots and VM size are the defaults.
        slots: Task slots of a node.
        interval_s: Time between two evaluations.
        vm_size, region: Select the price of a node-hour.
        spot_usd, dedicated_usd: Prices of a node-hour.
    """

    pool: str | None = None
    slots: int | None = None
    interval_s: float | None = None
    vm_size: str | None = None
    region: str | None = None
    spot_usd: float | None = None
    dedicated_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A formula and its origin."""

    name: str
    formula: str


@dataclass(frozen=True, slots=True)
class AssumedPool:
    """The pool of a simulation, with prices per node-hour in USD; None if they are unknown."""

    candidates: Sequence[Candidate]
    slots: int
    interval_s: float
    vm_size: str | None
    region: str | None
    spot_usd: float | None
    dedicated_usd: float | None


def assume(
    settings: Settings,
    formulas: Sequence[str],
    given: PoolSetting,
    *,
    formula_required: bool = True,
) -> AssumedPool:
    """Return the formulas and the pool to simulate. Only a named pool needs a request.

    Args:
        settings: The target of `given.pool`.
        formulas: Formulas, or paths of files; empty for the formula of the pool.
        given: What the caller set.
        formula_required: Whether an error is raised if there is no formula.

    Raises:
        RunnerError: a formula is missing, a file cannot be read, or the pool or VM size is unknown.
    """
    candidates = [_candidate(text, number) for number, text in enumerate(formulas, 1)]
    slots, interval_s, size, region = given.slots, given.interval_s, given.vm_size, given.region
    if given.pool is not None:
        connection = connect(settings)
        view = get_pool(connection, given.pool)
        if view.autoscale is None and not candidates and formula_required:
            raise _not_autoscaled(view, connection, settings)
        if view.autoscale is not None:
            interval_s = interval_s or view.autoscale.interval_s
            if not candidates:
                candidates = [Candidate(view.id, view.autoscale.formula)]
        slots, size = slots or view.slots, size or view.vm_size
        region = region or connection.outputs.location
    if not candidates and formula_required:
        raise RunnerError(
            "R-FORMULA-MISSING",
            "no formula given",
            why="neither a formula nor a pool was given",
            fix="pass a formula, the path of a file, or a pool: --pool POOL",
        )
    spot_usd, dedicated_usd = given.spot_usd, given.dedicated_usd
    if given.vm_size is not None and None in (spot_usd, dedicated_usd):
        load_price_table(settings.home).check_size(given.vm_size)
    if given.region is not None:
        load_price_table(settings.home).check_region(given.region)
    if size is not None and region is not None:
        prices = load_price_table(settings.home)
        name = known.vm_size if (known := find_machine(size)) else size
        spot, dedicated = (prices.find_node(name, region, spot=each) for each in (True, False))
        if spot_usd is None and spot is not None:
            spot_usd = spot.usd_per_hour
        if dedicated_usd is None and dedicated is not None:
            dedicated_usd = dedicated.usd_per_hour
    return AssumedPool(
        candidates, slots or 1, interval_s or 900.0, size, region, spot_usd, dedicated_usd
    )


def _candidate(text: str, number: int) -> Candidate:
    formula = read_formula(text)
    return Candidate(f"formula {number}" if formula is text else text, formula)


def simulate_all(
    assumed: AssumedPool, scenario: Scenario
) -> list[tuple[Candidate, SimulationResult]]:
    """Simulate each candidate with the tasks and evictions of `scenario`.

    Raises:
        RunnerError: a formula has a syntax error, or a task never fits a node.
    """
    return [
        (each, simulate_pool(assumed, each.name, replace(scenario, formula=each.formula)))
        for each in assumed.candidates
    ]


def simulate_pool(assumed: AssumedPool, name: str, scenario: Scenario) -> SimulationResult:
    """Simulate a formula or policy, called `name`, on a pool. Raise R-SIMULATION."""
    interval_ms = round(assumed.interval_s * 1000)
    try:
        return simulate(replace(scenario, interval_ms=interval_ms, slots_per_node=assumed.slots))
    except ScenarioError as err:
        raise RunnerError(
            "R-SIMULATION",
            f"cannot simulate {name}",
            why=str(err),
            fix="correct the formula, or use as many --slots as a task needs",
        ) from err


def lint_all(
    assumed: AssumedPool, *, boot_s: float | None, spot: bool
) -> list[tuple[Candidate, list[Finding]]]:
    """Return the findings for each candidate."""
    return [
        (
            each,
            lint(
                each.formula,
                slots=assumed.slots,
                interval_s=assumed.interval_s,
                boot_s=boot_s,
                spot=spot,
            ),
        )
        for each in assumed.candidates
    ]

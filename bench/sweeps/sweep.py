"""Sweeps: submission, leaderboard and overhead of trials; evictions; TPE against random search.

Optuna must be installed (`pip install optuna`): it is the sampler, and also the peer, which runs
the same trials as local subprocesses.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import PeerMissingError, Ratio
from bench.services import RUNNER, local_services
from bench.sweeps.delay import delayed
from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.translate import to_task
from runner.azure.storage.blobs import in_parallel
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.sweep import SweepFile
from runner.core.settings import load_settings
from runner.flows.local.evict import evict
from runner.flows.runs.documents import index_run, runs_container
from runner.flows.submit.pipeline import Services, SubmissionPlan, open_and_plan, plan_submission
from runner.flows.submit.submit_group import submit_group
from runner.flows.submit.sweep import check_sweep
from runner.node.agent.early_stopping import stop_reason
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.results import RunResult
from runner.protocol.run_spec import CheckpointRule
from runner.protocol.samplers import SAMPLERS
from runner.protocol.sweeps import Point, StopRule, TrialReport, with_point

TRIALS = 1000
ROUNDS = 5
ROUND_TRIP_MS = 30  # from an office to a region of Azure
SMALL = 24  # trials that do nothing
LONGER = 16  # trials of LONG_S
LONG_S = 3
SLOTS = 2
SEEDS = 10
TRIED = 40  # trials of one search
SCRIPT = "import sys\nprint('loss: 0.5')\n"


def measure() -> Iterator[Ratio]:
    """Yield the results; the ones without services come last, because they take minutes."""
    if importlib.util.find_spec("optuna") is None:
        raise PeerMissingError("Optuna is the sampler and the peer: pip install optuna")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        with local_services(nodes=1, slots=SLOTS) as env:
            yield from _overhead(env, folder)
            yield from _thousand(env, folder)
    yield _evictions()
    yield from _searches()
    yield from _stopping()


def _overhead(env: dict[str, str], folder: Path) -> Iterator[Ratio]:
    """Compare sweeps with Optuna, which runs the same scripts as subprocesses."""
    _run_sweep(env, folder, "train.py", 2)  # builds the environment of the node
    ours = _run_sweep(env, folder, "train.py", SMALL) / SMALL
    peer = _run_study(folder, "train.py", SMALL) / SMALL
    name, slots = f"a trial of {SMALL} that do nothing", f"Optuna, {SLOTS} subprocesses"
    yield Ratio(name, "s", ours, slots, peer, "<= peer + 50 ms", ours <= peer + 0.05)
    (folder / "wait.py").write_text(f"import time\ntime.sleep({LONG_S})\n{SCRIPT}")
    with ThreadPoolExecutor(1) as other:  # in parallel, because their trials only wait
        studied = other.submit(_run_study, folder, "wait.py", LONGER)
        ours = _run_sweep(env, folder, "wait.py", LONGER)
        peer = studied.result()
    name = f"sweep of {LONGER} trials of {LONG_S} s, process start included"
    yield Ratio(name, "s", ours, slots, peer, "<= 1.2x", ours <= 1.2 * peer)


def _run_sweep(env: dict[str, str], folder: Path, script: str, trials: int) -> float:
    """Return the seconds that `runner sweep start` takes to run all trials."""
    values = ",".join(str(number) for number in range(trials))
    words = [RUNNER, "sweep", "start", script, "-p", f"n={values}", "-o", "json"]
    start = time.perf_counter()
    subprocess.run(words, env=env, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def _run_study(folder: Path, script: str, trials: int) -> float:
    """Return the seconds that Optuna takes to run the same trials."""
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any) -> float:
        number = trial.suggest_int("n", 0, trials)
        command = [sys.executable, script, "--n", str(number)]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return float(done.stdout.rpartition(" ")[2])

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    start = time.perf_counter()
    study.optimize(objective, n_trials=trials, n_jobs=SLOTS)
    return time.perf_counter() - start


def _thousand(env: dict[str, str], folder: Path) -> Iterator[Ratio]:
    settings = load_settings({"target": "local"}, cwd=folder, env=env)
    recipe = load_recipe("./train.py", cwd=folder)
    space = SweepFile.model_validate({"params": {"n": {"range": [1, TRIALS]}}, "max_parallel": 1})
    connection, away = connect(settings), connect(settings)

    def measure_round(connection: Connection) -> tuple[float, float, float, SubmissionPlan]:
        start = time.perf_counter()
        checked = check_sweep(recipe, space, RunOptions())
        services = Services(settings, connection.outputs, connection)
        plan = plan_submission(checked, services, ignore_progress)
        submit_group(connection, plan, ignore_progress)
        ours = time.perf_counter() - start
        raw = _create_tasks(connection, plan)
        start = time.perf_counter()
        stop = [RUNNER, "sweep", "stop", plan.run_group.group_id]
        subprocess.run(stop, env=env, check=True, capture_output=True)
        return ours, raw, time.perf_counter() - start, plan

    def submissions(connection: Connection, where: str) -> Iterator[Ratio]:
        measure_round(connection)  # not counted: it also imports modules and opens connections
        rounds.extend(measure_round(connection) for _ in range(ROUNDS))
        sent = statistics.median(each[0] for each in rounds[-ROUNDS:])
        peer = statistics.median(each[1] for each in rounds[-ROUNDS:])
        row = f"sweep of {TRIALS:,} submitted, {where}, median of {ROUNDS}"
        yield Ratio(row, "s", sent, "SDK create_tasks", peer, "<= 1.2x", sent <= 1.2 * peer)

    rounds: list[tuple[float, float, float, SubmissionPlan]] = []
    with _busy_node(connection):
        yield from submissions(connection, "no network")
        with delayed(away.outputs, ROUND_TRIP_MS) as away.outputs:
            yield from submissions(away, f"round trip {ROUND_TRIP_MS} ms")
    stopped = statistics.median(each[2] for each in rounds)
    name = f"sweep stop, {TRIALS:,} waiting trials, process start included"
    yield Ratio(name, "s", stopped, "the bound", 5.0, "< 5 s", stopped < 5)
    plan = rounds[-1][3]
    group = plan.run_group
    _finish(connection, plan.documents())
    took: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [RUNNER, "sweep", "show", group.group_id, "-o", "json"],
            env=env, check=True, capture_output=True,
        )  # fmt: skip
        took.append(time.perf_counter() - start)
        if len(json.loads(done.stdout)["trials"]) != TRIALS:
            raise RuntimeError("the leaderboard is not complete")
    shown = statistics.median(took)
    name = f"sweep show, {TRIALS:,} trials, process start included"
    yield Ratio(name, "s", shown, "the bound", 1.0, "< 1 s", shown < 1)


@contextmanager
def _busy_node(connection: Connection) -> Generator[None]:
    """Occupy the slots of the node, because its processes would compete with the submission."""
    client, models = connection.batch_client(), importlib.import_module("azure.batch.models")
    pool = models.BatchPoolInfo(pool_id=connection.outputs.pools[0].id)
    client.create_job(models.BatchJobCreateOptions(id="busy", pool_info=pool))
    sleep = [
        models.BatchTaskCreateOptions(id=f"sleep-{number}", command_line="/bin/sleep 600")
        for number in range(SLOTS)
    ]
    client.create_tasks("busy", sleep)
    while any(task.state != "running" for task in client.list_tasks("busy")):
        time.sleep(0.1)
    yield
    client.begin_delete_job("busy", polling_interval=1).wait()


def _create_tasks(connection: Connection, plan: SubmissionPlan) -> float:
    """Return how long the SDK takes to add tasks as large as those of the sweep to a job."""
    job_id = f"raw-{plan.run_group.group_id}"
    tasks = [to_task(run, connection) for run in plan.runs.values()]
    for task in tasks:  # the runs must not get a second agent
        task.command_line = "/bin/true"
    client = connection.batch_client()
    models: Any = importlib.import_module("azure.batch.models")
    pool = models.BatchPoolInfo(pool_id=plan.job.pool_id)
    client.create_job(
        models.BatchJobCreateOptions(
            id=job_id, pool_info=pool, max_parallel_tasks=1, uses_task_dependencies=True
        )
    )
    start = time.perf_counter()
    client.create_tasks(job_id, tasks)
    took = time.perf_counter() - start
    client.begin_delete_job(job_id, polling_interval=1).wait()
    return took


def _finish(connection: Connection, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the results of trials that were cancelled, as agents write them."""
    container, chance = runs_container(connection), random.Random(1)
    ended = datetime.now(UTC)
    losses = {name: chance.random() for name in documents}

    def finish(name: str) -> None:
        run = documents[name]
        result = RunResult(
            status="succeeded", attempt=1, evicted=0, exit_code=0, step=None, code=None,
            message=None, started=ended - timedelta(seconds=60), ended=ended, stages_s={},
            metrics={"loss": losses[name]}, outputs=(),
        ).to_json(run["run_id"])  # fmt: skip
        container.put(RunPaths(run["run_id"]).result, result)
        index_run(container, run, result)

    in_parallel(finish, documents)


# Evictions: count the trials that finish within BUDGET epochs. Without evictions, a sweep would
# finish LONG_TRIALS in them, and half of one more on each worker.
LONG_TRIALS = 20
EPOCHS = 50  # of a trial
EPOCHS_PER_EVICTION = 40
EPOCH_S = 0.1
PEER_EPOCH_S = 0.02
WORKERS = 4
BUDGET = LONG_TRIALS * EPOCHS + WORKERS * EPOCHS // 2
EVICTION_SEED = 16
EPOCH_SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int)
n = parser.parse_args().n
folder = os.environ.get("RUNNER_CHECKPOINT_DIR")
state = pathlib.Path(folder, "epoch.txt") if folder else None
begun = int(state.read_text()) if state and state.exists() else 0
worker = os.environ.get("AZ_BATCH_NODE_ID", os.getpid())
journal = os.open({journal!r}, os.O_WRONLY | os.O_APPEND)
for epoch in range(begun + 1, {epochs} + 1):
    time.sleep({epoch_s})
    os.write(journal, f"{{n}} {{epoch}} {{worker}}\\n".encode())
    if state:
        state.with_suffix(".new").write_text(str(epoch))
        state.with_suffix(".new").replace(state)
print(f"loss: {{1 / epoch}}")
"""


@dataclass
class _Journal:
    """The file with the completed epochs of a sweep, in order: trial, epoch, and worker."""

    path: Path
    epoch_s: float
    evictions: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(EVICTION_SEED))

    def script(self) -> str:
        """Return the script of the trials, which writes to the journal."""
        self.path.touch()
        self.path.chmod(0o666)
        return EPOCH_SCRIPT.format(journal=str(self.path), epochs=EPOCHS, epoch_s=self.epoch_s)

    def lines(self) -> list[tuple[int, int, str]]:
        """Return the epochs within the budget."""
        words = map(str.split, self.path.read_text().splitlines()[:BUDGET])
        return [(int(n), int(epoch), worker) for n, epoch, worker in words]

    def evict_until_spent(self, evict_worker: Callable[[str], bool]) -> int:
        """Evict a worker every 40 epochs, until the budget is spent. Return the finished trials."""
        due = self.chance.expovariate(1 / EPOCHS_PER_EVICTION)
        while len(lines := self.lines()) < BUDGET:
            if len(lines) >= due:
                workers = sorted({worker for _, _, worker in lines[-2 * WORKERS :]})
                if evict_worker(self.chance.choice(workers)):
                    self.evictions += 1
                    due += self.chance.expovariate(1 / EPOCHS_PER_EVICTION)
            time.sleep(self.epoch_s / 5)
        # A trial may write its last epoch again, if it was evicted before it had saved it.
        return len({number for number, epoch, _ in lines if epoch == EPOCHS})


def _evictions() -> Ratio:
    """Compare resumed trials with Optuna, which repeats lost trials from the beginning."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as other:
        lost = other.submit(_restarted, Path(name))  # in parallel, because only epochs count
        ours = _resumed(Path(name))
        peer, _ = lost.result()
    finished = (
        f"of {LONG_TRIALS} trials, finished with an eviction per {EPOCHS_PER_EVICTION} epochs"
    )
    return Ratio(
        finished, "", ours, "Optuna, lost and asked again", peer,
        ">= 90 % of all", ours >= 0.9 * LONG_TRIALS,
    )  # fmt: skip


def _resumed(folder: Path) -> int:
    """Return how many trials of a sweep finish although nodes are evicted without notice."""
    recipe = folder / "evicted"
    recipe.mkdir()
    journal = _Journal(folder / "ours", EPOCH_S)
    (recipe / "train.py").write_text(journal.script())
    loaded = load_recipe(str(recipe), cwd=folder)
    often = CheckpointRule(interval_s=EPOCH_S, keep=3, max_bytes=1000)  # after every epoch
    space = SweepFile.model_validate({"params": {"n": {"range": [1, 2 * LONG_TRIALS]}}})
    checked = check_sweep(replace(loaded, checkpoints=often), space, RunOptions())
    with local_services(nodes=WORKERS, slots=1) as env:
        settings = load_settings({"target": "local"}, cwd=folder, env=env)

        def evict_node(node: str) -> bool:
            with suppress(RunnerError):  # the node no longer exists
                evict(settings, node=node, notice_s=0, away_s=0)
                return True
            return False

        connection, plan = open_and_plan(checked, settings, ignore_progress, print)
        submit_group(connection, plan, ignore_progress)
        return journal.evict_until_spent(evict_node)


def _restarted(folder: Path) -> tuple[int, int]:
    """Return how many trials finish if killed ones start again, and the number of kills."""
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = _Journal(folder / "peer", PEER_EPOCH_S)
    (folder / "peer.py").write_text(journal.script())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    running: dict[str, subprocess.Popen[bytes]] = {}
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            trial = study.ask()
            words = [sys.executable, str(folder / "peer.py"), "--n", str(trial.number)]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            running[str(process.pid)] = process
            if process.wait():
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, 0.5)

    def kill(worker: str) -> bool:
        alive = running[worker].poll() is None
        running[worker].kill()
        return alive

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    finished = journal.evict_until_spent(kill)
    over.set()
    for worker in workers:
        worker.join()
    return finished, journal.evictions


def _dimension(name: str, low: float, high: float) -> dict[str, Any]:
    return {"names": [name], "kind": "uniform", "low": low, "high": high, "when": []}


def _branin(x: float, y: float) -> float:
    b, c = 5.1 / (4 * math.pi**2), 5 / math.pi
    return (y - b * x * x + c * x - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def _rosenbrock(x: float, y: float) -> float:
    return 100 * (y - x * x) ** 2 + (1 - x) ** 2


def _ackley(x: float, y: float) -> float:
    spread = math.sqrt((x * x + y * y) / 2)
    waves = (math.cos(2 * math.pi * x) + math.cos(2 * math.pi * y)) / 2
    return -20 * math.exp(-0.2 * spread) - math.exp(waves) + 20 + math.e


def _styblinski(x: float, y: float) -> float:
    return sum(z**4 - 16 * z * z + 5 * z for z in (x, y)) / 2 + 78.33233


# Public test functions (Surjanovic and Bingham, sfu.ca/~ssurjano/optimization.html). Their minimum
# is 0, except for Branin with 0.397887.
FUNCTIONS: Mapping[str, tuple[Callable[[float, float], float], float, float]] = {
    "Branin": (_branin, -5.0, 15.0),
    "Rosenbrock": (_rosenbrock, -2.0, 2.0),
    "Ackley": (_ackley, -5.0, 5.0),
    "Styblinski-Tang": (_styblinski, -5.0, 5.0),
}


def _searches() -> Iterator[Ratio]:
    """Yield the best value after 40 trials, as the mean of ten seeds: TPE against random values."""
    won = 0
    for name in FUNCTIONS:
        with ProcessPoolExecutor() as pool:  # nothing is timed here
            found = list(pool.map(partial(_search, name, tpe=True), range(SEEDS)))
        tpe = statistics.fmean(found)
        drawn = statistics.fmean(_search(name, seed, tpe=False) for seed in range(SEEDS))
        what = f"best of {TRIED} trials on {name}, mean of {SEEDS} seeds"
        won += tpe < drawn
        yield Ratio(what, "", tpe, "random search", drawn, "", None)
    yield Ratio(
        "functions on which TPE is better", "", won, "all", len(FUNCTIONS), ">= 3", won >= 3
    )


def _search(name: str, seed: int, *, tpe: bool) -> float:
    function, low, high = FUNCTIONS[name]
    space = [_dimension("x", low, high), _dimension("y", low, high)]
    trials: list[dict[str, Any]] = []
    for number in range(TRIED):
        chance = random.Random(f"{seed}/{number}")
        draw = {one["names"][0]: chance.uniform(one["low"], one["high"]) for one in space}
        params = draw
        if tpe and number >= 10:
            task = {"space": space, "draw": draw, "goal": "min", "seed": seed * 1000 + number}
            params = SAMPLERS["tpe"].choose({**task, "trials": trials})
        value = function(params["x"], params["y"])
        trials.append({"params": params, "state": "succeeded", "curve": [[1, value]]})
    return min(trial["curve"][0][1] for trial in trials)


def _stopping() -> Iterator[Ratio]:
    """Yield the loss of the best trial by rule of early stopping; all have as many epochs.

    The curves approach their final loss at different speeds, so early epochs predict little.
    """
    epochs, count = 27, 27
    losses: dict[str, list[float]] = {"median": [], "halving": [], "one epoch": [], "whole": []}
    for seed in range(SEEDS * 5):
        chance = random.Random(seed)
        curves = [_curve(chance, epochs) for _ in range(count * 4)]
        budget = count * epochs // 2
        for rule in ("median", "halving"):
            losses[rule].append(_stopped(StopRule.from_json({"rule": rule}), curves, budget))
        started = min(len(curves), budget - epochs)
        best = min(curves[:started], key=lambda curve: curve[0])
        losses["one epoch"].append(best[-1])
        losses["whole"].append(min(curve[-1] for curve in curves[: budget // epochs]))
    means = {name: statistics.fmean(found) for name, found in losses.items()}
    for rule in ("median", "halving"):
        what = f"loss with {rule} stopping, half of the epochs of 27 trials"
        for peer in ("whole", "one epoch"):
            called = {"whole": "without a rule", "one epoch": "one epoch each, finish the best"}
            met = means[rule] < means[peer] if peer == "whole" else None
            bound = "< 1x" if peer == "whole" else ""
            yield Ratio(what, "", means[rule], called[peer], means[peer], bound, met)


def _curve(chance: random.Random, epochs: int) -> list[float]:
    final, speed = chance.random(), chance.uniform(1.5, 9)
    return [final + (1.5 - final) * math.exp(-epoch / speed) for epoch in range(1, epochs + 1)]


def _stopped(rule: StopRule, curves: list[list[float]], budget: int) -> float:
    reports: list[TrialReport] = []
    best = math.inf
    for number, curve in enumerate(curves):
        points, last = tuple[Point, ...](), math.inf
        for step, loss in enumerate(curve, start=1):
            if not budget:
                return best
            budget -= 1
            points, last = with_point(points, step, loss), loss
            if stop_reason(rule, "min", number, points, reports):
                break
        reports.append(TrialReport(str(number), number, "", "succeeded", {}, points))
        best = min(best, last)
    return best

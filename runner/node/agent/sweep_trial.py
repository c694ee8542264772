"""A trial of a sweep: its parameters, decided when it starts, its reports, and its early end.

There is no controller. The agent of each trial asks the sampler itself, with the reports of the
other trials, and writes the answer to run.json if no other agent did before. The rule of early
stopping also needs only the reports. So a sweep continues without the machine that started it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pkgutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from runner.node.agent.early_stopping import FIRST_REPORTS, failed_sweep, stop_reason
from runner.node.environment.virtual_env import EnvironmentBuilder
from runner.node.failures import StageFailedError
from runner.node.script.streams import EventLog
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.commands import with_type_of
from runner.protocol.metrics import Goal, choose_metric, default_goal
from runner.protocol.paths import RunPaths
from runner.protocol.results import index_blobs, index_metadata
from runner.protocol.run_spec import RunSpec, parse_run_spec
from runner.protocol.samplers import SAMPLERS
from runner.protocol.sweeps import (
    METRIC_MISSING,
    Point,
    TrialReport,
    TrialSpec,
    TrialState,
    reports_folder,
    with_point,
)
from runner.protocol.waiting_trials import derive, parse_trial_setting, template_blob

logger = logging.getLogger(__name__)

SAMPLER_TIMEOUT_S = 120.0
POLL_S = 0.5
REPORT_EVERY_S = 2.0
LIST_EVERY_S = 2.0
SHOWN_METRICS = 5  # in the error about a script that did not report the sweep's metric
MAX_CLAIMS = 5  # tries to replace a run.json that changes at the same time


class NodeSweep:
    """What the agents of one sweep leave on a node, so that later ones send fewer requests."""

    def __init__(self, shared_dir: Path, group_id: str) -> None:
        folder = shared_dir / "runner" / "sweeps" / group_id
        self._template = folder / "run.json"
        self._succeeded = folder / "succeeded"
        self._folder = folder
        self._group_id = group_id

    def read_template(self, runs: ContainerClient) -> dict[str, Any]:
        """Return the common part of run.json, which never changes. Raise one of DAMAGED."""
        with suppress(OSError, *DAMAGED):
            return dict(parse_json(self._template.read_bytes()))
        content = runs.get(template_blob(self._group_id)) or b""
        template: dict[str, Any] = dict(parse_json(content))
        self._write(self._template, content)
        return template

    @property
    def has_succeeded(self) -> bool:
        """True if a trial of the sweep succeeded on this node."""
        return self._succeeded.exists()

    def record_success(self) -> None:
        """Record that a trial succeeded."""
        if not self.has_succeeded:
            self._write(self._succeeded, b"")

    def trial_in_folder(self, task_id: str) -> tuple[str, int]:
        """Return the run ID of the trial that last ran in the folder of a task, or "".

        The number is that of `record_trial`.
        """
        with suppress(OSError, ValueError):
            run_id, _, killed = self._trial_file(task_id).read_text(encoding="ascii").partition(" ")
            return run_id, int(killed)
        return "", 0

    def record_trial(self, task_id: str, run_id: str, killed: int) -> None:
        """Record which trial runs in the folder of a task that runs several.

        `killed` counts its agents on this node that have not ended by themselves.
        """
        self._write(self._trial_file(task_id), f"{run_id} {killed}".encode())

    def _trial_file(self, task_id: str) -> Path:
        return self._folder / f"{task_id}.trial"

    def _write(self, path: Path, content: bytes) -> None:
        with suppress(OSError):  # for example, a container without the folder of the node
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(path)


def write_trial_run(
    runs: ContainerClient, paths: RunPaths, setting: str, shared_dir: Path
) -> bytes | None:
    """Write run.json of a trial that starts for the first time.

    Args:
        runs: the container of runs.
        paths: the names of the run's blobs.
        setting: the value of the task's RUNNER_TRIAL, empty if the run is not a trial.
        shared_dir: the folder that the tasks of this node share.

    Returns:
        The document, or None if it exists already or cannot be derived from the setting.
    """
    if not setting:
        return None
    try:
        group_id, changes = parse_trial_setting(setting)
        document = derive(NodeSweep(shared_dir, group_id).read_template(runs), changes)
        if document["run_id"] != paths.run_id:
            raise ValueError(f"it is of {document['run_id']}")
    except DAMAGED as err:
        logger.warning("run.json cannot be written: %s: %s", type(err).__name__, err)
        return None
    body = json.dumps(document).encode()
    return body if runs.create(paths.run, body) else None


def is_decided(run_body: bytes) -> bool:
    """Return True if no sampler will change the parameters of the trial of this run.json."""
    try:
        return TrialSpec.from_json(parse_json(run_body)["trial"]).decided
    except DAMAGED:
        return False


def cancelled_by_sweep(runs: ContainerClient, spec: RunSpec, shared_dir: Path) -> str | None:
    """Return why a trial does not start, or None if it does."""
    if not spec.trial or not spec.group:
        return None
    try:
        trial = TrialSpec.from_json(spec.trial)
        if NodeSweep(shared_dir, spec.group).has_succeeded:
            return None
        found = runs.list_metadata(reports_folder(spec.group), FIRST_REPORTS)
    except (*DAMAGED, StorageRequestError):
        return None  # `open_trial` reports the damage
    reports = (TrialReport.parse(name, metadata) for name, metadata in found.items())
    needed = trial.metric if trial.needs_metric else None
    return failed_sweep((each for each in reports if each is not None), needed)


def open_trial(
    runs: ContainerClient, spec: RunSpec, attempt: int, shared_dir: Path
) -> SweepTrial | None:
    """Return the trial of a run, or None for other runs."""
    if not spec.trial or not spec.group:
        return None
    try:
        node = NodeSweep(shared_dir, spec.group)
        trial = SweepTrial(runs, spec, TrialSpec.from_json(spec.trial), node)
        trial.begin(is_first=attempt == 1 and spec.origin is None)
    except DAMAGED as err:
        logger.warning("the sweep of this run is not known: %s", err)
        return None
    return trial


class SweepTrial:
    """One trial while it runs. `stopped` is why it has to end early, or None.

    A thread reports the values, and applies the rule of early stopping to them. A trial that has
    ended before the first report only reports how.
    """

    def __init__(
        self, runs: ContainerClient, spec: RunSpec, trial: TrialSpec, node: NodeSweep
    ) -> None:
        self._runs = runs
        self._node = node
        self._spec = spec
        self._trial = trial
        self._group = spec.group or ""
        self._curve: tuple[Point, ...] = ()
        self._before: tuple[Point, ...] = ()  # values of earlier attempts, until the first new one
        self._undecided: list[tuple[Point, ...]] = []  # the curve after each new value
        self._metric = trial.metric
        self._params = tuple(spec.all_params)
        self._measured: dict[str, None] = {}  # names of other metrics
        self._goal: Goal = trial.goal
        self._sampler = ""
        self._others: list[TrialReport] = []
        self._others_at: float | None = None
        self._reported_at: float | None = None
        self._is_announced = False
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # reports arrive in their order
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trial", daemon=True)
        self.stopped: str | None = None

    def begin(self, *, is_first: bool) -> None:
        """Keep the values that earlier attempts reported.

        Until a trial has succeeded, others compare the failed trials with those that run, so the
        first trials report now that they run.
        """
        if not is_first:
            own = self._report("running", "").blob(self._group)
            try:
                found = self._runs.list_metadata(own).get(own, {})
            except StorageRequestError as err:
                logger.warning("the values of earlier attempts are not known: %s", err)
                found = {}
            before = TrialReport.parse(own, found)
            if before is not None:
                self._curve, self._sampler = before.curve, before.sampler
        if self._trial.number <= FIRST_REPORTS and not self._node.has_succeeded:
            self._write("running", "")

    def continue_from(self, step: int | None) -> None:
        """Report no values of lost work while the script does it again.

        Args:
            step: the last step before the checkpoint that the script continues from, or None if it
                starts from the beginning.
        """
        with self._lock:
            self._before = self._curve
            kept = -math.inf if step is None else step
            self._curve = tuple(point for point in self._curve if point[0] <= kept)
            is_shorter = len(self._curve) < len(self._before)
        if is_shorter:
            self._write("running", "")

    def decide(self, shared_dir: Path, events: EventLog, check: Callable[[], None]) -> RunSpec:
        """Return the run with the parameters of the trial. Decide them if they are not decided.

        Raises:
            StageFailedError: run.json cannot be replaced.
        """
        if self._trial.decided:
            return self._spec
        with events.stage("sample", "choosing the parameters") as report:
            builder = EnvironmentBuilder(shared_dir, report, check)
            params = self._choose_params(builder, shared_dir, events)
            self._spec = self._claim(params)
            self._trial = TrialSpec.from_json(self._spec.trial or {})
            shown = " ".join(f"{name}={value}" for name, value in self._trial.params.items())
            events.summarise(f"{shown} ({self._sampler})")
        self._write("running", "")  # now, so that the samplers of other trials know it
        return self._spec

    def _choose_params(
        self, builder: EnvironmentBuilder, shared_dir: Path, events: EventLog
    ) -> Mapping[str, Any]:
        """Return the parameters that the sampler chose.

        If too few trials have a value, or the sampler fails, return the trial's random parameters.
        """
        trial, self._sampler = self._trial, "random"
        name = trial.sampler or ""
        others = self._list_others(0.0)
        measured = [each for each in others if each.value is not None and each.state != "running"]
        if name not in SAMPLERS or len(measured) < SAMPLERS[name].random_trials:
            return trial.params
        task = {
            "sampler": name,
            "space": trial.space,
            "draw": trial.params,
            "goal": trial.goal,
            "seed": trial.seed + trial.number,
            "trials": [
                {"params": each.params, "state": each.state, "curve": each.curve} for each in others
            ],
        }
        try:
            chosen = _run_sampler(builder, shared_dir, task)
        except (StageFailedError, OSError, ValueError, subprocess.SubprocessError) as err:
            events.add(
                "notice", "progress", f"random parameters, because the sampler failed: {err}"
            )
            return trial.params
        self._sampler = name
        return chosen

    def _claim(self, params: Mapping[str, Any]) -> RunSpec:
        """Write the parameters to run.json, unless another agent of this run did it before.

        Return the run with the decided parameters.
        """
        paths = RunPaths(self._spec.run_id)
        for _ in range(MAX_CLAIMS):
            found, body = self._runs.head(paths.run), self._runs.get(paths.run)
            if found is None or body is None:
                break
            spec = parse_run_spec(body)
            trial = TrialSpec.from_json(spec.trial or {})
            if trial.decided:
                return spec
            changed = with_params(spec, trial, params)
            document = changed.to_json()
            if self._runs.replace(paths.run, json.dumps(document, indent=2).encode(), found.etag):
                try:
                    for blob in index_blobs(spec.run_id):
                        self._runs.put_metadata(blob, index_metadata(document, None))
                except StorageRequestError as err:
                    logger.warning("the index still has the old parameters: %s", err)
                return parse_run_spec(json.dumps(document).encode())
        raise StageFailedError(
            "sample", "StorageFailed", f"the parameters cannot be written to {paths.run}"
        )

    def observe(self, name: str, value: float, step: int | None) -> None:
        """Add a value of a metric. Safe to call from any thread."""
        with self._lock:
            if self._metric is None and choose_metric((name,), self._params):
                self._metric, self._goal = name, default_goal(name)
            if name == self._metric:
                if self._before:  # it says which of the earlier values were done again
                    self._curve, self._before = self._before, ()
                self._curve = with_point(self._curve, step, value)
                self._undecided.append(self._curve)
            elif len(self._measured) < SHOWN_METRICS:
                self._measured[name] = None

    def start(self) -> None:
        """Start to report the values, and to apply the rule of early stopping to them."""
        self._thread.start()

    def __enter__(self) -> None:
        """Run a block with the script, after which nothing is reported but the end."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reporting."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(POLL_S * 4)

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            try:
                if not self._is_announced:
                    self.announce()
                self.check_values()
            except StorageRequestError as err:
                logger.warning("the trial could not be compared with others: %s", err)
            except Exception:  # must not end the script
                logger.exception("the trial is no longer compared with others")
                return

    def announce(self) -> None:
        """Report that the trial runs, and add its run to the index unless it is there.

        Raises:
            StorageRequestError: storage refused a request or did not answer.
        """
        self._is_announced = True
        if self._reported_at is None:
            self._write("running", "")
        metadata = index_metadata(self._spec.to_json(), None)
        # The client may have written the outcome of a cancelled run.
        for blob in index_blobs(self._spec.run_id):
            self._runs.put_metadata(blob, metadata, overwrite=False)

    def check_values(self) -> None:
        """Apply the rule of early stopping to every new value, and report at intervals."""
        with self._lock:
            curves, self._undecided = self._undecided, []
        rule = self._trial.early_stop
        if curves and rule is not None and self.stopped is None:
            others = self._list_others(LIST_EVERY_S)
            number = self._trial.number
            reasons = (stop_reason(rule, self._goal, number, curve, others) for curve in curves)
            self.stopped = next((reason for reason in reasons if reason), None)
        last = self._reported_at
        if curves and (last is None or time.monotonic() - last > REPORT_EVERY_S):
            self._write("running", "")

    def missing_metric(self) -> StageFailedError | None:
        """Return a failure if the script never reported the metric that the sweep needs."""
        if not self._trial.needs_metric or self._curve:
            return None
        needs = "sampler" if self._trial.early_stop is None else "rule of early stopping"
        measured = ", ".join(self._measured) or "no metric"
        message = f"the script reported no value of {self._metric}, which the {needs} needs"
        return StageFailedError("command", METRIC_MISSING, f"{message}; it reported {measured}")

    def finish(self, state: TrialState, message: str = "") -> None:
        """Report how the trial ended."""
        self.close()
        report = self._write("stopped" if self.stopped and state == "succeeded" else state, message)
        if state == "succeeded" and (not self._trial.needs_metric or report.has_finite_value):
            self._node.record_success()

    def _report(self, state: TrialState, message: str) -> TrialReport:
        trial = self._trial
        with self._lock:
            return TrialReport(
                trial.name,
                trial.number,
                self._spec.run_id,
                state,
                trial.params,
                self._curve,
                message,
                self._sampler,
            )

    def _write(self, state: TrialState, message: str) -> TrialReport:
        """Write the report, and return it. A failure is only logged."""
        with self._writing:
            report = self._report(state, message)
            self._reported_at = time.monotonic()
            try:
                self._runs.put_metadata(report.blob(self._group), report.to_metadata())
            except StorageRequestError as err:
                logger.warning("the trial could not report: %s", err)
        return report

    def _list_others(self, max_age_s: float) -> list[TrialReport]:
        """Return the reports of the other trials, listed at most `max_age_s` ago."""
        if self._others_at is None or time.monotonic() - self._others_at > max_age_s:
            found = self._runs.list_metadata(reports_folder(self._group))
            reports = (TrialReport.parse(name, metadata) for name, metadata in found.items())
            self._others = [one for one in reports if one and one.name != self._trial.name]
            self._others_at = time.monotonic()
        return self._others


def with_params(spec: RunSpec, trial: TrialSpec, params: Mapping[str, Any]) -> RunSpec:
    """Return the run with the parameters that its sweep decided.

    Raises:
        ValueError: the command does not contain the parameters that the run was submitted with.
    """
    swept = {name for one in trial.space for name in one["names"]}
    if swept.isdisjoint(spec.params):  # the script gets them as arguments
        old, new, declared = trial.params, params, dict(spec.params)
    else:
        given = {**trial.defaults, **params}
        kept = {name: v for name, v in spec.params.items() if name not in swept or name in given}
        # The values of a sweep may be texts, as they were written: `1e3`.
        declared = {n: with_type_of(given.get(n, value), value) for n, value in kept.items()}
        declared |= {name: value for name, value in params.items() if name not in declared}
        old, new = spec.params, declared
    if spec.template:
        command = tuple(spec.place_parameters(spec.template, declared))
    else:
        command = spec.replace_arguments(spec.command, old, new)
    starts = tuple(map(spec.argument_start, swept))
    if command is None and not any(word.startswith(starts) for word in spec.command):
        command = spec.command  # a notebook reads $RUNNER_PARAMS
    if command is None:
        raise ValueError("the command of the run does not contain its parameters")
    decided = trial.decide(params).to_json()
    return replace(spec, command=command, params=declared, trial=decided)


def _run_sampler(
    builder: EnvironmentBuilder, shared_dir: Path, task: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters that a sampler chooses. It runs in its own environment on this node."""
    folder = shared_dir / "runner" / "sampler"
    folder.mkdir(parents=True, exist_ok=True)
    packages = SAMPLERS[task["sampler"]].packages
    environment = builder.ensure(folder, None, None, "", packages=packages)
    source = pkgutil.get_data("runner", "protocol/samplers.py")
    if source is None:
        raise ValueError("the agent does not contain the sampler")
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-I", "-c", source.decode()],
        input=json.dumps(task).encode(),
        capture_output=True,
        timeout=SAMPLER_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"it exited with code {done.returncode}")
    found: Any = parse_json(done.stdout)
    if not isinstance(found, dict):
        raise ValueError("it chose no parameters")
    return cast("dict[str, Any]", found)

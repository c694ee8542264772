"""Feature row 45: what the agent of a trial decides and reports, with blobs in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runner.core.recipe.sweep import SweepFile
from runner.node.agent import sweep_trial
from runner.node.agent.sweep_trial import (
    SweepTrial,
    cancelled_by_sweep,
    open_trial,
    with_params,
    write_trial_run,
)
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.paths import RunPaths
from runner.protocol.results import index_blobs
from runner.protocol.run_spec import RunSpec, parse_run_spec
from runner.protocol.samplers import SAMPLERS, Sampler
from runner.protocol.sweeps import StopRule, TrialReport, TrialSpec
from runner.protocol.usage import load_usage, parse_usage
from runner.protocol.waiting_trials import template_blob, trial_setting
from tests.unit.node.agent_task import RUN as TASK_RUN
from tests.unit.node.agent_task import Task
from tests.unit.node.fake_blob import FakeBlobs

RANDOM_TRIALS = SAMPLERS["tpe"].random_trials
GROUP = "net-20261124-120000-aaaa"
RUN = "net-11-20261124-120000-bbbb"
SPACE = ({"names": ["lr"], "kind": "uniform", "low": 0.0, "high": 1.0, "when": []},)
NO_NODE = Path("/dev/null/shared")  # nothing can be written below it
SAMPLED = TrialSpec(
    "11", 11, {"lr": 0.25}, "loss", "min", StopRule(), "tpe", decided=False, space=SPACE
)


@pytest.fixture
def runs(service: FakeBlobs) -> ContainerClient:
    return ContainerClient(Transport(service.url, SasCredential("s"), RetryBudget()))


def submitted(service: FakeBlobs, trial: TrialSpec) -> RunSpec:
    document = {
        "format": 1,
        "run_id": RUN,
        "experiment": "net",
        "command": ["python", "train.py", "--lr", "0.25", "--verbose"],
        "code": {"sha256": "0" * 64},
        "params": {},
        "group": GROUP,
        "trial": trial.to_json(),
    }
    service.put(RunPaths(RUN).run, json.dumps(document).encode())
    return parse_run_spec(service.data(RunPaths(RUN).run))


def reported(runs: ContainerClient, count: int, state: Any = "succeeded") -> None:
    for number in range(1, count + 1):
        points = tuple((step, number / step) for step in range(1, 6))
        report = TrialReport(f"{number:02d}", number, "x", state, {"lr": number / 100}, points)
        runs.put_metadata(report.blob(GROUP), report.to_metadata())


def own_report(runs: ContainerClient) -> TrialReport:
    blob = f"sweeps/{GROUP}/trials/11"
    found = TrialReport.parse(blob, runs.list_metadata(blob)[blob])
    assert found is not None
    return found


def opened(runs: ContainerClient, spec: RunSpec, attempt: int = 1) -> SweepTrial:
    trial = open_trial(runs, spec, attempt, NO_NODE)
    assert trial is not None
    return trial


def decided(trial: SweepTrial, folder: Path) -> RunSpec:
    return trial.decide(folder, EventLog(LineQueue()), lambda: None)


def choose(task_seen: list[Mapping[str, Any]], chosen: dict[str, Any]) -> Any:
    def run_sampler(builder: object, shared_dir: Path, task: Mapping[str, Any]) -> dict[str, Any]:
        task_seen.append(task)
        return chosen

    return run_sampler


def test_agent_writes_run_json_of_a_trial_once(runs: ContainerClient, service: FakeBlobs) -> None:
    common = {"format": 1, "run_id": "other", "params": {"lr": 0.1}, "command": ["t.py"]}
    service.put(template_blob(GROUP), json.dumps(common).encode())
    setting = trial_setting(GROUP, {"run_id": RUN, "params": {"lr": 0.5}})
    body = write_trial_run(runs, RunPaths(RUN), setting, NO_NODE)
    assert body == service.data(RunPaths(RUN).run)
    assert json.loads(body or b"")["params"] == {"lr": 0.5}
    assert (
        write_trial_run(runs, RunPaths(RUN), setting, NO_NODE) is None
    )  # an attempt after an eviction
    assert write_trial_run(runs, RunPaths("net-12-20261124-120000-bbbb"), setting, NO_NODE) is None
    assert write_trial_run(runs, RunPaths(RUN), "", NO_NODE) is None


def test_first_trials_of_a_sampler_are_the_seeded_draws(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    trial = opened(runs, submitted(service, SAMPLED))
    reported(runs, RANDOM_TRIALS - 1)
    spec = decided(trial, tmp_path)
    assert spec.command == ("python", "train.py", "--lr", "0.25", "--verbose")
    assert own_report(runs).sampler == "random"


@pytest.mark.feature(45)
def test_later_trial_keeps_the_values_of_the_sampler(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Mapping[str, Any]] = []
    monkeypatch.setattr(sweep_trial, "_run_sampler", choose(tasks, {"lr": 0.7}))
    spec = submitted(service, SAMPLED)
    reported(runs, RANDOM_TRIALS)
    first, twin = opened(runs, spec), opened(runs, spec)
    assert decided(first, tmp_path).command[3] == "0.7"
    assert [len(task["trials"]) for task in tasks] == [RANDOM_TRIALS]
    # A second agent of the same run, and an attempt after an eviction.
    monkeypatch.setattr(sweep_trial, "_run_sampler", choose(tasks, {"lr": 0.1}))
    assert decided(twin, tmp_path).command[3] == "0.7"
    again = parse_run_spec(service.data(RunPaths(RUN).run))
    assert decided(opened(runs, again, 2), tmp_path).command[3] == "0.7"
    assert len(tasks) == 2
    assert own_report(runs).params == {"lr": 0.7}


class Halton(Sampler):
    help = "spreads evenly"
    packages = ()
    random_trials = 0

    def choose(self, task: Mapping[str, Any]) -> dict[str, Any]:
        [space], number, found = task["space"], task["seed"], 0.0
        for digit, bit in enumerate(reversed(f"{number:b}"), start=1):
            found += int(bit) / 2**digit
        return {space["names"][0]: space["low"] + found * (space["high"] - space["low"])}


def test_sampler_is_one_class_that_both_sides_find_by_its_name(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAMPLERS, "halton", Halton())

    def run_sampler(builder: object, shared_dir: Path, task: Mapping[str, Any]) -> dict[str, Any]:
        return SAMPLERS[task["sampler"]].choose(json.loads(json.dumps(task)))

    monkeypatch.setattr(sweep_trial, "_run_sampler", run_sampler)
    params = {"lr": {"uniform": [0, 1]}}
    swept = SweepFile.model_validate({"params": params}).model_copy(update={"method": "halton"})
    assert swept.choose_method(None) == "halton"  # it needs no metric
    assert swept.stop_rule("halton") is None
    spec = TrialSpec("11", 11, {"lr": 0.25}, "loss", sampler="halton", decided=False, space=SPACE)
    assert not spec.needs_metric
    trial = opened(runs, submitted(service, spec))
    assert decided(trial, tmp_path).command[3] == "0.8125"  # asked although no trial has a value
    assert own_report(runs).sampler == "halton"


def test_trial_is_drawn_at_random_if_the_sampler_fails(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> dict[str, Any]:
        raise OSError("no network")

    monkeypatch.setattr(sweep_trial, "_run_sampler", fails)
    trial = opened(runs, submitted(service, SAMPLED))
    reported(runs, RANDOM_TRIALS)
    assert decided(trial, tmp_path).command[3] == "0.25"
    assert own_report(runs).sampler == "random"


@pytest.mark.feature(45)
def test_trial_stops_when_it_is_worse_than_the_others(
    runs: ContainerClient, service: FakeBlobs
) -> None:
    spec = submitted(service, TrialSpec("11", 11, {"lr": 0.25}, "loss", "min", StopRule()))
    reported(runs, 3)
    trial = opened(runs, spec)
    for step in range(1, 4):
        trial.observe("loss", 50.0, step)
        trial.observe("seconds", 0.0, step)
    assert trial.stopped is None
    trial.check_values()
    assert trial.stopped is not None
    trial.finish("succeeded", trial.stopped)
    report = own_report(runs)
    assert (report.state, report.value) == ("stopped", 50.0)
    assert "median of 3 trials" in report.message


def test_values_of_earlier_attempts_count(runs: ContainerClient, service: FakeBlobs) -> None:
    spec = submitted(service, TrialSpec("11", 11, {"lr": 0.25}, "loss", "min", StopRule()))
    first = opened(runs, spec)
    first.observe("loss", 3.0, 1)
    first.observe("loss", 2.0, 2)
    first.finish("failed", "the disk is full")
    second = opened(runs, spec, 2)
    second.observe("loss", 1.5, 2)
    second.finish("succeeded")
    assert own_report(runs).curve == ((1, 3.0), (2, 1.5))


def test_values_of_lost_work_are_not_reported_while_it_is_done_again(
    runs: ContainerClient, service: FakeBlobs
) -> None:
    spec = submitted(service, replace(SAMPLED, decided=True))
    first = opened(runs, spec)
    for step in range(1, 8):
        first.observe("loss", 8.0 - step, step)
    first.finish("failed", "the node is lost")
    second = opened(runs, spec, attempt=2)
    second.continue_from(5)
    assert [step for step, _ in own_report(runs).curve] == [1, 2, 3, 4, 5]
    second.observe("loss", 0.5, 7)  # step 6 came just after the checkpoint
    second.finish("failed", "the node is lost")
    assert own_report(runs).curve[4:] == ((5, 3.0), (6, 2.0), (7, 0.5))
    third = opened(runs, spec, attempt=3)
    third.continue_from(None)
    assert own_report(runs).curve == ()


@pytest.mark.feature(45)
def test_script_without_the_metric_of_its_sweep_fails(
    runs: ContainerClient, service: FakeBlobs
) -> None:
    trial = opened(runs, submitted(service, SAMPLED))
    trial.observe("accuracy", 0.5, 1)
    missing = trial.missing_metric()
    assert missing is not None
    assert missing.code == "MetricMissing"
    assert "no value of loss" in missing.message
    assert missing.message.endswith("it reported accuracy")
    trial.observe("loss", 0.5, 1)
    assert trial.missing_metric() is None


def test_curve_of_a_trial_is_that_of_a_clear_metric(
    runs: ContainerClient, service: FakeBlobs
) -> None:
    trial = opened(runs, submitted(service, TrialSpec("11", 11, {"score": 0.25})))
    for name, value in (("Batch size", 512.0), ("score", 0.25), ("val_acc", 0.5), ("loss", 2.0)):
        trial.observe(name, value, 1)
    trial.finish("succeeded")
    assert own_report(runs).curve == ((1, 0.5),)


def test_short_trial_of_a_sweep_that_succeeded_here_sends_one_report(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    common = {"format": 1, "run_id": "other", "command": ["t.py"]}
    service.put(template_blob(GROUP), json.dumps(common).encode())
    setting = trial_setting(GROUP, {"run_id": RUN})
    assert write_trial_run(runs, RunPaths(RUN), setting, tmp_path) is not None
    spec = submitted(service, TrialSpec("11", 11, {"lr": 0.25}))
    first = open_trial(runs, spec, 1, tmp_path)
    assert first is not None
    first.finish("succeeded")

    other = RunPaths(RUN.replace("-11-", "-12-"))
    body = json.dumps({**spec.to_json(), "run_id": other.run_id}).encode()
    reported(runs, 10, "failed")
    service.requests.clear()
    setting = trial_setting(GROUP, {"run_id": other.run_id})
    assert write_trial_run(runs, other, setting, tmp_path) is not None
    assert cancelled_by_sweep(runs, parse_run_spec(body), tmp_path) is None
    trial = open_trial(runs, parse_run_spec(body), 1, tmp_path)
    assert trial is not None
    trial.finish("succeeded")
    sent = [(method, urlsplit(path).path) for method, path, _ in service.requests]
    report = f"/account/runs/sweeps/{GROUP}/trials/11"
    assert sent == [("PUT", f"/account/runs/{other.run}"), ("PUT", report)]


def test_trial_that_runs_for_a_while_is_added_to_the_index_once(
    runs: ContainerClient, service: FakeBlobs, until: Callable[[Callable[[], object]], None]
) -> None:
    trial = opened(runs, submitted(service, TrialSpec("11", 11, {"lr": 0.25})))
    trial.start()
    until(lambda: f"index/{RUN}" in service.blobs)
    trial.close()
    assert own_report(runs).state == "running"
    service.blobs[f"index/{RUN}"].metadata["result"] = "cancelled by the client"
    trial.announce()
    assert service.blobs[f"index/{RUN}"].metadata["result"] == "cancelled by the client"


def test_damaged_template_on_the_node_is_read_from_storage(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    service.put(template_blob(GROUP), json.dumps({"format": 1, "command": ["t.py"]}).encode())
    kept = tmp_path / "runner" / "sweeps" / GROUP / "run.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"")  # a machine that lost power
    body = write_trial_run(runs, RunPaths(RUN), trial_setting(GROUP, {"run_id": RUN}), tmp_path)
    assert json.loads(body or b"") == {"format": 1, "command": ["t.py"], "run_id": RUN}
    assert kept.read_bytes() == service.data(template_blob(GROUP))


@pytest.mark.feature(42)
def test_trial_does_not_start_after_only_failures(
    runs: ContainerClient, service: FakeBlobs
) -> None:
    spec = submitted(service, TrialSpec("11", 11, {"lr": 0.25}))
    reported(runs, 4, "failed")
    assert cancelled_by_sweep(runs, spec, NO_NODE) is None
    reported(runs, 5, "failed")
    assert "first 5 trials failed" in (cancelled_by_sweep(runs, spec, NO_NODE) or "")
    assert cancelled_by_sweep(runs, replace(spec, trial=None), NO_NODE) is None
    assert cancelled_by_sweep(runs, replace(spec, trial={"number": "no"}), NO_NODE) is None


def test_trial_does_not_start_after_only_diverged_trials(
    runs: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    diverged = open_trial(runs, submitted(service, SAMPLED), 1, tmp_path)
    assert diverged is not None
    diverged.observe("loss", float("nan"), 1)
    assert diverged.missing_metric() is None
    diverged.finish("succeeded")
    for number in range(20, 29):
        report = TrialReport(f"{number}", number, "x", "succeeded", {}, ((1, float("nan")),))
        runs.put_metadata(report.blob(GROUP), report.to_metadata())
    spec = submitted(service, SAMPLED)
    why = "the first 10 trials reported no finite loss"
    assert cancelled_by_sweep(runs, spec, tmp_path) == why
    grid = submitted(service, TrialSpec("11", 11, {}, "loss"))
    assert cancelled_by_sweep(runs, grid, tmp_path) is None


def test_declared_parameters_without_a_value_get_their_default() -> None:
    space = (
        {"names": ["opt"], "kind": "rows", "rows": [["sgd"], ["adam"]], "when": []},
        {"names": ["momentum"], "kind": "uniform", "low": 0, "high": 1, "when": []},
    )
    trial = TrialSpec(
        "1", 1, {"opt": "sgd", "momentum": 0.4}, "loss", sampler="tpe", decided=False,
        space=space, defaults={"opt": "sgd", "momentum": 0.9},
    )  # fmt: skip
    spec = RunSpec(
        run_id=RUN,
        command=("t.py", "--epochs", "3", "--opt", "sgd", "--momentum", "0.4", "--quiet"),
        params={"epochs": 3, "opt": "sgd", "momentum": 0.4},
    )
    found = with_params(spec, trial, {"opt": "adam"})
    assert found.params == {"epochs": 3, "opt": "adam", "momentum": 0.9}
    assert found.command == (
        *("t.py", "--epochs", "3", "--opt", "adam", "--momentum", "0.9", "--quiet"),
    )  # fmt: skip
    assert TrialSpec.from_json(found.trial or {}).decided


def test_trial_of_a_hydra_script_gets_its_parameters_as_overrides() -> None:
    space = ({"names": ["opt"], "kind": "rows", "rows": [["a"], ["b,c"]], "when": []},)
    trial = TrialSpec("1", 1, {"opt": "b,c"}, "loss", sampler="tpe", decided=False, space=space)
    command = ("python", "t.py", "epochs=3", "opt='b,c'", "--quiet")
    spec = RunSpec(run_id=RUN, command=command, params_as="hydra")
    assert with_params(spec, trial, {"opt": "a"}).command == (*command[:3], "opt=a", "--quiet")
    with pytest.raises(ValueError, match="does not contain its parameters"):
        with_params(replace(spec, command=("python", "t.py", "opt=x")), trial, {"opt": "a"})


def test_sampled_values_are_put_where_the_command_names_them() -> None:
    space = (
        {"names": ["lr"], "kind": "uniform", "low": 0, "high": 1, "when": []},
        {"names": ["opt"], "kind": "rows", "rows": [["sgd"], ["adam"]], "when": []},
        {"names": ["beta"], "kind": "uniform", "low": 0, "high": 1, "when": [["opt", ["adam"]]]},
    )
    drawn = {"lr": 0.25, "opt": "sgd"}
    trial = TrialSpec("1", 1, drawn, "loss", sampler="tpe", decided=False, space=space)
    spec = RunSpec(
        run_id=RUN,
        command=("t.py", "fit", "0.25", "--epochs", "3", "--config-name=sgd"),
        template=("t.py", "fit", "{lr}", None, "--config-name={opt}"),
        params={"epochs": 3, "lr": "0.25", "opt": "sgd"},
    )
    found = with_params(spec, trial, {"lr": 0.5, "opt": "adam", "beta": 0.9})
    assert found.command == (
        *("t.py", "fit", "0.5", "--epochs", "3", "--beta", "0.9", "--config-name=adam"),
    )  # fmt: skip
    assert found.params == {"epochs": 3, "lr": 0.5, "opt": "adam", "beta": 0.9}
    assert found.template == spec.template
    again = RunSpec.from_json(json.loads(json.dumps(found.to_json())))
    assert (again.template, again.command) == (spec.template, found.command)


@pytest.mark.slow  # the packed agent runs
def test_new_trial_reads_none_of_its_own_records(task: Task) -> None:
    group = "train-20261124-120000-aaaa"
    trial = TrialSpec("1", 1, {"lr": 0.1}).to_json()
    task.submit("print('loss=0.5')\n", trial=trial, group=group, checkpoints={})
    blobs = RunPaths(TASK_RUN)
    task.service.put(template_blob(group), bytes(task.service.blobs.pop(blobs.run).data))
    task.settings = {"RUNNER_TRIAL": trial_setting(group, {"run_id": TASK_RUN})}
    assert task.run() == 0, task.output
    sent = [
        (method, urlsplit(path).path.partition("/runs/")[2], urlsplit(path).query)
        for method, path, _ in task.service.requests
    ]
    # If the last block is appended before the end, the size of the blob is compared afterwards: a
    # restarted storage may have lost it.
    logs = {blobs.stdout, blobs.metrics, blobs.attempt_events(1)}
    read = {name for method, name, _ in sent if method in ("GET", "HEAD")}
    assert read - logs == {template_blob(group), ""}, "the template, and the first reports"
    appended = [name for _, name, query in sent if "comp=appendblock" in query]
    assert set(appended) == logs
    written = [name for method, name, query in sent if method == "PUT" and "comp=" not in query]
    report, indexes = f"sweeps/{group}/trials/1", index_blobs(TASK_RUN)
    counts = Counter(written)
    # At its end, and before that if it ran long enough to be announced.
    assert {counts.pop(each) for each in indexes} in ({1}, {2})
    assert counts - Counter([report]) == Counter(
        [
            *(blobs.run, blobs.attempt_start(1), blobs.attempt_environment(1)),
            *(blobs.stdout, blobs.metrics, blobs.attempt_events(1)),
            *(report, blobs.attempt_end(1), blobs.result),
        ]
    )
    stored = {name: bytes(blob.data) for name, blob in task.service.blobs.items()}
    ended = json.loads(stored[blobs.result])["ended"]
    usage = load_usage(stored.get, TASK_RUN, nodes=1, status="succeeded", ended=ended)
    index = task.service.blobs[f"index/{TASK_RUN}"].metadata
    assert parse_usage(index["attempts"]) == usage
    assert usage[0].command is not None
    assert usage[0].seen is not None

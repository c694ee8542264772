"""`import runner`: the example of the guide runs, and arguments have their documented effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import takes_dependent_tasks
from runner.core.progress import OnProgress
from runner.flows.submit import submit_run
from runner.flows.submit.pipeline import SubmissionPlan
from runner.flows.submit.submit_run import upload_files
from tests.e2e.conftest import ROOT, Cli, until

Write = Callable[..., Path]

_WAITS = """
import os, pathlib, time
output = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
print("begun", flush=True)
while not (output / "stop").exists():
    time.sleep(0.05)
raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def at_home(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(cli.home))
    monkeypatch.setenv("RUNNER_CONFIG", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def waiting(script: Write) -> Generator[runner.Run]:
    """Yield a run that continues until the test stops it, and then fails."""
    run = runner.train(script(_WAITS))
    until(lambda: "begun" in run.logs(), timeout_s=120)
    until(lambda: run.state == "running")  # events and logs arrive separately
    yield run
    run.cancel()


@pytest.mark.feature(56)
def test_code_of_the_guide_runs_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), namespace)
    shown = capsys.readouterr()
    assert "trained 3 epochs" in shown.out
    assert shown.err == "", "the API itself prints nothing"
    last = namespace["seen"][-1]
    assert (last.run_id, last.state) == (namespace["again"].id, "succeeded")
    assert last.metrics == {"loss": 0.2}
    assert namespace["seen"][0].state == "submitting"
    shown = namespace["compared"]._repr_html_()
    assert "epochs" in shown
    assert "<svg" in shown, "the picture too"
    assert len(repr(namespace["registered"])) < 200
    for shown in (namespace["often"], namespace["pool"]):
        assert set(asdict(shown)).isdisjoint({"session", "found", "settings"}), "no keys in copies"
        assert shown._repr_html_().startswith("<table>")


def test_wait_raises_on_timeout_and_with_check_on_failure(waiting: runner.Run) -> None:
    assert (waiting.state, waiting.done, waiting.result) == ("running", False, None)
    with pytest.raises(runner.RunnerError) as late:
        waiting.wait(timeout_s=0.5)
    assert late.value.code == "R-TIMEOUT"
    assert waiting.state == "running"
    seen = waiting.exec(["sh", "-c", "cat; echo $RUNNER_RUN_ID >&2; exit 4"], stdin="é\n")
    assert (seen.exit_code, seen.stdout, seen.stderr) == (4, "é\n", f"{waiting.id}\n")
    with pytest.raises(runner.RunnerError) as refused:
        waiting.exec(["sh", "-c", "echo why >&2; exit 4"], check=True)
    assert (refused.value.code, refused.value.why) == ("R-EXEC", "why")
    waiting.exec(["sh", "-c", 'touch "$RUNNER_OUTPUT_DIR/stop"'], check=True)
    with pytest.raises(runner.RunnerError) as failed:
        waiting.wait(check=True)
    assert failed.value.code == "R-RUN-FAILED"
    assert "code 3" in failed.value.why
    assert waiting.result is not None
    assert waiting.result.exit_code == 3
    assert waiting.wait() is waiting


@pytest.mark.smoke
def test_ended_run_keeps_its_record_and_renders_as_html(waiting: runner.Run, script: Write) -> None:
    waiting.cancel()
    assert waiting.wait().state == "cancelled"
    [found] = [run for run in runner.runs() if run == waiting]
    assert found.state == "cancelled"
    assert found.spec == waiting.spec, "a run of the list reads what the list left out"
    assert runner.runs(1)[0] in runner.runs(5)[:2]
    card, table = waiting._repr_html_(), runner.runs(5)._repr_html_()
    for text in (card, table):
        assert waiting.id in text
        assert "cancelled" in text
    with pytest.raises(runner.RunnerError) as ended:
        waiting.exec(["true"])
    assert ended.value.code == "R-REACH-ENDED"


def test_parameters_are_passed_with_their_types(script: Write, tmp_path: Path) -> None:
    folder = script("import os; print(open(os.environ['RUNNER_PARAMS']).read())")
    (folder / "train.yaml").write_text(
        "command: python train.py\nparams: {rate: 1.0, text: a, flag: false, count: 1, big: 1}\n"
    )
    odd = 'it\'s = "$$x" é'  # $$ is how a command writes $
    run = runner.train(
        folder,
        set={"rate": 1e-12, "text": odd, "flag": True, "count": -3, "big": 10**18},
        check=True,
    )
    assert dict(run.params) == {
        "rate": 1e-12,
        "text": odd,
        "flag": True,
        "count": -3,
        "big": 10**18,
    }
    with pytest.raises(runner.RunnerError) as caught:
        runner.train(folder, set={"rate": [1, 2]})
    assert caught.value.code == "R-SET-VALUE"


_COUNTS = """
import json, os, pathlib, time
checkpoint = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "step.txt")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
last = json.loads(pathlib.Path(os.environ["RUNNER_PARAMS"]).read_text())["last"]
print("from", step, flush=True)
while step < last:
    step += 1
    checkpoint.with_suffix(".part").write_text(str(step))
    os.replace(checkpoint.with_suffix(".part"), checkpoint)
    time.sleep(0.1)
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.bin").write_text(f"model {step}")
raise SystemExit(last > 50)
"""


@pytest.mark.slow
def test_runs_are_repeated_as_new_runs(script: Write) -> None:
    folder = script(_COUNTS)
    (folder / "train.yaml").write_text(
        "command: python train.py\nparams: {last: 5}\ncheckpoints: {interval: 1s}\n"
    )
    short = runner.train(folder, wait=True)
    assert short.state == "succeeded"
    again = short.reproduce(wait=True)
    assert again.spec.raw["origin"]["run_id"] == short.id
    assert short.against(again).same_model
    registered = again.register()
    assert again.register() == registered, "its recipe names the model"
    assert runner.model(registered.name) == registered
    with pytest.raises(runner.RunnerError) as refused:
        short.retry()
    assert short.id in str(refused.value)
    failed = runner.train(folder, set={"last": 60}, wait=True)
    assert failed.state == "failed"
    resumed = failed.resume(set={"last": 50}, wait=True)
    assert resumed.state == "succeeded"
    begun = int(resumed.logs().split()[1])
    assert 0 < begun <= 60
    retried = failed.retry()
    assert retried not in (failed, resumed)
    retried.cancel()


def test_group_is_awaited_and_cancelled_as_one(tmp_path: Path) -> None:
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "train.py").write_text(_WAITS)
    path = tmp_path / "two.yaml"
    path.write_text("tasks: {one: {recipe: ./waiting}, two: {recipe: ./waiting, after: [one]}}\n")
    seen: list[runner.Update] = []
    group = runner.submit(path)
    assert list(group) == ["one", "two"]
    with pytest.raises(runner.RunnerError) as late:
        group.wait(timeout_s=0.1, on_progress=seen.append)
    assert (late.value.code, seen[-1].done, seen[-1].total) == ("R-TIMEOUT", 0, 2)
    with pytest.raises(runner.RunnerError) as failed:
        group.cancel().wait(check=True)
    assert (failed.value.code, group.states) == (
        "R-RUN-FAILED",
        {"one": "cancelled", "two": "cancelled"},
    )
    assert group["two"].id in group._repr_html_()
    path.write_text("schedule: {every: 6h}\n" + path.read_text())
    with pytest.raises(runner.RunnerError) as scheduled:
        runner.submit(path)
    assert "runner schedule create" in (scheduled.value.fix or "")


@pytest.mark.parametrize("code", [0, 3])
def test_predecessor_may_end_while_its_successor_is_submitted(
    code: int, script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job closes with it, so that no task can wait there."""
    gate = tmp_path / "gate"
    text = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)"
    first = runner.train(script(f"{text}\nraise SystemExit({code})"), experiment=f"ends-{code}")

    def upload(connection: Connection, plan: SubmissionPlan, on_progress: OnProgress) -> None:
        gate.touch()
        first.wait()
        until(lambda: not takes_dependent_tasks(connection, first.spec.job_id))
        upload_files(connection, plan, on_progress)

    later = script("print('done')")
    monkeypatch.setattr(submit_run, "upload_files", upload)
    if code:
        with pytest.raises(runner.RunnerError) as refused:
            runner.train(later, after=[first])
        assert refused.value.code == "R-AFTER-FAILED"
        assert runner.runs()[0].id == first.id, "nothing of it remains"
        return
    second = runner.train(later, after=[first])
    assert second.wait().state == "succeeded"
    assert tuple(second.spec.after) == (first.id,)


def test_arguments_of_train_override_the_recipe(script: Write) -> None:
    folder = script("print('done')")
    (folder / "train.yaml").write_text("command: python train.py\npriority: 3\nretries: 1\n")
    first = runner.train(folder)
    second = runner.train(folder, priority=3, after=[first], timeout="1h", retries=2, gpus=0)
    assert (second.spec.raw["retries"], second.spec.raw["timeout_s"]) == (2, 3600)
    assert (second.spec.raw["priority"], tuple(second.spec.after)) == (3, (first.id,))
    assert second.wait().state == "succeeded"
    for asked, code in (
        ({"gpus": 99}, "R-FLAG-VALUE"),
        ({"timeout": "soon"}, "R-FLAG-VALUE"),
        ({"priority": "high"}, "R-ARGUMENT"),
        ({"capacity": "cheap"}, "R-ARGUMENT"),
        ({"after": first}, "R-ARGUMENT"),
    ):
        with pytest.raises(runner.RunnerError) as refused:
            runner.train(folder, **asked)  # pyright: ignore[reportArgumentType]
        assert (refused.value.code, bool(refused.value.fix)) == (code, True), asked

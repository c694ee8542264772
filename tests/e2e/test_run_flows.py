"""Submit, watch, fetch, list and cancel as functions, against real services."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer
from runner.core.progress import Progress, ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import Settings, load_settings
from runner.core.states import RunState
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import LineCursor, TextCursor, find_run, load_result
from runner.flows.runs.events import LogText, RunEnded, StageReported
from runner.flows.runs.history import list_runs
from runner.flows.runs.index_upkeep import rebuild_index
from runner.flows.runs.live import load_view
from runner.flows.runs.logs import read_log, tail_offset
from runner.flows.runs.outputs import download_outputs
from runner.flows.runs.watch import watch_run
from runner.flows.submit.pipeline import SubmissionPlan
from runner.flows.submit.submit_run import submit_run
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths, make_run_id
from runner.protocol.results import index_blobs
from runner.protocol.run_spec import RunSpec, parse_run
from tests.contract.server import wire
from tests.e2e.conftest import Cli, until
from tests.e2e.plans import plan_recipe

Write = Callable[..., Path]

SCRIPT = """
import os, pathlib
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(out / "sub").mkdir()
(out / "sub" / "model.bin").write_bytes(bytes(range(256)) * 1000)
(out / "notes.txt").write_text("notes")
for n in range(300):
    print("line", n, "\\u00e9\\u4e16")
"""


@pytest.fixture
def settings(cli: Cli) -> Settings:
    return load_settings({}, cwd=cli.cwd, env={"RUNNER_HOME": str(cli.home), "HOME": "/"})


@pytest.fixture
def connection(settings: Settings) -> Connection:
    return connect(settings)


@pytest.fixture
def runs(connection: Connection) -> BlobContainer:
    return BlobContainer(connection.blob_service(), connection.outputs.container_runs)


@pytest.fixture
def plan(connection: Connection, settings: Settings, script: Write) -> SubmissionPlan:
    recipe = load_recipe(str(script(SCRIPT)), cwd=Path.cwd())
    return plan_recipe(connection, settings, recipe)


def ended(connection: Connection, spec: RunSpec) -> RunEnded:
    *_, last = watch_run(connection, spec)
    assert isinstance(last, RunEnded)
    return last


@pytest.mark.smoke
def test_submitting_a_plan_twice_creates_one_task_and_uploads_once(
    connection: Connection, plan: SubmissionPlan
) -> None:
    seen: list[Progress] = []
    first = submit_run(connection, plan, seen.append)
    sent = [p for p in seen if p.stage == "upload" and p.state == "progress"]
    assert sent, "the code is new"
    seen.clear()
    again = submit_run(connection, plan, seen.append)
    assert again == first
    assert [p.message for p in seen if p.stage == "upload" and p.state == "end"] == [
        "nothing changed"
    ]
    tasks = connection.batch_client().list_tasks(first.job_id)
    assert [t.id for t in tasks if t.id == first.run_id] == [first.run_id]
    assert ended(connection, first).status.state is RunState.SUCCEEDED
    assert len(load_view(connection, first).attempts) == 1


def test_refused_submission_leaves_no_run_behind(
    connection: Connection,
    plan: SubmissionPlan,
    runs: BlobContainer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RunnerError("R-QUOTA", "a quota of the Batch account is used up")

    monkeypatch.setattr("runner.flows.submit.submit_run.add_task", refuse)
    with pytest.raises(RunnerError, match="a quota"):
        submit_run(connection, plan, ignore_progress)
    assert runs.read(RunPaths(plan.run.run_id).run) is None


def test_job_closed_after_planning_is_replaced(
    connection: Connection, settings: Settings, script: Write, runs: BlobContainer
) -> None:
    # Its job has to be open while the next run is planned.
    recipe = load_recipe(str(script("import time\ntime.sleep(60)")), cwd=Path.cwd())
    options = RunOptions(experiment="closed after the plan")
    first = submit_run(
        connection, plan_recipe(connection, settings, recipe, options), ignore_progress
    )
    plan = plan_recipe(connection, settings, recipe, options)
    before = copy.deepcopy(plan.run.to_spec().to_json())
    assert (plan.job.job_id, plan.job.exists) == (first.job_id, True)
    connection.batch_client().begin_terminate_job(
        first.job_id, wire(terminateReason="a test"), polling_interval=0
    ).wait()
    spec = submit_run(connection, plan, ignore_progress)
    assert (spec.run_id, spec.job_id) == (plan.run.run_id, f"{first.job_id}-2")
    assert find_run(connection, spec.run_id).job_id == spec.job_id
    assert plan.run.to_spec().to_json() == before, "a plan is never changed"
    connection.batch_client().begin_terminate_job(
        spec.job_id, wire(terminateReason="a test"), polling_interval=0
    ).wait()


def test_submitted_run_json_equals_the_plan(
    connection: Connection, plan: SubmissionPlan, runs: BlobContainer
) -> None:
    [document] = plan.documents().values()
    spec = submit_run(connection, plan, ignore_progress)
    assert runs.read(RunPaths(spec.run_id).run) == json.dumps(document, indent=2).encode()


def test_watching_late_shows_the_same_as_watching_from_the_start(
    connection: Connection, plan: SubmissionPlan
) -> None:
    spec = submit_run(connection, plan, ignore_progress)
    live = list(watch_run(connection, spec))
    late = list(watch_run(connection, spec))
    texts = ["".join(e.text for e in events if isinstance(e, LogText)) for events in (live, late)]
    assert texts[0] == texts[1] == "".join(f"line {n} é世\n" for n in range(300))
    stages = [[e.event for e in events if isinstance(e, StageReported)] for events in (live, late)]
    assert stages[0] == stages[1]
    assert [e.stage for e in stages[0] if e.state == "end"] == [
        "code",
        "environment",
        "command",
        "export",
    ]
    first, second = (e for events in (live, late) for e in events if isinstance(e, RunEnded))
    # The node is known while the task has not ended.
    there = replace(first.status, node=None), replace(second.status, node=None)
    assert replace(first, status=there[0]) == replace(second, status=there[1])


def test_outputs_are_downloaded_once_and_repaired_if_damaged(
    connection: Connection, plan: SubmissionPlan, tmp_path: Path
) -> None:
    spec = submit_run(connection, plan, ignore_progress)
    ended(connection, spec)
    target = tmp_path / "models"
    first = download_outputs(connection, spec, target, ignore_progress)
    assert first.downloaded == 2
    model = first.folder / "sub" / "model.bin"
    assert model.read_bytes() == bytes(range(256)) * 1000
    assert download_outputs(connection, spec, target, ignore_progress).downloaded == 0
    model.write_bytes(b"damaged")
    assert download_outputs(connection, spec, target, ignore_progress, ["sub"]).downloaded == 1
    assert model.read_bytes() == bytes(range(256)) * 1000
    assert not list(target.rglob("*.part"))
    with pytest.raises(RunnerError) as caught:
        download_outputs(connection, spec, target, ignore_progress, ["modle.bin"])
    assert caught.value.code == "R-FILE-UNKNOWN"


def foreign_run(runs: BlobContainer, plan: SubmissionPlan, suffix: str, **changes: Any) -> RunSpec:
    """Return a run that another client has written."""
    run_id = make_run_id("foreign", datetime.now(UTC), suffix)
    document = replace(plan.run, run_id=run_id).to_spec().to_json()
    runs.create(RunPaths(run_id).run, document)
    result = {"format": 1, "run_id": run_id, "status": "succeeded", **changes}
    runs.create(RunPaths(run_id).result, result)
    return parse_run(json.dumps(document).encode(), run_id)


def test_changed_output_is_refused_without_writing(
    connection: Connection, plan: SubmissionPlan, runs: BlobContainer, tmp_path: Path
) -> None:
    wrong = hashlib.sha256(b"something else").hexdigest()
    listed = [{"path": "model.bin", "size_bytes": 4, "sha256": wrong}]
    spec = foreign_run(runs, plan, "aaab", outputs=listed)
    runs.create_bytes(f"{RunPaths(spec.run_id).output(1)}model.bin", b"data", "x/y")
    with pytest.raises(RunnerError) as caught:
        download_outputs(connection, spec, tmp_path / "o", ignore_progress)
    assert caught.value.code == "R-OUTPUT-HASH"
    assert [p for p in (tmp_path / "o").rglob("*") if p.is_file()] == []


def test_hostile_output_path_is_skipped_and_a_link_is_refused(
    connection: Connection, plan: SubmissionPlan, runs: BlobContainer, tmp_path: Path
) -> None:
    hostile = [{"path": "../../outside.txt", "size_bytes": 4, "sha256": "x"}]
    spec = foreign_run(runs, plan, "aaac", outputs=hostile)
    assert download_outputs(connection, spec, tmp_path / "o", ignore_progress).files == ()
    result = load_result(runs, spec.run_id)
    assert result is not None
    assert [each.why for each in result.left_out] == ["path"]
    assert not (tmp_path / "outside.txt").exists()
    linked = [{"path": "link/outside.txt", "size_bytes": 4, "sha256": "x"}]
    spec = foreign_run(runs, plan, "aaad", outputs=linked)
    folder = tmp_path / "o" / spec.run_id
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(RunnerError) as caught:
        download_outputs(connection, spec, tmp_path / "o", ignore_progress)
    assert caught.value.code == "R-OUTPUT-PATH"
    assert not (tmp_path / "outside.txt").exists()


def test_history_is_newest_first_and_survives_a_damaged_run(
    connection: Connection, plan: SubmissionPlan, runs: BlobContainer, tmp_path: Path
) -> None:
    damaged = make_run_id("damaged", datetime.now(UTC), "zzzz")
    runs.create_bytes(RunPaths(damaged).run, b"{not json", "application/json")
    spec = submit_run(connection, plan, ignore_progress)
    ended(connection, spec)
    rebuild_index(runs, ignore_progress)  # which finds runs without an entry
    everything = list_runs(connection, limit=None)
    rows = {row.run_id: row for row in everything.rows}
    assert "R-" not in rows[damaged].problem
    assert rows[damaged].problem
    status = rows[spec.run_id].status
    assert status is not None
    assert status.state is RunState.SUCCEEDED
    listed = list(rows)
    stamps = [run_id[-20:-5] for run_id in listed]
    assert stamps == sorted(stamps, reverse=True)
    newest = list_runs(connection, limit=1)
    assert [row.run_id for row in newest.rows] == listed[:1]
    counted = newest.older + 1  # those of the first page; with others in storage, there may be more
    assert counted < len(listed) if newest.has_more else counted == len(listed)
    assert newest.older > 0
    for blob in (*index_blobs(damaged), RunPaths(damaged).run):
        runs.delete(blob)


def test_run_is_found_by_a_unique_prefix_only(
    connection: Connection, plan: SubmissionPlan, runs: BlobContainer
) -> None:
    specs = [foreign_run(runs, plan, suffix) for suffix in ("bbba", "bbbc")]
    assert find_run(connection, specs[0].run_id).run_id == specs[0].run_id
    with pytest.raises(RunnerError) as caught:
        find_run(connection, "foreign")
    assert caught.value.code == "R-RUN-AMBIGUOUS"


def test_cancel_decides_once_and_remembers_the_evictions(
    connection: Connection, settings: Settings, script: Write, runs: BlobContainer
) -> None:
    folder = script("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    recipe = load_recipe(str(folder), cwd=Path.cwd())
    waiting = plan_recipe(connection, settings, recipe)
    paths = RunPaths(waiting.run.run_id)
    for number, why in ((1, "lost"), (2, "failed"), (3, "terminated")):
        runs.create(paths.attempt_start(number), {"attempt": number})
        if why != "lost":
            end = {"attempt": number, "why": why, "node_ends": "2026-11-24T12:00:00Z"}
            runs.create(f"{paths.attempt(number)}end.json", end)
    spec = submit_run(connection, waiting, ignore_progress)
    until(lambda: "begun" in "".join(read_log(connection, spec, "stdout")))
    assert cancel_run(connection, spec).changed is True
    again = cancel_run(connection, spec)
    assert again.state is RunState.CANCELLED
    assert again.changed is False
    last = ended(connection, spec)
    assert last.result is not None
    assert (last.result.status, last.result.code) == ("cancelled", "Cancelled")
    assert (last.result.attempt, last.result.evicted) == (4, 2)
    [row] = list_runs(connection, limit=None, ids=[spec.run_id]).rows
    assert (row.attempts, row.evicted) == (4, 2)


def test_cancelling_a_finished_run_changes_nothing(
    connection: Connection, plan: SubmissionPlan
) -> None:
    spec = submit_run(connection, plan, ignore_progress)
    ended(connection, spec)
    cancelled = cancel_run(connection, spec)
    assert (cancelled.state, cancelled.changed) == (RunState.SUCCEEDED, False)


def test_growing_blob_is_read_in_whole_characters_and_lines(
    runs: BlobContainer, tmp_path: Path
) -> None:
    name = f"{tmp_path.name}/log"
    blob: Any = runs.blob(name)
    blob.create_append_blob()
    text, lines = TextCursor(runs, name), LineCursor(runs, name)
    assert (text.read(), lines.read()) == ("", [])
    data = "é世\nsecond".encode()
    blob.append_block(data[:1])
    assert (text.read(), lines.read()) == ("", [])
    blob.append_block(data[1:])
    assert text.read() == "é世\nsecond"
    assert lines.read() == ["é世"]
    blob.append_block(b" line\n")
    assert (text.read(), lines.read()) == (" line\n", ["second line"])


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * 200_000 + b"\nlast\n", 2, b"x" * 200_000 + b"\nlast\n"),
        (b"first\n" + b"x" * 200_000 + b"\nlast\n", 2, b"x" * 200_000 + b"\nlast\n"),
    ],
)
@pytest.mark.feature(34)
def test_tail_counts_lines_from_the_end(
    runs: BlobContainer, tmp_path: Path, content: bytes, lines: int, expected: bytes
) -> None:
    name = f"{tmp_path.name}/tail"
    runs.create_bytes(name, content, "text/plain")
    assert runs.read_range(name, tail_offset(runs, name, lines), None) == expected


def test_watching_client_restores_a_lost_run_json(
    connection: Connection,
    plan: SubmissionPlan,
    runs: BlobContainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = submit_run(connection, plan, ignore_progress)
    watching = watch_run(connection, spec)
    next(event for event in watching if isinstance(event, StageReported))  # the agent has read it
    runs.delete(RunPaths(spec.run_id).run)  # Azurite was killed before it had saved it

    def refused(*args: object, **kwargs: object) -> None:
        monkeypatch.undo()
        raise RunnerError(SERVICES_DOWN, "down", why="killed")

    monkeypatch.setattr(BlobContainer, "read_range", refused)
    *_, last = watching
    assert isinstance(last, RunEnded)
    assert last.result is not None
    assert find_run(connection, spec.run_id) == spec
    runs.delete(RunPaths(spec.run_id).run)
    for blob in index_blobs(spec.run_id):
        runs.delete(blob)
    rebuild_index(runs, ignore_progress)
    (row,) = (row for row in list_runs(connection, limit=None).rows if row.run_id == spec.run_id)
    assert "run.json is missing" in row.problem, "what nobody watched is listed as it is"

"""Checkpoints that the script cannot load: older ones are tried, then the run starts over."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.node.checkpoints.load_failures import read_error
from runner.protocol.sweeps import TrialReport, TrialSpec
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs

Until = Callable[..., Any]
GROUP = "train-20261124-120000-aaaa"
ERROR = "UnpicklingError: Weights only load failed"
NOTES = "automatic/key-1/claim-a-1 automatic/key-1/variables automatic/key-1/parallel"

# It saves states that it can load only if they contain "good", and ends when the file `ends` of the
# test exists; what it does in each attempt is in the variable PLAN, by the number of the attempt.
SCRIPT = """
import json, os, pathlib, pickle, sys, time
class UnpicklingError(Exception): pass
folder = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"])
attempt = os.environ["RUNNER_ATTEMPT"]
for name in os.environ.get("NOTES", "").split():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(attempt)
for old in folder.glob("*.bin"):
    if "good" not in old.read_text():
        raise UnpicklingError("Weights only load failed")
    print("resumed from", old.name, old.read_text(), flush=True)
if not list(folder.glob("*.bin")):
    print("starts from nothing", flush=True)
for state in json.loads(os.environ["PLAN"]).get(attempt, []):
    for old in folder.glob("*.bin"):
        old.unlink()
    (folder / (state.split()[0] + ".bin")).write_text(state)
    wanted = pathlib.Path(os.environ["GO"], state.split()[0])
    while not wanted.exists():
        time.sleep(0.02)
if attempt in os.environ.get("HANGS", ""):
    print("hangs", flush=True)
    time.sleep(600)
"""


def submit(task: Task, plan: dict[str, list[str]], script: str = SCRIPT, **changes: Any) -> None:
    env = {"PLAN": json.dumps(plan), "GO": str(task.folder), **changes.pop("env", {})}
    rule = {"interval_s": 0.1, "keep": 3, "max_bytes": 1 << 30}
    task.submit(script, checkpoints=rule, env=env, **changes)


def checkpoints(task: Task) -> set[int]:
    names = [name.removeprefix(f"{RUN}/checkpoints/") for name in task.service.blobs]
    return {int(name.split("/")[0]) for name in names if name.endswith("/manifest.json")}


def save_and_kill(task: Task, until: Until, states: int, before: int = 0) -> None:
    """Let an attempt save states, each in a checkpoint, and kill it as an eviction does."""
    agent = task.start()
    for number in range(before + 1, before + states + 1):
        until(lambda number=number: number in checkpoints(task))
        (task.folder / f"s{number}").touch()
    last = f'"checkpoint": {before + states},'
    until(lambda: last in task.text("attempts/1/events.jsonl"))
    task.kill(agent)


def ends(task: Task) -> list[tuple[str, int | None]]:
    """Return `why` of each attempt with an end, and the checkpoint that it could not load."""
    found: list[tuple[str, int | None]] = []
    number = 1
    while task.has(f"attempts/{number}/start.json"):
        if task.has(f"attempts/{number}/end.json"):
            end = task.json(f"attempts/{number}/end.json")
            found.append((end["why"], end.get("resume_failed", {}).get("checkpoint")))
        number += 1
    return found


def test_older_checkpoint_replaces_a_newest_one_that_cannot_be_loaded(
    task: Task, until: Until
) -> None:
    submit(task, {"1": ["s1 good", "s2 bad", "s3 never"]})
    save_and_kill(task, until, 2)
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 2), ("succeeded", None)]
    assert "resumed from s1.bin s1 good" in task.text("logs/stdout.txt")
    note = f"checkpoint 2 could not be loaded: {ERROR}"
    assert f"runner: resuming from checkpoint 1 of attempt 1, because {note}" in task.text(
        "logs/stderr.txt"
    )
    assert task.json("result.json")["evicted"] == 1
    assert checkpoints(task) == {1, 2}


def test_run_starts_over_after_the_same_failure_twice_and_keeps_the_checkpoints(
    task: Task, until: Until
) -> None:
    """The failed checkpoints outlive `keep`, and are not the newest after another eviction."""
    plan = {"1": [f"s{n} bad" for n in (1, 2, 3, 9)], "4": [f"s{n} good" for n in range(4, 10)]}
    submit(task, plan, env={"HANGS": "4"})
    save_and_kill(task, until, 3)
    (task.folder / "s9").touch()
    agent = task.start()
    for number in range(4, 10):
        until(lambda number=number: number in checkpoints(task))
        (task.folder / f"s{number}").touch()
    until(lambda: "hangs" in task.text("logs/stdout.txt"))
    until(lambda: checkpoints(task) == {1, 2, 3, 7, 8, 9})  # `keep` is three
    task.kill(agent)
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 3), ("failed", 2), ("succeeded", None)]
    assert "resumed from s9.bin s9 good" in task.text("logs/stdout.txt")
    why = f"checkpoint 3 and checkpoint 2 could not be loaded: {ERROR}; the checkpoints are kept"
    assert f"runner: starting from the beginning, because {why}" in task.text("logs/stderr.txt")
    notices = [each["message"] for each in task.lines("attempts/4/events.jsonl")]
    assert any("starting from the beginning, because" in each for each in notices)
    assert {1, 2, 3} <= checkpoints(task)


def test_evicted_fresh_start_without_a_checkpoint_starts_over_again(
    task: Task, until: Until
) -> None:
    submit(task, {"1": ["s1 bad", "s2 never"]}, env={"HANGS": "4"})
    save_and_kill(task, until, 1)
    agent = task.start()
    until(lambda: "hangs" in task.text("logs/stdout.txt"))
    task.kill(agent)
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 1), ("failed", 1), ("succeeded", None)]
    assert task.text("logs/stdout.txt").count("starts from nothing") == 3
    assert not task.has("attempts/5/resume.json")


def test_state_of_the_fallback_survives_a_kill_between_attempts(
    task: Task, until: Until, service: FakeBlobs
) -> None:
    submit(task, {"1": ["s1 good", "s2 bad", "s3 never"]})
    save_and_kill(task, until, 2)
    agent = task.start()
    until(lambda: task.has("attempts/2/end.json"))
    task.kill(agent)
    for name in [n for n in service.blobs if n.startswith(f"{RUN}/attempts/3/")]:
        del service.blobs[name]  # the next attempt may have begun
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 2), ("succeeded", None)]
    assert task.json("attempts/3/resume.json")["checkpoint"] == 1


REAL_BUG = SCRIPT.replace(
    "if attempt in os.environ",
    'if attempt != "1": raise KeyError("a bug")\nif attempt in os.environ',
)


@pytest.mark.parametrize("retries", [0, 1])
def test_bug_that_also_fails_from_the_beginning_fails_the_run_within_its_retries(
    task: Task, until: Until, retries: int
) -> None:
    submit(task, {"1": ["s1 good", "s2 never"]}, REAL_BUG, retries=retries)
    save_and_kill(task, until, 1)
    for _ in range(retries):
        assert task.run() == 1, task.output
        assert not task.has("result.json")
    assert task.run() == 1, task.output
    result = task.json("result.json")
    assert (result["code"], result["evicted"]) == ("CommandFailed", 1)
    assert ends(task) == [("failed", 1), ("failed", 1), *[("failed", None)] * (retries + 1)]


def test_different_failures_end_without_a_fresh_start(task: Task, until: Until) -> None:
    """Each checkpoint is tried, none for ever."""
    script = SCRIPT.replace(
        'raise UnpicklingError("Weights only load failed")',
        'raise type("E" + attempt + "Error", (Exception,), {})("no")',
    )
    submit(task, {"1": ["s1 bad", "s2 bad", "s3 never"]}, script)
    save_and_kill(task, until, 2)
    assert task.run() == 1, task.output
    assert [each for _, each in ends(task)] == [2, 1, 2, 1, 2, 1, None]
    assert "starts from nothing" in task.text("logs/stdout.txt")[:40]
    assert task.text("logs/stdout.txt").count("starts from nothing") == 1


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a metric", ('raise Unpick', 'print("loss=0.5", flush=True); raise Unpick')),
        ("a new file", ('raise Unpick', '(folder / "new").write_text("x"); raise Unpick')),
        ("unread", ('"good" not in old.read_text()', "True")),
        ("a missing module", ('raise UnpicklingError("W', 'raise ModuleNotFoundError("W')),
        ("a lost connection", ('raise UnpicklingError("W', 'raise ConnectionResetError("W')),
        ("out of memory", ('raise UnpicklingError("W', 'raise MemoryError("W')),
        ("killed", ('raise Unpick', "os.kill(os.getpid(), 9); raise Unpick")),
    ],
)  # fmt: skip
def test_failure_with_other_signs_fails_the_run_at_once(
    task: Task, until: Until, what: str, change: tuple[str, str]
) -> None:
    assert change[0] in SCRIPT
    submit(task, {"1": ["s1 bad", "s2 never"]}, SCRIPT.replace(*change))
    save_and_kill(task, until, 1)
    assert task.run() != 0, task.output
    assert ends(task) == [("failed", None)], what
    assert "after resuming from checkpoint 1" in task.json("result.json")["message"]


def test_notes_of_our_hooks_are_no_progress(task: Task, until: Until) -> None:
    """They are written before a framework loads its checkpoint, and committed with the next one."""
    slow = SCRIPT.replace("raise Unpick", "time.sleep(1); raise Unpick")
    submit(task, {"1": ["s1 bad", "s2 never"]}, slow, env={"NOTES": NOTES})
    agent = task.start()
    until(lambda: any("s1.bin" in manifest(task, n) for n in checkpoints(task)))
    task.kill(agent)
    before = checkpoints(task)
    assert task.run() == 0, task.output
    assert [why for why, number in ends(task) if number] == ["failed", "failed"]
    assert checkpoints(task) == before


@pytest.mark.parametrize(
    ("more", "saved"), [("", set()), (" automatic/key-1/keras-1", {1}), (" state.txt", {1})]
)
def test_first_attempt_with_notes_only_commits_no_checkpoint(
    task: Task, more: str, saved: set[int]
) -> None:
    """Else the next attempt would resume from an older checkpoint that contains no state."""
    submit(task, {}, f"{SCRIPT}\nraise KeyError('end')", env={"NOTES": NOTES + more})
    assert task.run() == 1, task.output
    assert checkpoints(task) == saved


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("a.UnpicklingError: Do \x1b[1mthis\x1b[0m.\n\t(1) x\n", "a.UnpicklingError: Do this"),
        ("\x1b[1;31mKeyError\x1b[0m: \x1b[32m'lr'\x1b[0m\n", "KeyError: 'lr'"),
        ("\x1b[?25hValueError: size mismatch\x1b[K\n", "ValueError: size mismatch"),
        ("ValueError: " + 60 * "word " + "\n", "ValueError: " + 37 * "word " + "…"),
        ("OSError: no [1m here\n", "OSError: no [1m here"),
    ],
)
def test_error_in_stderr_becomes_one_short_line_of_plain_text(
    tmp_path: Path, stderr: str, expected: str
) -> None:
    path = tmp_path / "stderr.txt"
    path.write_text(f"Traceback (most recent call last):\n{stderr}")
    assert read_error(path, tmp_path) == (expected.partition(":")[0], expected)


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "usage: t.py [-h]\nt.py: error: unrecognized arguments: --lr\n",
            ("", "t.py: error: unrecognized arguments: --lr"),
        ),
        ("╭─ Error ───╮\n│ No such option: --lr │\n╰───╯\n", ("", "No such option: --lr")),
        ("make: *** [all] Error 2\n", ("", "make: *** [all] Error 2")),
        ("WARNING: a package is old\nepoch 3 done\n", ("", "")),
        (
            "FileNotFoundError: 'CODE/data/x.csv'\n",
            ("FileNotFoundError", "FileNotFoundError: 'data/x.csv'"),
        ),
        ("", ("", "")),
    ],
)
def test_complaint_of_a_program_without_an_exception_is_found(
    tmp_path: Path, stderr: str, expected: tuple[str, str]
) -> None:
    path = tmp_path / "stderr.txt"
    path.write_text(stderr.replace("CODE", str(tmp_path)))
    assert read_error(path, tmp_path) == expected


def manifest(task: Task, number: int) -> str:
    return task.text(f"checkpoints/{number}/manifest.json")


OTHER = "other-20261121-080910-p9q8"


def copy_to_other_run(task: Task) -> None:
    """Make the checkpoints of the run those of another one, and delete the run."""
    for name, blob in list(task.service.blobs.items()):
        if name.startswith(f"{RUN}/"):
            task.service.put(
                f"{OTHER}/{name.removeprefix(f'{RUN}/')}",
                bytes(blob.data).replace(f"{RUN}/".encode(), f"{OTHER}/".encode()),
            )
            del task.service.blobs[name]


@pytest.mark.parametrize("exact", [False, True])
def test_resumed_run_tries_older_checkpoints_unless_the_user_chose_one(
    task: Task, until: Until, exact: bool
) -> None:
    submit(task, {"1": ["s1 good", "s2 bad", "s3 never"]})
    save_and_kill(task, until, 2)
    copy_to_other_run(task)
    source = {"run_id": OTHER, "checkpoint": 2, **({"exact": True} if exact else {})}
    submit(task, {}, resume_from=source)
    assert task.run() == (1 if exact else 0), task.output
    if exact:
        assert ends(task) == [("failed", None)]
    else:
        assert ends(task) == [("failed", 2), ("succeeded", None)]
        assert task.json("attempts/2/resume.json")["checkpoint"] == 1
        assert f"checkpoint 2 of {OTHER} could not be loaded" in task.text("logs/stderr.txt")


def test_resumed_run_starts_over_after_the_same_failure_twice(task: Task, until: Until) -> None:
    submit(task, {"1": ["s1 bad", "s2 never"]})
    save_and_kill(task, until, 1)
    copy_to_other_run(task)
    submit(task, {}, resume_from={"run_id": OTHER, "checkpoint": 1})
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 1), ("failed", 1), ("succeeded", None)]


@pytest.mark.parametrize(("left", "allowed"), [(3600, True), (-1, False)])
def test_fresh_start_needs_the_time_that_the_cost_cap_leaves(
    task: Task, until: Until, left: int, allowed: bool
) -> None:
    created = datetime.now(UTC) - timedelta(hours=10)
    capped: dict[str, Any] = {
        "created": created.isoformat(),
        "max_cost_micros": 5_000_000,
        "batch": {"job_limit_s": 10 * 3600 + left},
        "retries": 3,
    }
    submit(task, {"1": ["s1 bad", "s2 never"]}, **capped)
    save_and_kill(task, until, 1)
    assert task.run() == (0 if allowed else 1), task.output
    if not allowed:
        result = task.json("result.json")
        assert (result["code"], result["step"]) == ("ResumeFailed", "restore")
        assert "checkpoint 1 could not be loaded: UnpicklingError" in result["message"]
        assert f"leaves 0 s: `runner resume {RUN} --fresh` would cost up to" in result["message"]
        assert ends(task) == [("failed", 1), ("failed", 1), ("failed", None)]


def test_trial_that_starts_over_is_not_reported_as_failed(task: Task, until: Until) -> None:
    trial = TrialSpec("1", 1, {"lr": 0.1}).to_json()
    submit(task, {"1": ["s1 bad", "s2 never"]}, trial=trial, group=GROUP)
    save_and_kill(task, until, 1)
    assert task.run() == 0, task.output
    assert ends(task) == [("failed", 1), ("failed", 1), ("succeeded", None)]
    blob = f"sweeps/{GROUP}/trials/1"
    report = TrialReport.parse(blob, task.service.blobs[blob].metadata)
    assert report is not None
    assert report.state == "succeeded"

"""A document nested so deeply that Python's reader gives up is one that cannot be read, no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runner.protocol.codec import parse_json
from tests.repetition import slow_after
from tests.unit.node.agent_task import RUN, Task

DEEP = b'{"format": 1, "after": ' + b"[" * 200_000
SCRIPT = "print('it ran')"


def test_too_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)


def test_agent_parses_json_with_one_function() -> None:
    root = Path(__file__).parents[4] / "runner"
    readers = {
        path.relative_to(root).as_posix()
        for folder in ("node", "protocol")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text(encoding="utf-8"))
    }
    # Programs of their own, which read our files: the search for metrics, the sampler, and the
    # reader of Aim, whose end the agent takes for a folder that cannot be read.
    programs = {
        "node/metric_files/aim_program.py",
        "node/script/pattern_worker.py",
        "protocol/samplers.py",
    }
    assert readers == {"protocol/codec.py", *programs}


@pytest.mark.slow
def test_deep_run_json_fails_the_run_and_not_the_agent(task: Task) -> None:
    task.submit(SCRIPT)
    task.service.put(f"{RUN}/run.json", DEEP)
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["status"], result["code"]) == ("failed", "RunSpecInvalid")
    assert "nested too deeply" in result["message"]


@pytest.mark.parametrize("body", slow_after(1, [DEEP, b"[]", b"no json", b'"text"']))
def test_predecessor_with_an_unreadable_outcome_blocks(task: Task, body: bytes) -> None:
    task.submit(SCRIPT, after=["a-1"])
    task.service.put("a-1/result.json", body)
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["status"], result["code"]) == ("cancelled", "Blocked")
    assert result["message"] == "blocked by a-1, which left a result that cannot be read"


@pytest.mark.parametrize("body", slow_after(1, [DEEP, b"[]", b'{"exit_code": []}', b"null"]))
def test_unreadable_outcome_counts_as_an_outcome(task: Task, body: bytes) -> None:
    task.submit(SCRIPT)
    task.service.put(f"{RUN}/result.json", body)
    assert task.run() == 1
    assert "is over already, exit code 1" in task.output
    assert not task.has("attempts/1/start.json")


@pytest.mark.parametrize("body", slow_after(1, [DEEP, b"[]", b"no json"]))
def test_unreadable_end_of_an_attempt_is_no_failure(task: Task, body: bytes) -> None:
    task.submit("raise SystemExit(3)", retries=1)
    for name, content in (("start", b'{"attempt": 1}'), ("end", body)):
        task.service.put(f"{RUN}/attempts/1/{name}.json", content)
    assert task.run() == 3
    assert not task.has("result.json"), "one failure of two is not the end"
    assert task.json("attempts/2/end.json")["why"] == "failed"


def test_deep_model_documents_fail_only_the_registration(task: Task) -> None:
    task.submit(SCRIPT, model={"name": "cats", "aliases": [], "path": None})
    task.service.put(f"{RUN}/models/cats.json", DEEP)
    assert task.run() == 0
    assert "the model was not registered" in task.output


def test_invalid_storage_variable_is_named_without_its_value(task: Task) -> None:
    task.submit(SCRIPT)
    task.settings["RUNNER_STORAGE"] = '{"sas": "top-secret", "runs": ' + "[" * 100_000
    assert task.run() == 1
    assert "invalid RUNNER_STORAGE" in task.output
    assert "top-secret" not in task.output


def test_invalid_secrets_variable_is_named_without_its_value(task: Task) -> None:
    task.submit(SCRIPT)
    task.settings["RUNNER_SECRETS"] = json.dumps({"values": 1})[:-1] + ', "x": ' + "[" * 100_000
    assert task.run() == 1
    assert "invalid RUNNER_SECRETS" in task.output

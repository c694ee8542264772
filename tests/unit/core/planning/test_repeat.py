"""A run once more, from its `run.json` alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.core.planning.repeat import (
    RepeatKind,
    Repetition,
    change_params,
    choose_same_pool,
    order_runs,
    plan_again,
)
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import RunnerError
from runner.protocol.models import ModelRequest
from runner.protocol.run_spec import ResumeFrom, RunSpec, parse_run

OUTPUTS = local_outputs(LocalState(20001, 20002, 1, 1))
NOW = datetime(2026, 11, 22, tzinfo=UTC)
RAW: dict[str, Any] = {
    "format": 1,
    "run_id": "mnist-20261121-143005-k3f9",
    "experiment": "digits",
    "created": "2026-11-21T14:30:05+00:00",
    "recipe": {"name": "mnist", "description": "Ziffern", "source": "folder"},
    "code": {
        "sha256": "a" * 64,
        "blob": "code/" + "a" * 64,
        "size_bytes": 5,
        "git_revision": "b" * 40,
        "git_dirty": True,
    },
    "agent": {"sha256": "c" * 64, "blob": "code/" + "c" * 64},
    "command": [
        *("python", "train.py", "--epochs", "5", "--rate", "0.5", "--fast", "true"),
        *("--name", "x", "--", "--epochs", "5"),
    ],
    "params": {"epochs": 5, "rate": 0.5, "fast": True, "name": "x"},
    "env": {"A": "1"},
    "requirements": {"file": "requirements.txt", "sha256": "d" * 64},
    "python": "3.12",
    "data": {"name": "mnist", "source": "path", "notice": None, "prefix": "mnist/1/", "files": []},
    "outputs": ["model"],
    "metrics": {"patterns": {"loss": "l=(.*)"}, "primary": "loss", "goal": "min"},
    "timeout_s": 60,
    "retries": 2,
    "batch": {
        "account": "gone",
        "pool": "LOCAL",
        "vm_size": "old",
        "spot": True,
        "job_id": "digits_local-2",
        "task_id": "mnist-20261121-143005-k3f9",
    },
    "image": None,
    "price": {"usd_per_hour": 1},
    "a field of a later version": {"kept": True},
    "group": "the submit of many",
    "origin": {"kind": "retry", "run_id": "older"},
    "resume_from": {"run_id": "older", "checkpoint": 3},
}


def spec(**changes: Any) -> RunSpec:
    return parse_run(json.dumps({**RAW, **changes}).encode(), RAW["run_id"])


def again(asked: Repetition, **changes: Any) -> dict[str, Any]:
    found = spec(**changes)
    plan = plan_again(
        found,
        asked,
        OUTPUTS,
        choose_same_pool(None, found, OUTPUTS, asked.nodes),
        run_id="mnist-20261122-000000-aaaa",
        created=NOW,
        agent_sha256="e" * 64,
        origin={"kind": asked.kind, "run_id": found.run_id},
    )
    return plan.to_spec().to_json()


def test_retry_keeps_known_and_unknown_fields() -> None:
    document = again(Repetition("retry"))
    decided = {
        "run_id": "mnist-20261122-000000-aaaa",
        "created": NOW.isoformat(),
        "agent": {"sha256": "e" * 64, "blob": "code/" + "e" * 64},
        "batch": {
            "account": OUTPUTS.batch_account,
            "pool": "local",
            "vm_size": OUTPUTS.pools[0].vm_size,
            "spot": OUTPUTS.pools[0].spot,
            "job_id": "digits_local",
            "task_id": "mnist-20261122-000000-aaaa",
        },
        "origin": {"kind": "retry", "run_id": RAW["run_id"]},
        "resume_from": None,
        "group": None,
    }
    assert document == {**RAW, **decided}


@pytest.mark.parametrize("kind", ["retry", "resume"])
@pytest.mark.parametrize(
    ("recorded", "asked", "expected"),
    [
        (None, None, None),
        (None, "HOOK", {"env": "HOOK"}),
        ({"env": "OLD"}, None, {"env": "OLD"}),
        ({"env": "OLD"}, "HOOK", {"env": "HOOK"}),
        ({"env": "OLD"}, "off", None),
        (
            {"env": "OLD"},
            "https://v.vault.azure.net/secrets/hook",
            {"keyvault": "https://v.vault.azure.net/secrets/hook"},
        ),
    ],
)
def test_repeated_run_may_tell_another_webhook(
    kind: RepeatKind, recorded: Any, asked: str | None, expected: Any
) -> None:
    changes = {"notify": {"url": recorded, "on": ["failure"]}} if recorded else {}
    found = again(Repetition(kind, notify=asked), **changes).get("notify")
    assert (found["url"] if found else None) == expected
    if recorded and found:
        assert found["on"] == ["failure"]


def test_url_instead_of_its_variable_is_refused_without_repeating_it() -> None:
    with pytest.raises(RunnerError) as caught:
        again(Repetition("retry", notify="https://hooks.slack.com/services/S3CRET"))
    assert caught.value.code == "R-NOTIFY-SOURCE"
    assert "S3CRET" not in str(caught.value)


def test_resumed_run_may_have_another_number_of_nodes() -> None:
    resources = {"gpus": 1, "nodes": 2}
    asked = Repetition("resume", nodes=1)
    assert again(asked, resources=resources)["resources"] == {"gpus": 1, "nodes": 1}
    assert again(Repetition("resume"), resources={"nodes": 1})["resources"] == {"nodes": 1}
    with pytest.raises(RunnerError, match="cannot run a task on 3 nodes"):
        choose_same_pool(None, spec(), OUTPUTS, 3)


def test_reproduction_starts_from_the_same_checkpoint_and_packages() -> None:
    document = again(Repetition("reproduce", constraints=("numpy==2.1",)))
    assert document["resume_from"] == RAW["resume_from"]
    assert document["requirements"] == {**RAW["requirements"], "constraints": ["numpy==2.1"]}
    assert document["origin"] == {"kind": "reproduce", "run_id": RAW["run_id"]}


def test_reproduction_is_no_new_version_of_the_model_and_moves_no_alias() -> None:
    model = {"name": "cats", "aliases": ["production"], "path": "model*"}
    reproduced = again(Repetition("reproduce"), model=model)["model"]
    assert reproduced == {**model, "register": False}
    assert ModelRequest.from_json(model).register
    assert not ModelRequest.from_json(reproduced).register
    assert again(Repetition("retry"), model=model)["model"] == model


def test_retry_waits_for_and_reads_the_retried_predecessors() -> None:
    made = {"kind": "run", "run_id": "a-1", "path": "model"}
    inputs = {"x": made, "y": {"kind": "url", "url": "u"}}
    changes: dict[str, Any] = {"after": ["a-1", "b-1"], "inputs": inputs}
    document = again(Repetition("retry", after={"a-1": "a-2", "b-1": "b-1"}), **changes)
    assert document["after"] == ["a-2", "b-1"]
    assert document["inputs"] == {**inputs, "x": {**made, "run_id": "a-2"}}
    assert again(Repetition("resume"), **changes)["after"] == []


def test_resume_records_its_checkpoint() -> None:
    before, written = ResumeFrom(RAW["run_id"], 7), {"run_id": RAW["run_id"], "checkpoint": 7}
    assert again(Repetition("resume", resume_from=before))["resume_from"] == written
    chosen = replace(before, exact=True)
    document = again(Repetition("resume", resume_from=chosen))["resume_from"]
    assert document == {**written, "exact": True}
    assert ResumeFrom.from_json(document) == chosen
    assert not ResumeFrom.from_json({**written, "checkpoint": None, "exact": True}).exact


def test_changed_parameter_keeps_its_place_in_the_command() -> None:
    document = again(Repetition("resume", ("epochs=9", "fast=no")))
    assert document["params"] == {"epochs": 9, "rate": 0.5, "fast": False, "name": "x"}
    assert document["command"] == [
        *("python", "train.py", "--epochs", "9", "--rate", "0.5", "--fast", "false"),
        *("--name", "x", "--", "--epochs", "5"),
    ]


def test_changed_parameter_takes_the_place_that_the_command_names() -> None:
    template = ["python", "train.py", "{epochs}", "--x={name}", None]
    document = again(Repetition("resume", ("epochs=9",)), template=template)
    assert document["template"] == template
    assert document["command"] == [
        *("python", "train.py", "9", "--x=x", "--rate", "0.5", "--fast", "true"),
    ]


def test_changing_a_parameter_missing_from_the_command_is_refused() -> None:
    with pytest.raises(RunnerError) as caught:
        again(Repetition("resume", ("epochs=9",)), command=["python", "train.py"])
    assert caught.value.code == "R-SET-COMMAND"


@pytest.mark.parametrize(
    ("text", "code"),
    [("epochs=much", "R-SET-VALUE"), ("epoch=1", "R-SET-UNKNOWN"), ("rate=nan", "R-SET-VALUE")],
)
def test_parameter_keeps_the_type_of_its_value(text: str, code: str) -> None:
    with pytest.raises(RunnerError) as caught:
        change_params(spec(), [text])
    assert caught.value.code == code


def test_script_without_parameters_gets_a_new_argument_at_the_end() -> None:
    document = again(
        Repetition("resume", ("lr=0.1",)), params={}, command=["python", "train.py", "--lr", "1"]
    )
    assert document["params"] == {"lr": "0.1"}
    assert document["command"] == ["python", "train.py", "--lr", "1", "--lr", "0.1"]


def test_missing_pool_is_named_with_the_known_ones() -> None:
    found = spec(batch={**RAW["batch"], "pool": "t4"})
    with pytest.raises(RunnerError) as caught:
        choose_same_pool(None, found, OUTPUTS)
    assert "t4" in caught.value.what
    assert "local" in (caught.value.fix or "")
    assert choose_same_pool("local", found, OUTPUTS).id == "local"


def test_repetition_uses_a_pool_with_as_many_nodes() -> None:
    found = spec(resources={"nodes": 2})
    small, large = (local_outputs(LocalState(20001, 20002, nodes, 1)) for nodes in (1, 2))
    with pytest.raises(RunnerError) as caught:
        choose_same_pool(None, found, small)
    assert caught.value.code == "R-POOL-NODES"
    plan = plan_again(
        found,
        Repetition("retry"),
        large,
        choose_same_pool(None, found, large),
        run_id="r-1",
        created=NOW,
        agent_sha256="e" * 64,
        origin=None,
    )
    assert plan.recipe.resources.nodes == 2
    assert plan.warnings == (), "the folder of its recipe is unknown"


def test_cycle_of_runs_to_retry_is_an_expected_error() -> None:
    assert order_runs({"b": ("a",), "a": ()}) == ("a", "b")
    with pytest.raises(RunnerError) as caught:
        order_runs({"a": ("b",), "b": ("a",), "c": ()})
    assert caught.value.code == "R-RETRY-CYCLE"
    assert "a -> b -> a" in caught.value.what.replace("b -> a -> b", "a -> b -> a")

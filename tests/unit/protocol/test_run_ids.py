"""Run ids and job ids."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from runner.protocol.errors import RunnerError
from runner.protocol.groups import LaterRun, parse_group
from runner.protocol.paths import (
    check_reference,
    find_similar_run,
    is_run_id,
    job_id_for,
    make_run_id,
    newest_first,
    parse_sweep_id,
    slug,
    trial_prefix,
)

MOMENT = datetime(2026, 11, 21, 14, 30, 5, tzinfo=UTC)
BATCH_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def test_run_id_is_name_time_and_suffix() -> None:
    assert make_run_id("mnist", MOMENT, "k3f9") == "mnist-20261121-143005-k3f9"


@pytest.mark.parametrize(
    "name", ["x" * 200, "Éàü / weird..name", "---", "", "a" * 42 + "-", "日本"]
)
def test_run_id_of_any_name_is_a_valid_recognised_batch_id(name: str) -> None:
    run_id = make_run_id(name, MOMENT, "k3f9")
    assert BATCH_ID.fullmatch(run_id)
    assert is_run_id(run_id)


def test_run_id_of_a_trial_names_its_sweep() -> None:
    sweep, trial = "net-20261124-120000-aaaa", "net-1-20261124-120000-aaaa"
    assert parse_sweep_id(trial) == sweep
    assert parse_sweep_id(sweep) is None
    assert parse_sweep_id("net-big-20261124-120000-aaaa") is None
    assert trial.startswith(trial_prefix(sweep))


def test_slug_never_starts_or_ends_with_a_separator() -> None:
    assert slug("  My Model (v2)! ") == "my-model-v2"


@pytest.mark.parametrize(
    "text", ["code", "mnist", "mnist-20261121-143005", "a" * 60 + "-20261121-143005-k3f9"]
)
def test_other_folder_names_are_no_run_ids(text: str) -> None:
    assert not is_run_id(text)


def test_runs_sort_by_time_whatever_their_name() -> None:
    ids = ["z-20261120-000000-aaaa", "a-20261121-000000-aaaa", "m-20261120-235959-aaaa"]
    assert newest_first(ids) == [ids[1], ids[2], ids[0]]


@pytest.mark.parametrize("experiment", ["mnist", "x" * 100])
def test_job_id_fits_batch_with_room_for_a_successor(experiment: str) -> None:
    job_id = job_id_for(experiment, "gpu-spot-pool")
    assert job_id.endswith("_gpu-spot-pool")
    assert BATCH_ID.fullmatch(f"{job_id}-99999")


@pytest.mark.parametrize("text", ["@last", "mnist", "mnist-2026", "m"])
def test_ids_prefixes_and_last_are_references(text: str) -> None:
    assert check_reference(text) == text


@pytest.mark.parametrize("text", ["", "@first", "../x", "a b", "Mnist", "-x", "x" * 65])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RunnerError) as caught:
        check_reference(text)
    assert caught.value.code == "R-RUN-REFERENCE"


def test_mistyped_id_or_prefix_suggests_the_newest_similar_run() -> None:
    ids = ["mnist-20261122-000000-aaaa", "mnist-20261121-000000-bbbb", "cats-20261120-000000-cccc"]
    assert find_similar_run("mnits", ids) == ids[0]
    assert find_similar_run("mnist-20261121-000000-bbbx", ids) == ids[1]
    assert find_similar_run("cast-2026", ids) == ids[2]
    assert find_similar_run("zebra", ids) is None
    one_day = ["mnist-20261121-143005-k3f9"]
    assert find_similar_run("s-20261121-143005-k3f8", one_day) is None, "only the time is alike"
    assert find_similar_run("mnist-20261121-143005-k3f8", one_day) == one_day[0]
    assert find_similar_run("x", []) is None


@pytest.mark.attack
@pytest.mark.parametrize("text", ["../models/m", "a/b", "x' or id ne 'x", "a\n", "\x1b[8m", "a b"])
@pytest.mark.parametrize("key", ["group_id", "job_id", "pool", "run_id"])
def test_record_of_a_group_has_ids_of_batch_only(key: str, text: str) -> None:
    task = {"run_id": "a", "after": []}
    group = {"format": 1, "group_id": "g", "name": "g", "created": "2026-11-21T14:30:05+00:00"}
    group |= {"job_id": "j", "pool": "p", "tasks": {"a": task}}
    parse_group(json.dumps(group).encode(), "g")
    (task if key == "run_id" else group)[key] = text
    with pytest.raises(RunnerError, match="R-GROUP-BROKEN"):
        parse_group(json.dumps(group).encode(), "g")
    claim = json.dumps({"run_id": text, "created": "2026-11-21T14:30:05+00:00"})
    assert LaterRun.parse("sweeps/g/runs/1.2", claim.encode()) is None


@pytest.mark.attack
@pytest.mark.parametrize("end", ["\n", "\x85", " "])
def test_run_id_ends_with_its_suffix(end: str) -> None:
    assert not is_run_id(f"mnist-20261121-143005-k3f9{end}")

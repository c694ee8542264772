"""`checkpoints` of train.yaml, and its fields in run.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.flows.runs.attempts import Resumed, parse_resumed
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import CheckpointRule
from tests.unit.core.recipe_maker import load_text, plan


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("name: x", CheckpointRule(60, 3, 10 << 30)),
        ("checkpoints: true", CheckpointRule(60, 3, 10 << 30)),
        ("checkpoints: false", None),
        ("checkpoints: {interval: 10}", CheckpointRule(10, 3, 10 << 30)),
        ("checkpoints: {interval: 1m30s, keep: 1}", CheckpointRule(90, 1, 10 << 30)),
        ("checkpoints: {automatic: false}", CheckpointRule(60, 3, 10 << 30, automatic=False)),
        ("checkpoints: {max_size: 500MB}", CheckpointRule(60, 3, 500_000_000)),
        ("checkpoints: {max_size: 1.5 GiB}", CheckpointRule(60, 3, 3 << 29)),
    ],
)
def test_checkpoint_settings_are_read(
    tmp_path: Path, text: str, rule: CheckpointRule | None
) -> None:
    assert load_text(tmp_path, text).checkpoints == rule


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("checkpoints:", "has no value"),
        ("checkpoints: 5", "expected `key: value` lines"),
        ("checkpoints: {intervall: 10s}", "checkpoints.intervall: unknown key"),
        ("checkpoints: {interval: soon}", "'soon' is not a duration"),
        ("checkpoints: {interval: 0}", "less than 1s"),
        ("checkpoints: {keep: 0}", "the minimum is 1"),
        ("checkpoints: {max_size: big}", "'big' is not a size"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load_text(tmp_path, text)
    assert problem in f"{caught.value.what} {caught.value.why}"


def test_run_json_contains_the_checkpoint_settings() -> None:
    made = plan()
    told = made.to_spec().to_json()["checkpoints"]
    assert told == {"interval_s": 60, "keep": 3, "max_bytes": 10 << 30, "automatic": True}
    none = replace(made, recipe=replace(made.recipe, checkpoints=None))
    assert none.to_spec().to_json()["checkpoints"] is None


def test_resume_of_an_attempt_has_a_short_text() -> None:
    content = b'{"run_id": "r-1", "checkpoint": 7, "attempt": 1, "step": 40, "skipped": []}'
    resumed = parse_resumed(content)
    assert resumed is not None
    assert resumed == Resumed("r-1", 7, 1, 40)
    assert resumed.text("r-1") == "checkpoint 7 of attempt 1, step 40"
    assert resumed.text("r-2") == "checkpoint 7 of r-1, step 40"
    for broken in (b"", b"[]", b"{}", b'{"run_id": "r", "checkpoint": "x", "attempt": 1}'):
        assert parse_resumed(broken) is None

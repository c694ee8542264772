from __future__ import annotations

from runner.core.checks import failed
from runner.protocol.errors import RunnerError


def test_detail_of_a_check_is_one_line() -> None:
    err = RunnerError("R-X", "a.yaml has 2 problems", why="line 1: one\n       line 2: two")
    assert failed("config", err).detail == "a.yaml has 2 problems (line 1: one; line 2: two)"
    assert failed("config", RunnerError("R-X", "what")).detail == "what"

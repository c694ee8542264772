"""Ctrl-C while something works that is told of it by the terminal."""

from __future__ import annotations

import _thread
import threading

import pytest

from runner_infra.engine.automation import run_despite_interrupt


def test_work_that_succeeds_after_ctrl_c_returns_its_result() -> None:
    told = threading.Event()

    def work() -> str:
        _thread.interrupt_main()
        assert told.wait(120)
        return "made"

    assert run_despite_interrupt(work, told.set) == "made"


def test_work_stopped_by_ctrl_c_is_an_interrupt() -> None:
    told = threading.Event()

    def work() -> None:
        _thread.interrupt_main()
        assert told.wait(120)
        raise RuntimeError("update canceled")

    with pytest.raises(KeyboardInterrupt):
        run_despite_interrupt(work, told.set)


def test_second_ctrl_c_stops_at_once() -> None:
    told, end = threading.Event(), threading.Event()

    def work() -> None:
        _thread.interrupt_main()
        assert told.wait(120)
        _thread.interrupt_main()
        end.wait(120)

    with pytest.raises(KeyboardInterrupt):
        run_despite_interrupt(work, told.set)
    end.set()


def test_failure_without_ctrl_c_is_unchanged() -> None:
    def work() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_despite_interrupt(work, lambda: None)

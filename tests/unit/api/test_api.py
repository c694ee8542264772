"""The Python API without services: import time, displays and escaping."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

import runner
from runner.api.arguments import to_overrides, to_text
from runner.api.html import Table
from runner.api.progress import LiveView, Update, live, live_card
from runner.core.progress import Progress
from runner.core.states import RunState, RunStatus
from runner.flows.runs import events
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import StageEvent


def test_import_is_lazy_and_exports_every_name() -> None:
    program = (
        "import json, sys, runner; first = sorted(sys.modules); "
        "names = dir(runner); [getattr(runner, name) for name in runner.__all__]; "
        "print(json.dumps([first, names, sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, names, later = json.loads(done.stdout)
    assert not {"azure", "pydantic", "typer", "rich", "runner.api", "runner.core"} & set(first)
    assert not {"azure.batch", "azure.storage", "pydantic", "typer", "rich"} & set(later)
    assert set(runner.__all__) <= set(names)
    with pytest.raises(AttributeError):
        _ = runner.no_such_thing


def stage(state: Any, done: float | None = None) -> events.StageReported:
    return events.StageReported(StageEvent(1, "", "data", state, "fetching", done, 10, "files"))


def watched() -> Iterator[events.WatchEvent]:
    yield events.StatusChanged(RunStatus(RunState.RUNNING), 1)
    yield stage("start")
    yield stage("progress", 4)
    yield events.LogText("stdout", "first\nsec")
    yield events.LogText("stdout", "ond\nbar 1\rbar 2\r")
    yield events.LogText("stdout", "\n")
    yield events.MetricSeen(MetricPoint("", 1, 1, "loss", 0.5))
    yield events.RunEnded(RunStatus(RunState.FAILED, "it broke"), None)


def test_snapshots_end_with_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.api.progress._INTERVAL_S", 0.0)
    seen: list[Update] = []
    view = LiveView(seen.append)
    view.on_progress(Progress("upload", "progress", "", 1, 2, "bytes"))
    view.submitted("r-1")
    assert view.follow(watched(), None).state is RunState.FAILED
    assert (seen[0].run_id, seen[0].state, seen[0].stage) == (None, "submitting", "upload")
    assert any((update.stage, update.done, update.total) == ("data", 4, 10) for update in seen)
    last = seen[-1]
    assert (last.state, last.message, last.stage) == ("failed", "it broke", "")
    assert last.lines == ("first", "second", "bar 2")
    assert last.metrics == {"loss": 0.5}
    assert str(last) == "r-1  failed  it broke  loss 0.5"


def test_snapshots_are_limited_to_a_few_per_second() -> None:
    seen: list[Update] = []
    view = LiveView(seen.append, "r-1")

    def many() -> Iterator[events.WatchEvent]:
        for n in range(5000):
            yield events.LogText("stdout", f"line {n}\n")
        yield events.RunEnded(RunStatus(RunState.SUCCEEDED), None)

    view.follow(many(), None)
    assert len(seen) < 50
    assert seen[-1].lines[-1] == "line 4999"


HOSTILE = "<script>alert('x')</script>&\"'"


def test_texts_of_a_run_are_escaped() -> None:
    update = Update(
        run_id=HOSTILE,
        state=HOSTILE,
        stage=HOSTILE,
        message=HOSTILE,
        done=3,
        total=2,
        unit=HOSTILE,
        metrics={HOSTILE: float("nan")},
        lines=(HOSTILE, HOSTILE),
        elapsed_s=1.0,
    )
    shown = live_card(update)
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "value='1.000'" in shown


class Notebook:
    """Stands for IPython in a kernel: keeps what is displayed."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.kernel = object()

    def update(self, shown: SimpleNamespace) -> None:
        self.shown.append(shown.data)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook()
    display = SimpleNamespace(
        HTML=lambda data: SimpleNamespace(data=data),
        display=lambda first, display_id: found.update(first) or found,
    )
    ipython = SimpleNamespace(get_ipython=lambda: found, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_notebook_redraws_and_terminal_shows_nothing(notebook: Notebook) -> None:
    with live(None, "r-1") as view:
        view.follow(watched(), None)
    assert "failed" in notebook.shown[-1]
    drawn = len(notebook.shown)
    seen: list[Update] = []
    with live(seen.append, "r-1") as view:
        view.follow(watched(), None)
    assert seen
    assert len(notebook.shown) == drawn, "a callback takes the display's place"
    del notebook.kernel  # IPython on a terminal
    with live(None, "r-1") as view:
        view.follow(watched(), None)
    assert len(notebook.shown) == drawn


def begin_and_raise(view: LiveView, error: BaseException) -> None:
    view.on_progress(Progress("upload", "start", "", 0, 9, "bytes"))
    raise error


def test_other_operation_is_shown_by_name_until_its_end(notebook: Notebook) -> None:
    with live(None, what="data.put <cats>") as view:
        view.on_progress(Progress("upload", "start", "", 0, 9, "bytes"))
    assert "data.put &lt;cats&gt;" in notebook.shown[0]
    assert ("working" in notebook.shown[0], "done" in notebook.shown[-1]) == (True, True)
    lost = RunnerError("R-X", "what", fix="fix")
    for error, state in ((lost, "failed"), (KeyboardInterrupt(), "interrupted")):
        for what in ("data.put", ""):  # a failed submission is reported, too
            with pytest.raises(type(error)), live(None, what=what) as view:
                begin_and_raise(view, error)
            assert state in notebook.shown[-1]


def test_early_error_shows_no_display(notebook: Notebook) -> None:
    with pytest.raises(RunnerError), live(None):
        raise RunnerError("R-SET-UNKNOWN", "what", fix="fix")
    assert not notebook.shown


def test_table_is_escaped_and_limited_to_200_rows() -> None:
    rows = Table(
        [HOSTILE] * 250, lambda row: {"path": row, "state": "failed", "size": 3, "of": None}
    )
    shown = rows._repr_html_()
    assert ("<script" in shown, "and 50 more" in shown, shown.count("<tr>")) == (False, True, 201)
    assert (rows[0], rows[1:3], len(rows), rows == [HOSTILE] * 250) == (
        HOSTILE,
        [HOSTILE] * 2,
        250,
        True,
    )
    assert "no rows" in Table[str]([], lambda row: {})._repr_html_()


def test_notebook_shows_an_error_without_traceback() -> None:
    error = RunnerError("R-X", "what", why="why", fix="fix")
    assert error._render_traceback_() == str(error).splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (0.1, "0.1"),
        (1e-12, "1e-12"),
        (True, "true"),
        ("a b", "a b"),
        (10**20, "1" + "0" * 20),
    ],
)
def test_parameters_become_text(value: object, text: str) -> None:
    assert to_text("x", value) == text


class _Kind(str, Enum):  # noqa: UP042  the form that is formatted as its name
    ADAM = "adam"


class _Size(IntEnum):
    LARGE = 3


def test_enum_members_become_their_values() -> None:
    assert to_overrides({"by": _Kind.ADAM, "size": _Size.LARGE}) == ("by=adam", "size=3")


def test_numpy_scalars_are_accepted_and_arrays_rejected() -> None:
    scalar = SimpleNamespace(shape=(), item=lambda: 0.5)
    assert to_text("x", scalar) == "0.5"
    assert to_text("x", None) == "null"
    for wrong in ([1], SimpleNamespace(shape=(2,), item=lambda: 1)):
        with pytest.raises(RunnerError) as caught:
            to_text("x", wrong)
        assert caught.value.code == "R-SET-VALUE"

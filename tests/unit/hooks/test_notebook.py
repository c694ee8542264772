"""The notebook keeps a part of long outputs, and names a failed cell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.hooks import notebook
from runner.hooks.notebook import (
    OutputLimit,
    Saver,
    choose_kernel,
    describe_failure,
    has_failed,
    limit_message,
    readable,
    register_kernel,
)
from runner.protocol.task import NOTEBOOK_STOPPED

MIB = 1 << 20


def printed(text: str) -> dict[str, Any]:
    return {"msg_type": "stream", "content": {"name": "stdout", "text": text}}


def shown(text: str) -> dict[str, Any]:
    return {"msg_type": "display_data", "content": {"data": {"text/html": text}}}


def test_agent_and_driver_use_the_same_messages() -> None:
    assert notebook.STOPPED == NOTEBOOK_STOPPED


def test_output_beyond_the_limit_is_truncated_with_one_note() -> None:
    limit = OutputLimit(cell_bytes=MIB)
    messages = [printed("x" * (MIB - 10)), printed("y" * 100 * MIB), printed("z")]
    assert [limit_message(each, limit, "run-1") for each in messages] == [True, True, False]
    kept = "".join(each["content"]["text"] for each in messages[:2])
    assert kept.startswith("x" * (MIB - 10) + "y" * 10 + "\n[runner: the output of this cell is")
    assert "longer than 1 MB" in kept
    assert "runner logs run-1" in kept
    limit.start_cell()
    assert limit_message(printed("next cell"), limit, "run-1")


def test_image_beyond_the_limit_is_replaced_by_the_note() -> None:
    limit = OutputLimit(cell_bytes=MIB)
    picture = shown("x" * 2 * MIB)
    assert limit_message(picture, limit, "run-1")
    assert "left out here" in picture["content"]["data"]["text/plain"]
    assert not limit_message(shown("small"), limit, "run-1")


def test_cleared_outputs_do_not_count() -> None:
    limit = OutputLimit(cell_bytes=MIB)
    for _ in range(10):
        assert limit_message(printed("x" * (MIB // 2)), limit, "run-1")
        limit_message({"msg_type": "clear_output", "content": {}}, limit, "run-1")
    assert not limit.is_exceeded


def test_whole_notebook_has_a_limit() -> None:
    limit = OutputLimit(cell_bytes=MIB, notebook_bytes=3 * MIB)
    for _ in range(3):
        limit.start_cell()
        assert limit_message(printed("x" * MIB), limit, "run-1")
    limit.start_cell()
    last = printed("x")
    assert limit_message(last, limit, "run-1")
    assert "outputs of this notebook are longer" in last["content"]["text"]


def test_failure_names_cell_line_and_error() -> None:
    traceback = [
        "\x1b[31m-----\x1b[39m",
        "Cell \x1b[32mIn[3]\x1b[39m\x1b[32m, line 3\x1b[39m\n      1 x = 1\n      2 if x:",
        "\x1b[32m----> 3\x1b[39m     f()\n",
        "Cell In[2], line 2, in f()\n----> 2     raise ValueError('bad')\n",
        "ValueError: bad",
    ]
    source = "x = 1\nif x:\n    f()\n"
    said = describe_failure("nb.ipynb", 3, source, "ValueError: bad\nmore", traceback)
    assert said == "cell In [3] of nb.ipynb failed at line 3, `f()`: ValueError: bad"


def test_syntax_error_names_its_line() -> None:
    traceback = ["  Cell In[1], line 2\n    y = = 1\n        ^\nSyntaxError: invalid syntax\n"]
    said = describe_failure(
        "nb.ipynb", 1, "x = 1\ny = = 1", "SyntaxError: invalid syntax", traceback
    )
    assert (
        said == "cell In [1] of nb.ipynb failed at line 2, `y = = 1`: SyntaxError: invalid syntax"
    )


def failing(*tags: str, **metadata: Any) -> dict[str, Any]:
    error = {"output_type": "error", "ename": "ValueError", "evalue": "x"}
    return {"metadata": {"tags": list(tags), **metadata}, "outputs": [error]}


def test_cell_that_may_fail_does_not_fail_the_notebook() -> None:
    expected, plain = failing("raises-exception"), failing("other")
    exits = {"outputs": [{"output_type": "error", "ename": "SystemExit", "evalue": "0"}]}
    assert not has_failed({"cells": [expected, exits, {"outputs": []}, {}]})
    assert has_failed({"cells": [expected, plain]})
    assert has_failed({"cells": [{"metadata": {"papermill": {"exception": True}}, "outputs": []}]})
    for metadata in ({"execution": {"allow_errors": True}}, {"allow_errors": True}):
        assert not has_failed({"cells": [plain], "metadata": metadata})


def test_notebook_is_read_with_a_byte_order_mark_and_without_some_keys() -> None:
    whole = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {},
        "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None,
                   "source": "1"}],
    }  # fmt: skip
    content = json.dumps(whole).encode()
    assert readable(content) is None
    assert json.loads(readable(b"\xef\xbb\xbf" + content) or "") == whole
    bare = {"cells": [{"cell_type": "code", "source": "1"}, {"cell_type": "markdown"}]}
    found = json.loads(readable(json.dumps(bare).encode()) or "")
    assert (found["nbformat"], found["metadata"], found["cells"][0]["outputs"]) == (4, {}, [])
    assert found["cells"][1] == {"cell_type": "markdown", "metadata": {}}


def test_kernel_is_that_of_the_environment_or_of_the_language() -> None:
    own = f"{sys.prefix}/share/jupyter/kernels/"
    installed = {"python3": f"{own}python3", "xpython": f"{own}xpython", "bash": "/usr/share/bash"}
    assert choose_kernel("conda-env-x", "python", installed) == "python3"
    assert choose_kernel("xpython", "python", installed) == "xpython"
    assert choose_kernel("xpython", "Python", {"xpython": "/home/me/xpython"}) == "python3"
    assert choose_kernel("python3", "", {}) == "python3"
    assert choose_kernel("bash", "bash", installed) == "bash"
    assert choose_kernel("ir", "R", installed) is None


def test_kernel_of_an_installed_package_is_described_to_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, file in (("tcsh_kernel", "__main__.py"), ("plain_kernel", "kernel.py")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    for name in ("plain", "../tcsh", "missing"):
        register_kernel(name, "plain", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert "JUPYTER_PATH" not in os.environ
    register_kernel("tcsh", "tcsh", tmp_path / "out")
    described = json.loads((tmp_path / "out/kernels/tcsh/kernel.json").read_text())
    assert described["argv"] == ["python", "-m", "tcsh_kernel", "-f", "{connection_file}"]
    assert os.environ["JUPYTER_PATH"] == str(tmp_path / "out")


def test_slow_saves_are_made_less_often(monkeypatch: Any) -> None:
    now, saves = [100.0], list[float]()
    monkeypatch.setattr(notebook, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def save() -> None:
        saves.append(now[0])
        now[0] += 0.2

    saver = Saver(save)
    saver.save()
    now[0] += 1
    saver.save()
    assert (len(saves), saver.is_due) == (1, True)
    now[0] += 1.5
    saver.save()
    assert (len(saves), saver.is_due) == (2, False)

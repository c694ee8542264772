"""The notebook of the guides, executed by a real kernel."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Cli, evict_node_of, show_ended, until
from tests.e2e.extras import Extras

pytestmark = pytest.mark.slow
_EXECUTE = """
import json, sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read("notebook.ipynb", as_version=4)
client = NotebookClient(notebook, timeout=200, kernel_name="python3")
shown = []
client.on_comm_open_target = None
execute = client.process_message
def watch(message, cell, index):
    if message["msg_type"] in ("display_data", "update_display_data"):
        shown.append([index, message["content"]["data"].get("text/html", "")])
    return execute(message, cell, index)
client.process_message = watch
client.execute()
cells = [dict(cell) for cell in notebook.cells]
print(json.dumps({"cells": cells, "shown": shown}))
"""


def test_notebook_shows_a_live_run_and_its_outcome(
    cli: Cli, extras: Extras, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "guides" / "notebook.ipynb").read_text(encoding="utf-8")
    assert "time.sleep(0.5)" in text
    slower = text.replace("time.sleep(0.5)", "time.sleep(3)")  # to be seen while it runs
    (tmp_path / "notebook.ipynb").write_text(slower, encoding="utf-8")
    done = subprocess.run(
        [str(extras.bin / "python"), "-c", _EXECUTE],
        env={**cli.env, "PATH": f"{extras.bin}:{cli.env['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    trained, card, metric, model, table, wrong = [cell["outputs"] for cell in code[1:]]
    drawn = [html for _, html in found["shown"] if html]
    assert any("running" in html and "epoch" in html for html in drawn), "while it ran"
    assert "succeeded" in trained[0]["data"]["text/html"], "drawn over, in one place"
    assert len(trained) == 1
    assert "model.txt" in card[0]["data"]["text/html"]
    assert "last=0.25" in metric[0]["data"]["text/plain"]
    assert model[-1]["data"]["text/plain"] == "'learned'"
    assert "<table>" in table[0]["data"]["text/html"]
    assert "did you mean epochs?" in "\n".join(wrong[0]["traceback"])
    assert "Traceback" not in "\n".join(wrong[0]["traceback"])


TRAIN = """\
import json, os, pathlib, time
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state.json")
start = json.loads(state.read_text())["epoch"] + 1 if state.exists() else 0
print("starting at epoch", start)
for epoch in range(start, min(EPOCHS, start + 20) if start else EPOCHS):
    time.sleep(PAUSE_S)
    print(f"epoch={epoch} loss={LR / (epoch + 1)}", flush=True)
    part = state.with_name("state.part")
    part.write_text(json.dumps({"epoch": epoch}))
    part.replace(state)  # a state that is written in place may be incomplete when it is stopped
"""


def write_notebook(path: Path, *sources: str) -> Path:
    """Write a notebook whose first cell is tagged `parameters`."""
    kernel = {"name": "of-a-laptop", "display_name": "Python 3", "language": "python"}
    cells = [
        {
            "cell_type": "code", "metadata": {"tags": [] if number else ["parameters"]},
            "source": source, "outputs": [], "execution_count": None,
        }
        for number, source in enumerate(sources)
    ]  # fmt: skip
    document = {"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": kernel}}
    path.write_text(json.dumps({**document, "cells": cells}))
    return path


def executed(cli: Cli, run_id: str) -> list[str]:
    """Download the executed notebook of a run, and return what its cells printed."""
    cli.ok("files", "get", run_id, "train.ipynb")
    text = (cli.cwd / "outputs" / run_id / "train.ipynb").read_text()
    found = [cell.get("outputs") or [] for cell in json.loads(text)["cells"]]
    return ["".join("".join(each.get("text", "")) for each in outputs) for outputs in found]


@pytest.mark.feature(50)
def test_notebook_is_stored_while_it_runs_and_resumes_after_an_eviction(
    cli: Cli, tmp_path: Path
) -> None:
    write_notebook(tmp_path / "train.ipynb", "EPOCHS = 1\nLR = 0.1\nPAUSE_S = 0.0", TRAIN)
    options = ("--set", "EPOCHS=300", "--set", "PAUSE_S=0.5", "--detach")
    run_id = cli.json("train", tmp_path / "train.ipynb", *options)["run_id"]

    def shows_an_epoch() -> bool:
        listed = cli.run("files", "ls", run_id).stdout
        return "train.ipynb" in listed and "epoch=3" in executed(cli, run_id)[-1]

    until(shows_an_epoch)
    evict_node_of(cli, run_id, "--notice", "12")
    shown = show_ended(cli, run_id)
    assert (shown["state"], len(shown["attempts"])) == ("succeeded", 2)
    first = re.findall(r"starting at epoch (\d+)", cli.ok("logs", run_id))
    assert first[0] == "0"
    assert int(first[1]) > 3
    assert f"epoch={int(first[1]) + 19}" in executed(cli, run_id)[-1]


@pytest.mark.feature(50)
def test_failing_cell_is_named_and_the_partial_notebook_is_stored(cli: Cli, tmp_path: Path) -> None:
    failing = "print(len('x' * N))\nprint('y' * 20_000_000)\n1 / 0"
    write_notebook(tmp_path / "train.ipynb", "N = 1", "print('before')", failing, "print('never')")
    run_id = cli.json("train", tmp_path / "train.ipynb", "--set", "N=3", "-d")["run_id"]
    shown = show_ended(cli, run_id)
    assert shown["state"] == "failed"
    why = cli.json("why", run_id)
    assert why["cause"] == "NotebookCellFailed"
    assert why["message"] == (
        "cell In [4] of train.ipynb failed at line 3, `1 / 0`: ZeroDivisionError: division by zero"
    )
    printed = executed(cli, run_id)
    assert "before\n" in printed
    [cut] = [text for text in printed if text.startswith("3\nyyy")]
    assert len(cut) < 6_000_000
    assert f"runner logs {run_id}" in cut


def test_notebook_that_names_no_language_runs_with_its_parameters(cli: Cli, tmp_path: Path) -> None:
    """Programs write such notebooks, and so do editors before the user has chosen a kernel."""
    path = write_notebook(tmp_path / "train.ipynb", "N = 1", "print(N * 'x')")
    path.write_text(json.dumps({**json.loads(path.read_text()), "metadata": {}}))
    run_id = cli.json("train", path, "--set", "N=3", "-d")["run_id"]
    assert show_ended(cli, run_id)["state"] == "succeeded"
    assert executed(cli, run_id)[-1] == "xxx\n"


def test_notebook_that_nbclient_executes_succeeds(cli: Cli, tmp_path: Path) -> None:
    """A cell may fail, another is skipped, and the file has a mark, braces and few keys."""
    cells = [
        {"cell_type": "code", "source": "import runner; print('own', runner.X)"},
        {"cell_type": "code", "source": "1 / 0", "metadata": {"tags": ["raises-exception"]}},
        {"cell_type": "code", "source": "1 / 0", "metadata": {"tags": ["skip-execution"]}},
        {"cell_type": "code", "source": "print('after')"},
    ]
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "__init__.py").write_text("X = 7\n")
    path = tmp_path / "train{0}.ipynb"
    path.write_text("\ufeff" + json.dumps({"cells": cells}), encoding="utf-8")
    run_id = cli.json("train", tmp_path, "--entry", path.name, "-d")["run_id"]
    assert show_ended(cli, run_id)["state"] == "succeeded"
    log = cli.ok("logs", run_id)
    assert "own 7" in log
    assert "after" in log


@pytest.mark.feature(50)
def test_notebook_can_be_swept_over_its_parameters(cli: Cli, tmp_path: Path) -> None:
    write_notebook(tmp_path / "train.ipynb", "EPOCHS = 1\nLR = 0.1\nPAUSE_S = 0.0", TRAIN)
    cli.ok("sweep", "start", tmp_path / "train.ipynb", "-p", "LR=0.1,0.01", "--set", "EPOCHS=2")
    trials = cli.json("sweep", "show", "@last")["trials"]
    assert [(each["params"]["LR"], each["value"]) for each in trials] == [
        (0.01, 0.005), (0.1, 0.05),
    ]  # fmt: skip
    assert "loss=0.005" in executed(cli, trials[0]["run_id"])[-1]

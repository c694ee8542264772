"""The notebook of the guides, executed by a real kernel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Cli
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


def test_notebook_shows_a_run_live_and_what_came_of_it(
    cli: Cli, extras: Extras, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "docs" / "guides" / "notebook.ipynb", tmp_path)
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


def cell(source: str, *tags: str) -> dict[str, Any]:
    return {
        "cell_type": "code", "metadata": {"tags": list(tags)}, "source": source,
        "outputs": [], "execution_count": None,
    }  # fmt: skip


@pytest.mark.feature(50)
def test_notebook_runs_on_a_node_with_its_parameters_and_comes_back_executed(
    cli: Cli, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```yaml\n(command: \[sh, -c, 'papermill.*?)```", page, re.DOTALL)
    (folder := tmp_path / "book").mkdir()
    (folder / "train.yaml").write_text(recipe)
    (folder / "requirements.txt").write_text("papermill\nipykernel\n")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell("epochs = 1", "parameters"), cell("print('trained', epochs, 'epochs')")]
    document = {"nbformat": 4, "nbformat_minor": 4, "metadata": {"kernelspec": kernel}}
    (folder / "train.ipynb").write_text(json.dumps({**document, "cells": cells}))
    refused = cli.run("train", folder / "train.ipynb")
    assert "papermill" in refused.stderr
    run_id = cli.json("train", folder, "--set", "epochs=4")["run_id"]
    assert "trained 4 epochs" in cli.ok("logs", run_id) + cli.ok("logs", run_id, "--stderr")
    [executed] = (cli.cwd / "outputs").rglob("train.ipynb")
    last = json.loads(executed.read_text())["cells"][-1]
    assert last["outputs"][0]["text"] == ["trained 4 epochs\n"]

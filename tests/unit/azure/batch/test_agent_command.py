"""The command lines that start the agent execute the submitted bytes, and nothing else."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from azure.batch import models

from runner.azure.auth.credentials import Connection
from runner.azure.batch.translate import to_task
from runner.core.planning.plan import RunContent, RunPlan
from runner.core.states import OTHER_AGENT, TaskView, explain_task
from runner.protocol.run_spec import CodeRef, Resources
from tests.pythons import find_python
from tests.unit.core.recipe_maker import plan, recipe

IMAGE = "docker.io/library/python:3.12"
FORMS = {
    "plain": recipe(),
    "container": recipe(image=IMAGE),
    "node group": recipe(resources=Resources(nodes=2)),
    "node group in containers": recipe(image=IMAGE, resources=Resources(nodes=2)),
}
# Says where it is, and imports a module after it has replaced the archive that contains it.
MAIN = """\
import sys
print(__name__, __file__, type(__loader__).__name__, sys.argv, sys.path[0], sys.flags.isolated)
if "-c" in sys.orig_argv:  # else Python reads the archive again
    with open(sys.argv[0], "wb") as file:
        file.write(EVIL)
import late
raise ValueError("as before")
"""


def archive(**modules: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, text in modules.items():
            file.writestr(f"{name}.py", text)
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


EVIL = archive(__main__='print("EXECUTED")', late='print("EXECUTED")')
AGENT = archive(__main__=f"EVIL = {EVIL!r}\n{MAIN}", late='print("late module")')


def planned(form: str, agent: bytes = AGENT) -> RunPlan:
    sha256 = hashlib.sha256(agent).hexdigest()
    return plan(FORMS[form], content=RunContent(CodeRef("c" * 64, 4096, 2), sha256, None, None))


def task(run: RunPlan) -> models.BatchTaskCreateOptions:
    nobody = SimpleNamespace(
        outputs=SimpleNamespace(events_version=None),
        node_storage=lambda *_: {},
        resource_file=lambda blob, name, _: models.ResourceFile(http_url=blob, file_path=name),
    )
    return to_task(run, cast("Connection", nobody))


def commands(form: str) -> list[list[str]]:
    """Return the words of each command line that starts the agent, as Batch splits them."""
    found = task(planned(form))
    texts = [found.command_line]
    if found.multi_instance_settings is not None:
        texts.append(found.multi_instance_settings.coordination_command_line)
    # A container on one node has the shell as its entry point.
    shell = "/bin/sh " if form == "container" else ""
    return [shlex.split(f"{shell}{text}") for text in texts]


def execute(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    python = tools / "python3"
    python.unlink(missing_ok=True)
    python.symlink_to(sys.executable)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "AZ_BATCH_TASK_SHARED_DIR": str(folder)}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("form", FORMS)
def test_agent_starts_as_without_the_check(form: str, tmp_path: Path) -> None:
    for words in commands(form):
        path = tmp_path / "runner-agent.pyz"
        path.write_bytes(AGENT)
        role = ["join"] if words[-1].endswith("join") else []
        name = str(path) if role else "runner-agent.pyz"
        before = execute([sys.executable, "-I", name, *role], tmp_path)
        done = execute(words, tmp_path)
        assert done.stdout == before.stdout
        assert done.stdout.endswith("\nlate module\n")
        assert f'File "{path}/__main__.py", line 8, in <module>' in done.stderr
        assert done.stderr.splitlines()[-1] == before.stderr.splitlines()[-1]
        assert path.read_bytes() == EVIL, "the module was read from the checked bytes"


@pytest.mark.attack
@pytest.mark.parametrize("form", FORMS)
def test_replaced_agent_is_not_executed(form: str, tmp_path: Path) -> None:
    for words in commands(form):
        (tmp_path / "runner-agent.pyz").write_bytes(EVIL)
        done = execute(words, tmp_path)
        assert (done.returncode, done.stdout) == (OTHER_AGENT, "")
    why, fix = explain_task(TaskView("completed", exit_code=OTHER_AGENT))
    assert "differs from the submitted one" in why
    assert "submit the run again" in fix


@pytest.mark.attack
@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_each_python_executes_only_the_checked_bytes(minor: int, tmp_path: Path) -> None:
    python = find_python(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} here, so it is not tried")
    [words] = commands("plain")
    path = tmp_path / "runner-agent.pyz"
    path.write_bytes(AGENT)
    done = execute([str(python), *words[1:]], tmp_path)
    assert done.stdout.splitlines()[-1] == "late module", done.stderr
    path.write_bytes(EVIL)
    assert execute([str(python), *words[1:]], tmp_path).returncode == OTHER_AGENT


@pytest.mark.attack
@pytest.mark.parametrize("form", FORMS)
def test_hash_in_a_record_cannot_become_a_command(form: str) -> None:
    run = planned(form)
    content = replace(run.content, agent_sha256="x; touch owned;" + "0" * 49)
    with pytest.raises(ValueError, match="not the hash of an agent"):
        task(replace(run, content=content))

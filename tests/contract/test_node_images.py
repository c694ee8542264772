"""Images of nodes: start tasks and tasks that were written for an image of one's own."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from batch_emulator.domain.validation.machine_rules import MachineChoice
from batch_emulator.executor.isolation import choose_isolation
from batch_emulator.executor.node_images import parse_images
from tests import plain_http
from tests.contract.server import KEY, Running, Things, eventually, serving

GALLERY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/galleries/mine/images/ml"
UBUNTU = {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"}
AGENT = "batch.node.ubuntu 24.04"
_CHOSEN = choose_isolation("auto", Path(tempfile.gettempdir(), "emulator-of-images"))
MODES = [
    pytest.param("user", marks=pytest.mark.skipif(_CHOSEN.owner is None, reason=_CHOSEN.why)),
    "environment",
]


@pytest.fixture
def folder() -> Generator[Path]:
    """Yield a folder that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="images-") as found:
        Path(found).chmod(0o755)
        yield Path(found)


def image(folder: Path, python: Path) -> Path:
    """Create an image with a Python that has a package, two programs, a variable and a file."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/sh").symlink_to("/bin/sh")
    (folder / "opt/venv/bin").mkdir(parents=True)
    (folder / "opt/venv/bin/python3").symlink_to(python)
    (folder / "opt/venv/pyvenv.cfg").write_text(f"home = {python.parent}\n")
    packages = folder / f"opt/venv/lib/python{_version(python)}/site-packages"
    packages.mkdir(parents=True)
    (packages / "of_image.py").write_text("where = __file__\n")
    for name in ("bin/mytool", "opt/mytool"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} $*\n")
        (folder / name).chmod(0o755)
    (folder / "etc").mkdir()
    (folder / "etc/environment").write_text("PATH=/opt/venv/bin:/bin\nMODELS=/opt/models\n")
    (folder / "opt/models").mkdir()
    (folder / "opt/models/one").write_text("weights")
    return folder


def _version(python: Path) -> str:
    own = python == Path(sys.executable).resolve()
    known = _CHOSEN.python.version if not own else sys.version_info[:2]
    return ".".join(map(str, known))


def run(things: Things, pool: str, line: str) -> str:
    job = things.job(pool)
    task = things.task(job, line)
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0, things.text(job, task, "stderr.txt")
    return things.text(job, task)


def machine(**reference: str) -> Any:
    return models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(**reference), node_agent_sku_id=AGENT
    )


def nodes_of(running: Running, pool: str) -> list[dict[str, Any]]:
    url = f"{running.url}/_emulator/pools/{pool}/nodes"
    answer = plain_http.get(url, headers={"Authorization": f"Bearer {KEY}"})
    return answer.json()["value"]


@pytest.mark.feature(60)
@pytest.mark.parametrize("mode", MODES)
def test_start_task_finds_what_its_image_has(folder: Path, mode: str) -> None:
    python = _CHOSEN.python.executable
    made = image(folder / "image", python)
    images = parse_images([f"{GALLERY}={made}"], MachineChoice())
    settings = {"images": images, "isolation": mode}
    with serving(folder / "data", settings=settings) as running:
        things = Things(running.client)
        script = "mytool 1; python3 -c 'import of_image; print(of_image.where)'; cat $MODELS/one"
        start = models.BatchStartTask(
            command_line=f"/bin/sh -c {shlex.quote(f'set -e; {script}')}", wait_for_success=True
        )
        mine = things.pool(
            virtual_machine_configuration=machine(virtual_machine_image_id=GALLERY),
            start_task=start,
            target_dedicated_nodes=1,
        )
        other = things.pool(
            virtual_machine_configuration=machine(**UBUNTU), target_dedicated_nodes=1
        )
        [node] = things.wait_nodes(mine, 1, "idle", "starttaskfailed")
        said = b"".join(
            running.client.download_node_file(mine, str(node.id), "startup/stdout.txt")
        ).decode()
        packages = made / f"opt/venv/lib/python{_version(python)}/site-packages"
        assert said.splitlines() == ["bin/mytool 1", f"{packages}/of_image.py", "weights"]
        assert run(things, mine, "/opt/mytool 2") == "opt/mytool 2\n"
        line = "/bin/sh -c 'command -v mytool || echo none; echo ${MODELS:-unset}'"
        assert run(things, other, line) == "none\nunset\n"
        assert [node["image"] for node in nodes_of(running, mine)] == [str(made)]
        assert [node["image"] for node in nodes_of(running, other)] == [""]
        where = run(things, mine, "/bin/sh -c 'command -v python3'").strip()
        assert where.startswith(str(folder / "data"))  # what pip installs stays on the node


def test_every_command_finds_the_programs_of_its_image(folder: Path) -> None:
    made = image(folder / "image", _CHOSEN.python.executable)
    spaced = made / "opt/my tool"
    spaced.mkdir()
    (spaced / "go").write_text('#!/bin/sh\necho "$1" >> "$AZ_BATCH_NODE_SHARED_DIR/ran"\n')
    (spaced / "go").chmod(0o755)
    images = parse_images([f"{GALLERY}={made}"], MachineChoice())
    with serving(folder / "data", settings={"images": images}) as running:
        things = Things(running.client)
        pool = things.pool(
            virtual_machine_configuration=machine(virtual_machine_image_id=GALLERY),
            start_task=models.BatchStartTask(command_line='"/opt/my tool/go" start'),
            target_dedicated_nodes=1,
            enable_inter_node_communication=True,
        )
        [node] = things.wait_nodes(pool, 1, "idle")
        job = things.job(
            pool,
            job_preparation_task=models.BatchJobPreparationTask(
                command_line="'/opt/my tool/go' preparation"
            ),
            job_release_task=models.BatchJobReleaseTask(command_line='"/opt/my tool/go" release'),
        )
        settings = models.MultiInstanceSettings(
            number_of_instances=1, coordination_command_line='"/opt/my tool/go" coordination'
        )
        task = things.task(job, '"/opt/my tool/go" task', multi_instance_settings=settings)
        things.wait_task(job, task)
        things.end_job(job)
        ran = b"".join(running.client.download_node_file(pool, str(node.id), "shared/ran"))
    expected = ["start", "preparation", "coordination", "task", "release"]
    assert ran.decode().split() == expected


def test_restart_without_the_image_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = image(folder / "image", _CHOSEN.python.executable)
    images = parse_images([f"{GALLERY}={made}"], MachineChoice())
    with serving(folder / "data", settings={"images": images}) as running:
        configuration = machine(virtual_machine_image_id=GALLERY)
        pool = Things(running.client).pool(virtual_machine_configuration=configuration)
    with serving(folder / "data") as running:
        said = f"the image of pool {pool} has no folder now, before {made}"
        eventually(lambda: said in caplog.text)
        assert running.emulator.account.pools[pool.lower()].image == ""

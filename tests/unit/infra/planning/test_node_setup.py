"""The start task of a pool, run as Batch runs it, with stand-ins for what a GPU node has."""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.core.pricing.machines import find_machine
from runner.node.environment.virtual_env import NEWER_PYTHON
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.pool import ImageChoice, PoolConfig
from runner_infra.planning.node_setup import FILES_OPTIONS, StartTask, blobfuse_options, start_task

ROOT = Path(__file__).parents[4]
_T4 = "Tesla T4, 580.95.05"
_TOOLS = [
    "bash",
    "base64",
    "timeout",
    "grep",
    "tr",
    "mkdir",
    "rm",
    "cp",
    "cat",
    "mv",
    "sleep",
    "mktemp",
    "touch",
    "chmod",
    "env",
]


def pool(**values: Any) -> PoolConfig:
    return PoolConfig.model_validate({"id": "t4", "vm_size": "Standard_NC4as_T4_v3", **values})


@dataclass(frozen=True)
class Node:
    """A scratch node: a shared folder, and a PATH with nothing on it but what a test puts there."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "shared" / "runner"

    @property
    def own(self) -> Path:
        return self.folder / "startup" / "runner"

    def has(self, name: str, script: str) -> None:
        """Put a command on PATH; it writes down its calls."""
        calls = shlex.quote(str(self.folder / "calls"))
        file = self.folder / "bin" / name
        file.unlink(missing_ok=True)
        file.write_text(f'#!/bin/bash\necho {name} "$@" >>{calls}\n{script}\n', encoding="utf-8")
        file.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        file = self.folder / "calls"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [line for line in lines if line.split()[0] == name]

    def run(
        self, start: StartTask, also: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line like the node agent, without a shell."""
        return subprocess.run(
            shlex.split(start.command_line),
            env={
                "PATH": str(self.folder / "bin"),
                "HOME": str(self.folder),
                "AZ_BATCH_NODE_SHARED_DIR": str(self.folder / "shared"),
                "AZ_BATCH_NODE_STARTUP_DIR": str(self.folder / "startup"),
                "RUNNER_PAUSE": "0.01",
                **dict(start.variables),
                "RUNNER_GPU_WAIT": "0",
                **(also or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name in ("bin", "shared", "startup"):
        (tmp_path / name).mkdir()
    for tool in _TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "/nonexistent")
    node = Node(tmp_path)
    node.has("uv", 'echo "uv 0.0"; [[ $1 != venv ]] || mkdir -p "${@: -1}/bin"')
    node.has("python3", "true")
    node.has("nvidia-smi", f"echo {_T4!r}")
    return node


@pytest.mark.feature(4)
def test_node_with_its_gpu_and_uv_is_ready(node: Node) -> None:
    done = node.run(start_task(pool(), 1))
    assert (done.returncode, done.stderr) == (0, "")
    assert _T4 in done.stdout
    assert "part of the image" in done.stdout
    assert done.stdout.rstrip().endswith("ready")
    copied = node.home / "bin" / "uv"  # containers have no folder of the node's image
    assert not copied.is_symlink()
    assert copied.read_bytes() == (node.folder / "bin" / "uv").read_bytes()


@pytest.mark.parametrize(
    ("stub", "gpus", "says"),
    [
        (None, 1, "nvidia-smi is not on this node"),
        ("echo no devices were found; exit 6", 1, "no devices were found nvidia-smi exited with"),
        (f"echo {_T4!r}", 4, "1 of 4 GPUs respond"),
        ("true", 1, "0 of 1 GPUs respond: none"),
        (f"echo {_T4!r}; echo 'GPU 00000001:00:00.0, [Unknown Error]'", 2, "1 of 2 GPUs respond"),
        (f"echo {_T4!r}; echo 'WARNING: infoROM is corrupted'", 2, "1 of 2 GPUs respond"),
    ],
)
def test_node_without_its_gpus_fails_with_reason_and_fix(
    node: Node, stub: str | None, gpus: int, says: str
) -> None:
    if stub is None:
        (node.folder / "bin" / "nvidia-smi").unlink()
    else:
        node.has("nvidia-smi", stub)
    done = node.run(start_task(pool(), gpus))
    assert done.returncode == 1
    assert done.stderr.startswith("error[R-NODE-GPU]: ")
    assert says in done.stderr
    assert "\n  fix: " in done.stderr
    assert not node.home.exists()


def test_late_driver_is_awaited(node: Node) -> None:
    late = f"[[ -e {node.folder}/up ]] || {{ touch {node.folder}/up; exit 9; }}; echo {_T4!r}"
    node.has("nvidia-smi", late)
    done = node.run(start_task(pool(), 1), {"RUNNER_GPU_WAIT": "30"})
    assert done.returncode == 0, done.stderr
    assert len(node.calls("nvidia-smi")) == 2


def test_size_without_gpus_needs_no_driver(node: Node) -> None:
    (node.folder / "bin" / "nvidia-smi").unlink()
    assert node.run(start_task(pool(vm_size="Standard_D2s_v3"), 0)).returncode == 0


def test_missing_setup_script_fails_the_node(node: Node) -> None:
    start = start_task(pool(), 1)
    assert node.run(start, {"RUNNER_NODE_SETUP": ""}).returncode != 0
    assert node.run(start, {"RUNNER_NODE_SETUP": "!"}).returncode != 0


_VENV = """
if [[ "$1 $2" == "-m venv" ]]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
elif [[ "$1 $2" == "-m pip" ]]; then
  [[ ! -e {folder}/offline ]] || {{ echo "no network" >&2; exit 1; }}
  printf '#!/bin/bash\\necho uv 0.13.8\\n' >"${{0%/*}}/uv"
  chmod +x "${{0%/*}}/uv"
fi
"""


@pytest.fixture
def bare(node: Node) -> Node:
    """Return a marketplace node, with Python and without uv."""
    (node.folder / "bin" / "uv").unlink()
    node.has("python3", _VENV.format(folder=node.folder))
    return node


def test_pinned_uv_is_installed_where_the_agent_finds_it(bare: Node) -> None:
    done = bare.run(start_task(pool(), 1))
    assert done.returncode == 0, done.stderr
    assert "uv 0.13.8 is installed" in done.stdout
    uv = bare.home / "bin" / "uv"
    assert os.access(uv, os.X_OK)
    (install,) = [call for call in bare.calls("python3") if "pip install" in call]
    assert "--require-hashes" in install
    assert (bare.own / "uv" / "pin").read_text("utf-8") == (
        (ROOT / "custom_image" / "uv.txt").read_text("utf-8")
    )


def test_second_boot_changes_nothing(bare: Node) -> None:
    start = start_task(pool(preload=("mnist",)), 1)
    assert bare.run(start).returncode == 0
    first = {path: path.lstat().st_mtime_ns for path in bare.folder.glob("s*/**/*")}
    again = bare.run(start)
    assert again.returncode == 0
    assert "it is not changed" in again.stdout
    assert first == {path: path.lstat().st_mtime_ns for path in bare.folder.glob("s*/**/*")}
    assert sum("pip install" in call for call in bare.calls("python3")) == 1


def test_second_boot_uses_no_file_writable_by_tasks(bare: Node) -> None:
    start = start_task(pool(preload=("mnist",)), 1)
    assert bare.run(start).returncode == 0
    elsewhere = bare.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    planted = f"#!/bin/bash\ntouch {bare.folder}/taken-over\n"
    shutil.rmtree(bare.home)
    for name in ("bin", "uv/bin"):
        (bare.home / name).mkdir(parents=True)
        for program in ("uv", "python"):
            (bare.home / name / program).write_text(planted, encoding="utf-8")
            (bare.home / name / program).chmod(0o755)
    (bare.home / "cache").symlink_to(elsewhere)

    done = bare.run(start)

    assert done.returncode == 0, done.stderr
    assert "uv 0.13.8 is installed" in done.stdout
    assert not (bare.folder / "taken-over").exists()
    assert oct(elsewhere.stat().st_mode)[-3:] == "700"
    assert list(elsewhere.iterdir()) == []


def test_retried_start_task_starts_over(bare: Node) -> None:
    (bare.home / "cache" / "half").mkdir(parents=True)
    assert bare.run(start_task(pool(), 1)).returncode == 0
    assert not (bare.home / "cache" / "half").exists()


def test_node_without_network_fails_after_retries(bare: Node) -> None:
    (bare.folder / "offline").touch()
    done = bare.run(start_task(pool(), 1))
    assert done.returncode == 1
    assert "error[R-NODE-UV]: " in done.stderr
    assert sum("pip install" in call for call in bare.calls("python3")) == 3
    (bare.folder / "offline").unlink()
    assert bare.run(start_task(pool(), 1)).returncode == 0


def test_changed_pin_replaces_uv(bare: Node) -> None:
    start = start_task(pool(), 1)
    assert bare.run(start).returncode == 0
    newer = base64.b64encode(b"uv==9.9.9 --hash=sha256:00\n").decode()
    assert bare.run(start, {"RUNNER_UV": newer}).returncode == 0
    assert (bare.own / "uv" / "pin").read_text("utf-8").startswith("uv==9.9.9")


def test_preloaded_recipe_is_installed_into_the_agents_cache(node: Node) -> None:
    node.has("uv", f'echo "uv 0.0"; env >>{node.folder}/env; [[ $1 != pip ]] || cat "${{@: -1}}"')
    done = node.run(start_task(pool(preload=("mnist",)), 1))
    assert done.returncode == 0, done.stderr
    recipe = ROOT / "runner" / "recipes" / "mnist"
    for file in (recipe / "requirements-gpu.txt", recipe / "requirements.txt"):
        assert file.read_text("utf-8") in done.stdout
        assert f"mnist/{file.name} is in the cache" in done.stdout
    assert f"UV_CACHE_DIR={node.home}/cache/uv" in (node.folder / "env").read_text("utf-8")
    assert oct((node.home / "cache").stat().st_mode)[-3:] == "777"
    assert not (node.home / "preloading").exists()


def test_preloading_uses_the_python_of_the_agent(node: Node) -> None:
    start = start_task(pool(preload=("mnist",)), 0)
    assert node.run(start).returncode == 0
    assert f"--python {node.folder}/bin/python3" in node.calls("uv")[1]
    shutil.rmtree(node.own)
    node.has("python3", "exit 1")  # it is older than 3.11
    assert node.run(start).returncode == 0
    assert f"--python {NEWER_PYTHON}" in node.calls("uv")[-2]


def test_failed_preload_is_reported_and_keeps_the_node(node: Node) -> None:
    node.has("uv", 'echo "uv 0.0"; [[ $1 != pip ]]')
    done = node.run(start_task(pool(preload=("mnist",)), 0))
    assert done.returncode == 0
    assert "warning[R-NODE-PRELOAD]: could not preload requirements.txt" in done.stderr
    assert "is in the cache" not in done.stdout


def test_gpu_packages_are_only_for_nodes_with_gpus() -> None:
    def files(gpus: int) -> list[str]:
        preload = dict(start_task(pool(preload=("mnist", "mnist")), gpus).variables)
        return [entry.split(":")[1] for entry in preload["RUNNER_PRELOAD"].split()]

    assert files(1) == ["requirements-gpu.txt", "requirements.txt"]
    assert files(0) == ["requirements.txt"]


def test_unknown_recipe_is_an_error_with_similar_names() -> None:
    with pytest.raises(RunnerError) as caught:
        start_task(pool(preload=("mnits",)), 1)
    assert caught.value.code == "R-POOL-PRELOAD"
    assert "did you mean 'mnist'?" in str(caught.value.fix)
    assert caught.value.exit_code == ExitCode.PREFLIGHT


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, "60"),
        ({"vm_size": "Standard_NV12ads_A10_v5"}, "900"),
        ({"vm_size": "Standard_NV12ads_A10_v5", "image": ImageChoice(source="gallery")}, "60"),
    ],
)
def test_driver_installed_by_an_extension_is_awaited(values: dict[str, Any], seconds: str) -> None:
    machine = find_machine(pool(**values).vm_size)
    assert machine is not None
    start = start_task(pool(**values), 1, machine.driver)
    assert dict(start.variables)["RUNNER_GPU_WAIT"] == seconds


def test_start_task_equals_the_golden_one() -> None:
    """A change of the start task affects every pool, so a person should review it."""
    start = start_task(pool(preload=("mnist",)), 1)
    lines = [start.command_line]
    for name, value in start.variables:
        parts = value.split() if name == "RUNNER_PRELOAD" else [value]
        lines += [f"{name}={part if len(part) < 80 else _shown(part)}" for part in parts]
    golden = ROOT / "tests" / "golden" / "start_task.txt"
    assert golden.read_text("utf-8") == "\n".join(lines) + "\n"
    assert sum(len(name) + len(value) for name, value in start.variables) < 20_000


def _shown(encoded: str) -> str:
    *before, text = encoded.rsplit(":", 1)
    first = base64.b64decode(text, validate=True).decode().splitlines()
    return ":".join([*before, f"[{len(first)} lines: {first[0]}]"])


@pytest.mark.slow
def test_pinned_uv_is_installed_by_its_hashes(node: Node) -> None:
    """Downloads uv (20 MB) as a marketplace node does."""
    (node.folder / "bin" / "uv").unlink()
    node.has("python3", f'exec {sys.executable} "$@"')
    settings = ("PIP_", "SSL_CERT_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    network = {name: value for name, value in os.environ.items() if name.startswith(settings)}
    start = start_task(pool(), 1)
    done = node.run(start, network)
    assert done.returncode == 0, done.stderr
    found = subprocess.run(
        [str(node.home / "bin" / "uv"), "--version"], capture_output=True, text=True, check=True
    )
    pin = (ROOT / "custom_image" / "uv.txt").read_text("utf-8")
    assert f"uv=={found.stdout.split()[1]} " in pin
    wrong = base64.b64encode(re.sub("sha256:....", "sha256:0000", pin).encode()).decode()
    refused = node.run(start, {**network, "RUNNER_UV": wrong})
    assert refused.returncode == 1
    assert "error[R-NODE-UV]" in refused.stderr


def test_setup_script_passes_shellcheck() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [str(shellcheck), "infra/runner_infra/planning/node_setup.sh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("read_only", [True, False])
def test_mounts_are_accessible_to_the_task_user(read_only: bool) -> None:
    options = blobfuse_options(read_only=read_only)
    assert "-o allow_other" in options
    assert ("-o ro" in options) == read_only
    assert "vers=3.1.1" in FILES_OPTIONS
    assert "dir_mode=0777" in FILES_OPTIONS


def own(tmp_path: Path, text: str) -> StartTask:
    file = tmp_path / "own.sh"
    file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    return start_task(pool(start_script=str(file)), 1)


def test_start_script_of_a_pool_runs_last_at_every_boot(node: Node, tmp_path: Path) -> None:
    start = own(tmp_path, 'echo "mine: $AZ_BATCH_NODE_SHARED_DIR ${RUNNER_START_SCRIPT:-gone}"')
    for _ in range(2):
        done = node.run(start)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert f"mine: {node.folder / 'shared'} gone" in lines
        assert lines[-1].endswith("ready")


def test_failed_start_script_fails_the_start_task_with_its_code(node: Node, tmp_path: Path) -> None:
    done = node.run(own(tmp_path, "echo broken >&2; exit 7"))
    assert done.returncode == 1
    assert "broken" in done.stderr
    assert "error[R-NODE-SCRIPT]" in done.stderr
    assert "exited with code 7" in done.stderr
    assert not done.stdout.endswith("ready\n")


def test_start_task_without_a_script_is_unchanged() -> None:
    assert "RUNNER_START_SCRIPT" not in dict(start_task(pool(), 1).variables)

"""The start task of a pool and its mount options, as plain data."""

from __future__ import annotations

import base64
import functools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.pricing.machines import Driver
from runner.core.recipe.builtin import BUILTIN_FOLDER, RECIPE_FILE, builtin_names
from runner.core.yaml_files import did_you_mean, read_document
from runner.protocol.errors import RunnerError
from runner_infra.config.pool import PoolConfig
from runner_infra.planning.image_source import FOLDER

_SCRIPT = Path(__file__).with_suffix(".sh")
_UV_PIN = FOLDER / "uv.txt"
# Our choice. The driver of an image may load shortly after boot. The extension installs the driver
# at boot, which takes "a few minutes" and may reboot the VM:
# https://learn.microsoft.com/azure/virtual-machines/extensions/hpccompute-gpu-linux
# (2023-07-28, read 2026-11-21)
_DRIVER_WAIT_S, _EXTENSION_WAIT_S = 60, 900

# SMB 3.1.1 encrypts in transit. Tasks run as a different user than the mount. Options from
# https://learn.microsoft.com/azure/storage/files/storage-how-to-use-files-linux (read 2026-11-21),
# modes from https://learn.microsoft.com/azure/batch/virtual-file-mount (2021-11-11, read
# 2026-11-21).
FILES_OPTIONS = (
    "-o vers=3.1.1,dir_mode=0777,file_mode=0777,serverino,nosharesock,mfsymlinks,actimeo=30"
)


@dataclass(frozen=True, slots=True)
class StartTask:
    """The start task of a pool. It contains no secrets."""

    command_line: str
    variables: tuple[tuple[str, str], ...]


def start_task(pool: PoolConfig, gpus: int, driver: Driver | None = "cuda") -> StartTask:
    """Return the start task, which waits for the GPUs, installs uv and preloads recipes.

    The script is a variable in base64, because Batch starts command lines without a
    shell, and base64 needs no quoting.

    Args:
        pool: the configuration of the pool.
        gpus: the number of GPUs of a node.
        driver: their driver; None for a size without GPUs of NVIDIA.

    Raises:
        RunnerError: R-POOL-PRELOAD, a recipe to preload does not exist.
    """
    # Fail on every problem: an empty script would succeed, even on a node without a working GPU.
    command = (
        'set -e; : "${RUNNER_NODE_SETUP:?}"; setup=$(echo "$RUNNER_NODE_SETUP" | base64 -d); '
        'exec bash -c "$setup"'
    )
    return StartTask(
        f"/bin/bash -c {shlex.quote(command)}",
        (
            ("RUNNER_NODE_SETUP", _base64(_SCRIPT.read_bytes())),
            ("RUNNER_GPUS", str(gpus)),
            ("RUNNER_GPU_WAIT", str(_driver_wait(pool, driver))),
            ("RUNNER_UV", _base64(_UV_PIN.read_bytes())),
            *_preload_setting(pool, gpus),
            *_script_setting(pool),
        ),
    )


def blobfuse_options(*, read_only: bool) -> str:
    """Return blobfuse options that give access to the user of the tasks.

    Changes of other nodes are visible after a minute. A read-only mount caches files for two hours.
    Options: github.com/Azure/azure-storage-fuse, README and wiki (read 2026-11-21).
    """
    shared = "-o allow_other -o attr_timeout=60 -o entry_timeout=60 -o negative_timeout=10"
    return f"{shared} -o ro --file-cache-timeout-in-seconds=7200" if read_only else shared


def _driver_wait(pool: PoolConfig, driver: Driver | None) -> int:
    by_extension = driver == "grid"
    from_marketplace = pool.image.source == "marketplace"
    return _EXTENSION_WAIT_S if by_extension and from_marketplace else _DRIVER_WAIT_S


def _preload_setting(pool: PoolConfig, gpus: int) -> Iterator[tuple[str, str]]:
    """Yield the variable of the recipes to preload, if there are any."""
    if entries := list(_list_preloads(pool, gpus)):
        yield "RUNNER_PRELOAD", " ".join(entries)


def _script_setting(pool: PoolConfig) -> Iterator[tuple[str, str]]:
    """Yield the variable of the pool's start script, if it has one."""
    if pool.start_script is not None and (script := Path(pool.start_script).read_bytes()):
        yield "RUNNER_START_SCRIPT", _base64(script)


def _list_preloads(pool: PoolConfig, gpus: int) -> Iterator[str]:
    known = builtin_names()
    for name in dict.fromkeys(pool.preload):
        if name not in known:
            raise RunnerError(
                "R-POOL-PRELOAD",
                f"pool {pool.id!r} preloads {name!r}, which is not a built-in recipe",
                why=f"built-in recipes: {', '.join(known)}",
                fix=did_you_mean(name, known) or "use one of these, or remove it from `preload`",
            )
        yield from _requirements(name, gpus)


@functools.cache  # pools preload the same recipes
def _requirements(recipe: str, gpus: int) -> Sequence[str]:
    """Return the requirements of a recipe, without those of its variants.

    Requirements for GPUs (2 GB) are only for nodes with a GPU.
    """
    folder = BUILTIN_FOLDER / recipe
    keys = read_document(folder / RECIPE_FILE, code="R-RECIPE").data
    python = _base64((keys.get("python") or "").encode())
    own = folder / keys.get("requirements", "requirements.txt")
    return [
        f"{recipe}:{file.name}:{python}:{_base64(file.read_bytes())}"
        for file in (own.with_stem(f"{own.stem}-gpu"), own)
        if file.is_file() and (gpus or file == own)
    ]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")

"""The container engine of this machine: which one, and its command line."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_PROBE_S = 30.0
_QUICK_S = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a command of the engine ended."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """What it complained about last."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Engine:
    """`program` is podman or something that speaks like docker."""

    program: str

    @property
    def is_podman(self) -> bool:
        """Whether it wants podman's options."""
        return "podman" in Path(self.program).name

    def command(self, *arguments: str, config_dir: Path | None = None) -> list[str]:
        """The command line; `config_dir` is where credentials lie."""
        if not self.is_podman:
            config = [] if config_dir is None else ["--config", str(config_dir)]
            return [self.program, *config, *arguments]
        quiet = [self.program, "--log-level=error"]  # its warnings would be the task's stderr
        if config_dir is None:
            return [*quiet, *arguments]
        return [*quiet, arguments[0], f"--authfile={config_dir}/config.json", *arguments[1:]]

    @property
    def user(self) -> str | None:
        """The user of containers: a daemon's root would own what tasks write into their folders."""
        return None if self.is_podman or os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}"

    async def run(
        self,
        *arguments: str,
        config_dir: Path | None = None,
        text: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = _QUICK_S,
    ) -> Result:
        """Run a command of the engine to its end; cancelling ends the command."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command(*arguments, config_dir=config_dir),
                stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except (OSError, ValueError) as err:  # ValueError: a NUL in what a client gave
            return Result(-1, "", str(err))
        try:
            given = None if text is None else text.encode()
            out, err = await asyncio.wait_for(process.communicate(given), timeout_s)
        except TimeoutError:
            return Result(-1, "", f"no answer in {timeout_s:g} s")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
        said, complained = (text.decode(errors="replace") for text in (out, err))
        return Result(process.returncode or 0, said, complained)


async def find(choice: str) -> Engine | None:
    """The engine that works: `auto`, `podman`, `docker`, a path, or `none`."""
    names = {"auto": ("podman", "docker"), "none": ()}.get(choice, (choice,))
    for name in names:
        program = shutil.which(name)
        if program is None:
            continue
        engine = Engine(program)
        answer = await engine.run("info", timeout_s=_PROBE_S)
        if answer.code == 0:
            log.info("containers run through %s", program)
            return engine
        log.warning("%s cannot be used: %s", program, answer.why)
    return None


def remove_all(program: str, label: str) -> None:
    """Remove what a crash left; for the start, before there is an event loop."""
    listing = _now(program, "ps", "--all", "--quiet", f"--filter=label={label}")
    names = [] if listing is None else listing.split()
    if names:
        log.info("removing %d containers that a crash left", len(names))
        _now(program, "kill", *names)
        _now(program, "rm", "--force", *names)


def _now(program: str, *arguments: str) -> str | None:
    command: Sequence[str] = Engine(program).command(*arguments)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUICK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as err:
        log.warning("containers of a crash may be left: %s", err)
        return None
    return done.stdout

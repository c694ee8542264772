"""Options of the Batch emulator that `runner local up` keeps: rules for faults, and node images."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from runner.core.home import HomePaths
from runner.flows.local.services import batch_launch, last_error
from runner.flows.local.state import SEED, LocalState
from runner.protocol.errors import RunnerError

_NO_KEYS = {"batch": "AA==", "storage": "AA==", SEED: ""}  # nothing is served with them
_CHECK_S = 120.0


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Options of a start; None keeps the earlier value.

    `faults` is a file of rules, False for none; `images` are `REFERENCE=FOLDER`.
    """

    azure_names: bool | None = None
    ui: bool | None = None
    faults: Path | Literal[False] | None = None
    images: Sequence[str] | None = None


def with_files(
    paths: HomePaths, wanted: LocalState, before: LocalState | None, options: EmulatorOptions
) -> LocalState:
    """Return a state with the rules and images of the options, else of the state `before`.

    Raises:
        RunnerError: R-LOCAL-OPTION, the emulator would refuse a rule or an image.
    """
    faults = before.faults if before else ""
    if options.faults is not None:
        faults = str(options.faults.absolute()) if options.faults else ""
    images = before.images if before else ()
    if options.images is not None:
        images = tuple(map(_absolute, options.images))
    state = replace(wanted, faults=faults, images=images)
    if not (faults or images):
        return replace(state, faults_digest="")
    _check(paths, state, options)
    return replace(state, faults_digest=_digest(faults))


def _absolute(image: str) -> str:
    reference, equals, folder = image.partition("=")
    return f"{reference}={Path(folder).absolute()}" if equals and folder else image


def _digest(faults: str) -> str:
    return hashlib.sha256(Path(faults).read_bytes()).hexdigest() if faults else ""


def _check(paths: HomePaths, state: LocalState, options: EmulatorOptions) -> None:
    """Let the emulator check its options, without a start. Raises RunnerError."""
    what = "the Azure Batch emulator refuses its options"
    launch = batch_launch(paths, state, _NO_KEYS)
    try:
        done = subprocess.run(
            [*launch.arguments, "--check"], env=dict(launch.environment), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=_CHECK_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as err:
        raise RunnerError(
            "R-LOCAL-OPTION",
            what,
            why=f"their check took more than {_CHECK_S:g} s",
            fix="use an image whose programs answer `--version`",
        ) from err
    if done.returncode == 0:
        return
    why, fix = last_error(done.stderr)
    kept = []
    if not (options.faults or options.images):  # otherwise what was given is probably refused
        both = (("--no-faults", state.faults), ("--no-images", state.images))
        kept = [option for option, has in both if has]
    if not kept:
        raise RunnerError("R-LOCAL-OPTION", what, why=why, fix=fix)
    raise RunnerError(
        "R-LOCAL-OPTION",
        what,
        why=why,
        fix=f"{fix}, or go on without: runner local up {' '.join(kept)}",
    )

"""Decide where to run: built-in < user config < `./runner.yaml` < RUNNER_* < flags."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from runner.core.home import check_owner, runner_home
from runner.core.units import UnitError, parse_duration
from runner.core.yaml_files import StrictModel, check_document, read_document
from runner.protocol.errors import RunnerError

TargetName = Literal["local", "azure"]
PROJECT_FILE = "runner.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEFAULTS: Mapping[str, str] = {"target": "local", "stack": "dev", "output_dir": "outputs"}
_NAMES = ("target", "stack", "team", "pool", "output_dir", "retention")

SHORTEST_RETENTION = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Target:
    """Where runs execute: on this machine, or in Azure, and all that differs between the two.

    Other modules ask a `Target`; none compares its name.

    Attributes:
        name: The value of the setting, and of the key `target` of documents.
        is_billed: Azure charges for its nodes.
        runs_here: Its services and nodes are processes of this machine: runner starts the services
            when they are needed, has their keys, and can evict a node.
        has_stacks: A stack declares its pools and teams. Otherwise `runner local up` creates its
            pool.
    """

    name: TargetName
    is_billed: bool
    runs_here: bool
    has_stacks: bool


LOCAL = Target("local", is_billed=False, runs_here=True, has_stacks=False)
AZURE = Target("azure", is_billed=True, runs_here=False, has_stacks=True)
TARGETS: Mapping[str, Target] = {target.name: target for target in (LOCAL, AZURE)}


def target_at(location: str) -> Target:
    """Return the target whose `StackOutputs` have this location: a region, or LOCAL's name."""
    return LOCAL if location == LOCAL.name else AZURE


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one command; `origins` has the source of each value.

    `retention` is the time for which a run is kept after its submission; None keeps all runs.
    `team` is the part of the stack; None is the shared part.
    """

    target: Target
    stack: str
    pool: str | None
    output_dir: Path
    home: Path
    origins: Mapping[str, str]
    retention: timedelta | None = None
    team: str | None = None

    def for_whole_stack(self) -> Settings:
        """Return the settings of a command that concerns all parts of the stack."""
        return replace(self, team=None)


@dataclass(frozen=True, slots=True)
class _Value:
    """One value of one source; relative paths are relative to `base`."""

    name: str
    value: str
    origin: str
    base: Path


def load_settings(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Settings:
    """Merge the settings of all sources; a flag that is None is not set.

    Raises:
        RunnerError: a file or a value is invalid, or the folder of all state is another user's.
    """
    home = runner_home(env)
    check_owner(home)
    found: dict[str, _Value] = {}
    for given in _read_sources(flags, cwd, env):
        found[given.name] = _check(given)
    team, pool = found.get("team"), found.get("pool")
    output = found["output_dir"]
    origins = {name: found[name].origin for name in _NAMES if name in found}
    origins.setdefault("team", "built-in: the shared part of the stack")
    origins.setdefault("pool", "built-in: the first pool of the target")
    origins.setdefault("retention", "built-in: runs are kept")
    retention = found.get("retention")
    return Settings(
        target=TARGETS[found["target"].value],
        stack=found["stack"].value,
        pool=pool.value if pool else None,
        output_dir=(output.base / Path(output.value).expanduser()).absolute(),
        home=home,
        origins={**origins, "home": "RUNNER_HOME" if env.get("RUNNER_HOME") else "built-in"},
        retention=parse_duration(retention.value) if retention else None,
        team=team.value if team else None,
    )


def load_call_settings(flags: Mapping[str, object]) -> Settings:
    """Return the settings of a call in this folder; a flag that is None is not set.

    Raises:
        RunnerError: as `load_settings`, or a stack or team was passed for a target without.
    """
    settings = load_settings(flags, cwd=Path.cwd(), env=os.environ)
    stack = flags.get("stack")
    refuse_stack_of_local(settings, None if stack is None else str(stack))
    return settings


def refuse_stack_of_local(settings: Settings, stack: str | None) -> None:
    """Raise RunnerError if `stack` or `--team` is set and the target has no stacks."""
    team = settings.team if settings.origins["team"] == "--team" else None
    if settings.target.has_stacks or (stack is None and team is None):
        return
    name, value, what = ("team", team, "teams") if stack is None else ("stack", stack, "stacks")
    raise RunnerError(
        "R-SETTING-VALUE",
        f"unexpected --{name} {value}: target 'local' has no {what}",
        why=f"target is local ({settings.origins['target']})",
        fix=f"use --target azure --{name} {value}, or remove --{name}",
    )


def user_config_file(env: Mapping[str, str]) -> Path:
    """Return `RUNNER_CONFIG`, else `config.yaml` in the platform's user config folder."""
    given = env.get("RUNNER_CONFIG")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs  # noqa: PLC0415  only needed when RUNNER_CONFIG is not set

    return Path(platformdirs.user_config_dir("runner", appauthor=False)) / "config.yaml"


def _read_sources(
    flags: Mapping[str, object], cwd: Path, env: Mapping[str, str]
) -> Iterator[_Value]:
    for name, value in _DEFAULTS.items():
        yield _Value(name, value, "built-in", cwd)
    yield from _read_file(user_config_file(env), required=bool(env.get("RUNNER_CONFIG")))
    yield from _read_file(cwd / PROJECT_FILE)
    for name in _NAMES:
        variable = f"RUNNER_{name.upper()}"
        if value := env.get(variable):
            yield _Value(name, value, variable, cwd)
    for name, value in flags.items():
        if name not in _NAMES:
            raise ValueError(f"{name} is not a setting")
        if value is not None:
            yield _Value(name, str(value), f"--{name.replace('_', '-')}", cwd)


def _read_file(path: Path, *, required: bool = False) -> Iterator[_Value]:
    if not required and not path.is_file():
        return

    for name, value, line in read_settings(path):
        yield _Value(name, value, f"{path}:{line}", path.parent)


def _check(given: _Value) -> _Value:
    if given.name == "output_dir":
        return given
    if given.name == "retention":
        return _check_retention(given)
    if given.name == "target" and given.value not in TARGETS:
        raise _invalid_setting(given, f"allowed: {', '.join(TARGETS)}")
    if not _NAME.fullmatch(given.value):
        raise _invalid_setting(given, "allowed: letters, digits, '.', '_' and '-'")
    return given


def _check_retention(given: _Value) -> _Value:
    try:
        found = parse_duration(given.value)
    except UnitError as err:
        raise _invalid_setting(given, err.why) from err
    if found < SHORTEST_RETENTION:  # a number alone is seconds
        raise _invalid_setting(given, "the minimum is 1h, and a number without a unit is seconds")
    return given


_EXAMPLES = {"retention": "30d", "stack": "dev"}


def _invalid_setting(given: _Value, why: str) -> RunnerError:
    return RunnerError(
        "R-SETTING-VALUE",
        f"{given.origin}: invalid {given.name} {given.value!r}",
        why=why,
        fix=f"use a value such as {_EXAMPLES[given.name]}"
        if given.name in _EXAMPLES
        else "run `runner config show` to see every setting with its origin",
    )


def stack_option(stack: str | None) -> str:
    """Return ` --stack NAME` for the end of a printed command, or "" if `stack` is None."""
    return "" if stack is None else f" --stack {stack}"


class SettingsFile(StrictModel):
    """The keys of a settings file."""

    target: TargetName | None = None
    stack: str | None = Field(None, min_length=1)
    team: str | None = Field(None, min_length=1)
    pool: str | None = Field(None, min_length=1)
    output_dir: str | None = Field(None, min_length=1)
    retention: str | None = Field(None, min_length=1)


def read_settings(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and line of every setting in the file."""
    document = read_document(path, code="R-CONFIG")
    parsed = check_document(document, SettingsFile, code="R-CONFIG")
    for name, value in parsed.model_dump(exclude_none=True).items():
        yield name, str(value), document.line((name,))

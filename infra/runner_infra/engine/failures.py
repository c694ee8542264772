"""Errors of Pulumi's engine as errors of the runner: what, why and fix."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from pulumi import automation as auto

from runner.core.azure.arm_faults import ProviderFault, read_provider_error
from runner.core.azure.clouds import with_az
from runner.protocol.errors import RunnerError
from runner_infra.engine.state_folder import is_locked
from runner_infra.engine.steps import STREAM_PREFIX, Change, EngineFault, Steps
from runner_infra.engine.unfinished import HALF_WRITTEN

_POOL_TYPE = "azure-native:batch:Pool"
# Batch's answer to an update with a property that can only be set when a pool is created.
_FIXED_PROPERTY = "PropertyCannotBeUpdated"
_URN_NAME = re.compile(r"urn:pulumi:[^\s\"]*::([\w.-]+)")
_SUMMARY = re.compile(r"(?:preview|update|refresh|destroy|resource operation) failed")
# What the engine says if it cannot load the provider, which is not in its archive.
_NO_PLUGIN = "failed to download plugin"
# What the engine says of a service that it is not signed in to. It takes every URL for one whose
# scheme it does not know.
_NOT_SIGNED_IN = "PULUMI_ACCESS_TOKEN must be set"
_SHOWN = 3  # errors in one message
_MESSAGE_LENGTH = 300  # characters
_CHANGING = ("deploying", "destroying")


@contextmanager
def engine_errors(doing: str, stack: str, backend: str | None, steps: Steps) -> Generator[None]:
    """Raise errors of the engine as RunnerError: the one that the program raised, if any.

    Args:
        doing: completes "... the stack failed".
        stack: the name of the stack.
        backend: the URL of the state, or None if only Pulumi knows it.
        steps: the steps of the operation.
    """
    try:
        yield
    except (auto.errors.ConcurrentUpdateError, auto.errors.StackAlreadyExistsError) as err:
        raise _locked(doing) from err
    except auto.errors.StackNotFoundError:
        raise
    except auto.errors.CommandError as err:
        if steps.program_error is not None:
            raise steps.program_error from err
        faults = _causes(steps.faults) or [EngineFault("", x) for x in _error_lines(str(err))]
        # Keep the first line of a Python trace.
        lines = [fault.text.partition("\n")[0] for fault in faults]
        if any("passphrase" in line for line in lines):
            raise _wrong_passphrase(doing, lines) from err
        if any(_NOT_SIGNED_IN in line for line in lines):
            raise _no_backend(doing, backend) from err
        if any(HALF_WRITTEN in line for line in lines):
            # The engine that holds the lock writes the file, and its backup would be of no use.
            is_written = is_locked(backend, stack)
            raise (_locked(doing) if is_written else _incomplete_state(doing, lines)) from err
        pools = [change for change in steps.refused if change.type == _POOL_TYPE]
        if pools and any(_FIXED_PROPERTY in fault.text for fault in faults):
            raise _refused_pools(stack, pools, faults) from err
        if any("marked for protection" in line or "unable to replace" in line for line in lines):
            raise _protected(stack, lines) from err
        raise _failed(doing, faults) from err


def _causes(faults: Sequence[EngineFault]) -> Sequence[EngineFault]:
    """Return the errors without the engine's summary, such as `update failed`, if there are any."""
    return [fault for fault in faults if not _SUMMARY.fullmatch(fault.text)] or faults


def _failed(doing: str, faults: Sequence[EngineFault]) -> RunnerError:
    """Return the error for refusals of Azure, with the fix of the first known one; else generic."""
    read = [(fault, read_provider_error(fault.text)) for fault in faults]
    shown = [_shown(fault, found) for fault, found in read]
    why = "; ".join(dict.fromkeys(shown[:_SHOWN])) or "the engine gave no reason"
    if len(shown) > _SHOWN:
        why += f"; and {len(shown) - _SHOWN} more"
    known = next((found.fault for _, found in read if found.fault is not None), None)
    if known is not None:
        kept = " (resources that were created are kept)" if doing in _CHANGING else ""
        fix = f"{with_az(known.fix, os.environ)}{kept}"
        return RunnerError(known.code, known.what, why=f"while {doing} the stack: {why}", fix=fix)
    if any(found.code for _, found in read):
        fix = (
            "`az monitor activity-log list --status Failed --offset 1h -o json` shows what Azure "
            "refused, and why"
        )
    elif any(_NO_PLUGIN in fault.text for fault in faults):
        fix = "allow connections to get.pulumi.com, or use `runner preview --offline`"
    else:
        fix = "add --debug to see the whole trace"
    if doing in _CHANGING:
        fix += "; the same command continues where it stopped: resources that were created are kept"
    return RunnerError("R-PULUMI-FAILED", f"{doing} the stack failed", why=why, fix=fix)


def _shown(fault: EngineFault, found: ProviderFault) -> str:
    text = found.message if found.code else fault.text.partition("\n")[0]
    line = text if len(text) <= _MESSAGE_LENGTH else f"{text[: _MESSAGE_LENGTH - 1]}…"
    return ": ".join(part for part in (fault.resource, found.code, line) if part)


def _locked(doing: str) -> RunnerError:
    return RunnerError(
        "R-PULUMI-LOCKED",
        f"{doing} the stack failed: another deployment is in progress",
        why="the state is locked until that deployment ends",
        fix="wait for its end; if it was killed on another machine, run `pulumi cancel` there",
    )


def _incomplete_state(doing: str, lines: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-STATE",
        f"{doing} the stack failed: cannot read its state",
        why=f"{lines[0]}: the file is incomplete, as after a full disk or a killed engine",
        fix="copy the backup .pulumi/stacks/<project>/<stack>.json.bak over the .json file, then "
        "run the command again, which imports newer resources from Azure",
    )


def _no_backend(doing: str, backend: str | None) -> RunnerError:
    if backend is None or backend.startswith(("https://", "http://")):
        login = f"pulumi login {backend or ''}".rstrip()
        return RunnerError(
            "R-PULUMI-FAILED",
            f"{doing} the stack failed: Pulumi is not signed in to {backend or 'its backend'}",
            why="PULUMI_ACCESS_TOKEN is not set",
            fix=f"sign in with `{login}`, or set PULUMI_ACCESS_TOKEN",
        )
    return RunnerError(
        "R-PULUMI-FAILED",
        f"{doing} the stack failed: Pulumi cannot keep state at {backend!r}",
        why="it is not the URL of a container, a folder or a service",
        fix="use azblob://CONTAINER?storage_account=ACCOUNT, or file:///PATH for a folder",
    )


def _wrong_passphrase(doing: str, lines: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-PASSPHRASE",
        f"{doing} the stack failed: its secrets are encrypted with another passphrase",
        why=f"{lines[0]}: encryptionsalt in the stack's file belongs to the passphrase of its "
        "first deployment; this machine's is in RUNNER_HOME/pulumi/passphrase",
        fix="deploy from that machine, copy its RUNNER_HOME/pulumi here, or set "
        "PULUMI_CONFIG_PASSPHRASE; if nothing was deployed, remove encryptionsalt",
    )


def _refused_pools(
    stack: str, pools: Sequence[Change], faults: Sequence[EngineFault]
) -> RunnerError:
    """Build the error for an update that Batch refuses, although the provider can send it."""
    ids = list(dict.fromkeys(change.name.removeprefix("pool-") for change in pools))
    listed = ",".join(ids)
    refusal = next(fault for fault in faults if _FIXED_PROPERTY in fault.text)
    return RunnerError(
        "R-POOL-UPDATE",
        f"Azure refuses to update pool {' and '.join(map(repr, ids))} in place",
        why=_shown(refusal, read_provider_error(refusal.text)),
        fix=f"`runner up --stack {stack} --replace {listed}` deletes it and creates it again; its "
        "tasks then start again from their last checkpoint",
    )


def _protected(stack: str, lines: Sequence[str]) -> RunnerError:
    """Build the error for a change that replaces protected resources, which would lose data."""
    names = dict.fromkeys(_URN_NAME.findall(" ".join(lines)))
    return RunnerError(
        "R-PULUMI-PROTECTED",
        "the change would delete the storage of runs, models and data",
        why=f"it replaces {', '.join(names) or lines[0]}",
        fix="revert the change of region, subscription or storage; or use another stack (--stack); "
        f"or run `runner down --stack {stack} --everything` first",
    )


def _error_lines(text: str) -> list[str]:
    """Return the lines that the engine marked as errors, else its last line."""
    lines = [STREAM_PREFIX.sub("", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("code:")]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error:")]
    return errors or lines[-1:]

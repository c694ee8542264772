"""Check references to secrets, and read the values on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import NOTIFY_VARIABLE, NotifyRule, RunSpec, SecretRef

MIN_REDACTED_LENGTH = 6  # characters; shorter values occur by chance in any text
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the agent or Batch sets, and variables that select the program to run.
_RESERVED = ("RUNNER_", "AZ_BATCH_")
_RESERVED_NAMES = frozenset({"PATH", "VIRTUAL_ENV", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME"})
_VAULT_PATH = re.compile(r"/secrets/[0-9A-Za-z-]{1,127}(/[0-9a-f]{32})?/?")


class SecretValues:
    """The secrets of a run by variable: values, and URLs of a key vault.

    Only `reveal` returns the values, so that no log and no error shows them.
    """

    def __init__(self, values: Mapping[str, str], vault: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._vault = dict(vault)

    def __repr__(self) -> str:
        names = sorted({*self._values, *self._vault})
        return f"SecretValues({', '.join(f'{name}=***' for name in names)})"

    def __bool__(self) -> bool:
        return bool(self._values or self._vault)

    def reveal(self) -> dict[str, dict[str, str]]:
        """Return the document for the node, which contains the secret values."""
        return {"values": dict(self._values), "keyvault": dict(self._vault)}

    def short(self) -> list[str]:
        """Return the variables whose values are too short to be redacted."""
        return [name for name, value in self._values.items() if len(value) < MIN_REDACTED_LENGTH]

    def found_in(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the variables whose value is in one of the texts."""
        together = "\n".join(texts)
        for name, value in self._values.items():
            if len(value) >= MIN_REDACTED_LENGTH and value in together:
                yield name


def check_secret(ref: SecretRef) -> SecretRef:
    """Return the reference. Raise ValueError with the reason if it is invalid."""
    name = ref.variable
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid variable name {name!r}")
    if name.upper().startswith(_RESERVED) or name in _RESERVED_NAMES:
        raise ValueError(f"{name} is reserved: runner, Batch or the system sets it")
    return check_source(ref)


def check_source(ref: SecretRef) -> SecretRef:
    """Return the reference. Raise ValueError with the reason if its source is invalid."""
    if (ref.env is None) == (ref.keyvault is None):
        raise ValueError("expected one source: env or keyvault")
    if ref.env is not None and not _NAME.fullmatch(ref.env):
        raise ValueError("env must be the name of a variable of this machine, not a value")
    if ref.keyvault is not None:
        _check_vault_url(ref.keyvault)
    return ref


def _check_vault_url(url: str) -> None:
    from runner.core.azure.clouds import CLOUDS, PUBLIC  # noqa: PLC0415  few runs have secrets in a vault

    parts = urlsplit(url)
    host = parts.hostname or ""
    hosts = tuple(f".{cloud.vault_domain}" for cloud in CLOUDS)
    named = parts.netloc == host and host.endswith(hosts) and not parts.query
    if parts.scheme != "https" or not named or not _VAULT_PATH.fullmatch(parts.path):
        form = f"https://VAULT.{PUBLIC.vault_domain}/secrets/NAME[/VERSION]"
        raise ValueError(f"keyvault must be {form}, or of the domain of another cloud")


def recorded_secrets(run: RunSpec) -> tuple[SecretRef, ...]:
    """Return `all_secrets` of a run as recorded. Raise RunnerError for an invalid reference."""
    try:
        own = tuple(check_secret(ref) for ref in run.secrets if ref.env or ref.keyvault)
        return own if run.notify is None else (*own, check_source(run.notify.url))
    except ValueError as err:
        raise RunnerError(
            "R-RUN-BROKEN",
            f"the secrets of {run.run_id} cannot be read",
            why=str(err),
            fix="submit the run again from its recipe",
        ) from err


def read_secrets(refs: Iterable[SecretRef], environment: Mapping[str, str]) -> SecretValues:
    """Return the values of this machine's variables. Raise RunnerError if one is missing."""
    values: dict[str, str] = {}
    vault: dict[str, str] = {}
    for ref in refs:
        if ref.keyvault is not None:
            vault[ref.variable] = ref.keyvault
            continue
        value = environment.get(ref.env or "")
        if not value:
            raise RunnerError(
                "R-SECRET-MISSING",
                f"{secret_name(ref)} has no value",
                why=f"${ref.env} is {'empty' if value == '' else 'not set'} on this machine",
                fix=f"read -rs {ref.env} && export {ref.env}",
                exit_code=ExitCode.PREFLIGHT,
            )
        if "\0" in value:
            raise RunnerError(
                "R-SECRET-MISSING", f"${ref.env} contains a NUL character", fix="remove it"
            )
        if ref.variable == NOTIFY_VARIABLE:
            _check_notify_url(value, ref.env or "")
        values[ref.variable] = value
    return SecretValues(values, vault)


def secret_name(ref: SecretRef) -> str:
    """Return what errors call a secret."""
    is_of_agent = ref.variable == NOTIFY_VARIABLE
    return "the URL of `notify`" if is_of_agent else f"secret {ref.variable}"


def webhook_source(rule: NotifyRule) -> str:
    """Return where the URL of a webhook is: `$NAME` of a machine, or the address in a vault."""
    return f"${rule.url.env}" if rule.url.env else rule.url.keyvault or ""


def _check_notify_url(url: str, name: str) -> None:
    from runner.protocol.notifying.webhooks import check_webhook_url  # noqa: PLC0415  few runs

    try:
        check_webhook_url(url)
    except ValueError as err:
        raise RunnerError(
            "R-NOTIFY-URL",
            f"${name} is not the URL of a webhook",
            why=str(err),  # without the URL, which is a credential
            fix=f"set {name} to the https URL that Teams, Slack or your service gave you",
        ) from None


def refuse_exposed_secrets(values: SecretValues, texts: Iterable[str]) -> None:
    """Raise RunnerError if a secret value occurs in arguments or settings of run.json."""
    for name in values.found_in(texts):
        raise RunnerError(
            "R-SECRET-EXPOSED",
            f"the value of {secret_name(SecretRef(name))} occurs in arguments, parameters, env or "
            "other settings",
            why="run.json, process lists and logs show these",
            fix="remove it there"
            if name == NOTIFY_VARIABLE
            else f"remove it there, and read ${name} in the script",
        )

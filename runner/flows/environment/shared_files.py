"""The files of an environment that several people and a workflow deploy.

`Pulumi.yaml` gets the backend of the shared state, `Pulumi.STACK.yaml` the key that encrypts its
secrets and the repository that may deploy, and `.github/workflows` the workflow.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ruamel.yaml import YAML

from runner.core.azure.clouds import CLOUDS, PUBLIC
from runner.core.home import not_writable, runner_home
from runner.core.yaml_files import read_document
from runner.flows.environment.first_files import resource_ids, stack_file
from runner.flows.environment.plan import PROJECT, read_stack
from runner.flows.environment.workflow import render_workflow, workflow_file
from runner.protocol.errors import RunnerError
from runner_infra.config.ci import REPOSITORY, CiConfig
from runner_infra.config.contradictions import contradictions
from runner_infra.config.stack_file import describe_key
from runner_infra.engine.shared_state import backend_variables
from runner_infra.engine.state_folder import state_backend

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
_VAULT_KEY = re.compile(r"/keys/[0-9A-Za-z-]{1,127}(/[0-9a-f]{32})?")
_ORIGIN = re.compile(rf"(?:https://|ssh://git@|git@)github\.com[:/]({REPOSITORY}?)(?:\.git)?/?")
_GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options of `runner init` for a shared environment; empty ones were not given.

    Attributes:
        state: The URL of a container, `azblob://CONTAINER?storage_account=ACCOUNT`.
        secrets: The URL of a key, `azurekeyvault://VAULT.DOMAIN/keys/NAME`.
        ci: `github`.
        repository: OWNER/NAME.
    """

    state: str = ""
    secrets: str = ""
    ci: str = ""
    repository: str = ""

    def __bool__(self) -> bool:
        return any((self.state, self.secrets, self.ci))


def check_shared(options: SharedOptions, folder: Path) -> SharedOptions:
    """Return the options with the repository of this folder. Raise RunnerError for a wrong one."""
    if options.state:
        _check_state(options.state)
    if options.secrets:
        _check_secrets(options.secrets)
    if not options.ci:
        return options
    if options.ci != "github":
        raise _invalid(
            "--ci",
            options.ci,
            "only GitHub has such a workflow",
            "--ci github",
        )
    repository = options.repository or _repository_of(folder)
    if not re.fullmatch(REPOSITORY, repository):
        why = "expected OWNER/NAME" if repository else "the folder has no remote on github.com"
        raise _invalid("--repository", repository, why, "--repository OWNER/NAME")
    own = os.environ.get("PULUMI_BACKEND_URL") or backend_variables(folder, {})
    if not (options.state or own):
        raise RunnerError(
            "R-INIT-STATE",
            "a workflow needs a state that it shares with you",
            why="the state of this project is a folder of this machine",
            fix="add --state 'azblob://state?storage_account=ACCOUNT'",
        )
    return SharedOptions(options.state, options.secrets, options.ci, repository)


def _check_state(text: str) -> None:
    parts = urlsplit(text)
    accounts = parse_qs(parts.query).get("storage_account", [])
    named = len(accounts) == 1 and _ACCOUNT.fullmatch(accounts[0])
    if parts.scheme != "azblob" or not _CONTAINER.fullmatch(parts.netloc) or not named:
        form = "azblob://CONTAINER?storage_account=ACCOUNT"
        raise _invalid("--state", text, f"expected {form}", f"--state '{form}'")


def _check_secrets(text: str) -> None:
    parts = urlsplit(text)
    domains = tuple(f".{cloud.vault_domain}" for cloud in CLOUDS)
    named = parts.netloc.endswith(domains) and _VAULT_KEY.fullmatch(parts.path)
    if parts.scheme != "azurekeyvault" or not named or parts.query:
        form = f"azurekeyvault://VAULT.{PUBLIC.vault_domain}/keys/NAME"
        raise _invalid("--secrets", text, f"expected {form}", f"--secrets {form}")


def _invalid(option: str, text: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-INIT-VALUE", f"invalid {option} {text!r}", why=why, fix=fix)


def _repository_of(folder: Path) -> str:
    """Return OWNER/NAME of the remote `origin` on GitHub, or an empty text."""
    try:
        done = subprocess.run(
            ["git", "remote", "get-url", "origin"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _ORIGIN.fullmatch(done.stdout.strip())
    return found[1].removesuffix(".git") if found else ""


def refuse_existing(options: SharedOptions, folder: Path, *, force: bool) -> None:
    """Raise RunnerError if a workflow exists that would be replaced."""
    file = workflow_file(folder)
    if options.ci and file.exists() and not force:
        raise RunnerError(
            "R-INIT-EXISTS",
            f"{file} exists",
            why="an existing workflow is not replaced",
            fix="add --force to replace it, or move it",
        )


def share_files(
    options: SharedOptions, folder: Path, stack: str, env: Mapping[str, str]
) -> list[Path]:
    """Write what the options add to the files of a stack. Return the changed files.

    Comments and other keys stay. Every file is complete before the first one is replaced.

    Raises:
        RunnerError: a file cannot be read or written.
    """
    project, own = folder / PROJECT, stack_file(folder, stack)
    texts: dict[Path, str] = {}
    if options.state:
        texts[project] = _with_backend(project, options.state)
    if options.secrets or options.ci:
        document: Any = _load(own)
        if options.secrets:
            _set_secrets_provider(document, own, options.secrets, env)
        if options.ci:
            state = options.state or backend_variables(folder, {}).get("PULUMI_BACKEND_URL", "")
            config: dict[str, Any] = document["config"]
            config["runner:ci"] = _ci_keys(document, options.repository, state, env)
            _check_ci(own, config["runner:ci"], env)
            texts[workflow_file(folder)] = render_workflow(
                folder, stack, config, uses_key="secretsprovider" in document
            )
        texts[own] = _dump(document)
    changed = {path: text for path, text in texts.items() if _text_of(path) != text}
    _write_all(changed)
    return list(changed)


def _check_ci(own: Path, keys: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Raise RunnerError if the file of a stack is invalid, or would be with this `runner:ci`."""
    config = read_stack(own, env)
    planned = config.model_copy(update={"ci": CiConfig.model_validate(dict(keys))})
    for found in contradictions(planned, own.parent):
        raise RunnerError(
            "R-STACK-CONFIG-FIELD",
            f"{describe_key(planned, found.place)}: {found.what}",
            why="no file was written, because the stack does not fit `runner:ci`",
            fix=found.fix,
        )


def _with_backend(project: Path, url: str) -> str:
    document = _load(project)
    document["backend"] = {"url": url}
    return _dump(document)


def _set_secrets_provider(document: Any, file: Path, key: str, env: Mapping[str, str]) -> None:
    """Set what encrypts the secrets. Raise RunnerError if something else has encrypted them."""
    if document.get("secretsprovider") == key:
        return
    if "encryptionsalt" in document or document.get("encryptedkey"):
        stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
        raise RunnerError(
            "R-INIT-SECRETS",
            f"the secrets of stack {stack!r} are encrypted already",
            why=f"{file.name} has the salt or the key, so another provider could not read them",
            fix=f"`{_state_variables(file.parent, env)}pulumi stack change-secrets-provider "
            f"--stack {stack} '{key}'`; if nothing was deployed yet, remove encryptionsalt and "
            f"encryptedkey from {file.name}",
        )
    document.pop("secretsprovider", None)
    document.insert(0, "secretsprovider", key)


def _state_variables(folder: Path, env: Mapping[str, str]) -> str:
    """Return the variables before a command of Pulumi that reads a state in RUNNER_HOME, or "".

    Pulumi finds a state that `Pulumi.yaml` or a variable names without them.
    """
    own = runner_home(env) / "pulumi"
    if state_backend(own.parent, {**env, **backend_variables(folder, env)}) != own.as_uri():
        return ""
    passphrase = shlex.quote(str(own / "passphrase"))
    where = shlex.quote(own.as_uri())
    return f"PULUMI_BACKEND_URL={where} PULUMI_CONFIG_PASSPHRASE_FILE={passphrase} "


def ci_commands(
    folder: Path, stack: str, options: SharedOptions, env: Mapping[str, str]
) -> list[str]:
    """Return the commands after the first deployment, which let GitHub's jobs sign in."""
    config = read_stack(stack_file(folder, stack), env)
    environment = config.ci.environment if config.ci else ""
    at = f"--repo {options.repository}"
    tenant = "az account show --query tenantId --output tsv"
    commands = [f'gh variable set AZURE_TENANT_ID {at} --body "$({tenant})"']
    for kind in ("plan", "deploy"):
        name = config.names.of(f"id-ci-{kind}")
        ask = f"az identity show --name {name} --resource-group {config.resource_group}"
        value = f"$({ask} --query clientId --output tsv)"
        commands.append(f'gh variable set AZURE_{kind.upper()}_CLIENT_ID {at} --body "{value}"')
    api = f"gh api --method PUT repos/{options.repository}/environments/{environment}"
    return [*commands, api]


def missing_ids(folder: Path, stack: str) -> Iterator[str]:
    """Yield what to add to `runner:ci`, if `az` did not list what the state is stored in."""
    document = _load(stack_file(folder, stack))
    keys = document["config"]["runner:ci"]
    for key, what in (("state_account", "storage account"), ("key_vault", "key vault")):
        used = key != "key_vault" or _vault_of(document)  # without a key, there is a passphrase
        if used and key not in keys:
            yield (
                f"add {key} to runner:ci, the ID of the {what} of the state; otherwise the "
                "workflow has no role there"
            )


def _ci_keys(document: Any, repository: str, state: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the key `runner:ci`: as it is, with the repository and the IDs that `az` lists."""
    config: dict[str, Any] = document["config"]
    subscription = str(config.get("azure-native:subscriptionId") or "")
    keys: dict[str, Any] = {**(config.get("runner:ci") or {}), "github": repository}
    vault = _vault_of(document)
    account = parse_qs(urlsplit(state).query).get("storage_account", [""])[0]
    for name, wanted, kind in (
        ("state_account", account, "storage account"),
        ("key_vault", vault, "keyvault"),
    ):
        if wanted and name not in keys:
            found = resource_ids(kind, subscription, env).get(wanted.lower())
            keys |= {name: found} if found else {}
    return keys


def _vault_of(document: Any) -> str:
    """Return the name of the key vault that encrypts the secrets of a stack, or an empty text."""
    key = urlsplit(str(document.get("secretsprovider") or ""))
    return key.netloc.partition(".")[0] if key.scheme == "azurekeyvault" else ""


def _load(file: Path) -> Any:
    read_document(file, code="R-STACK-CONFIG")  # reports what is wrong, with its line
    return _yaml().load(file.read_text(encoding="utf-8"))


def _yaml() -> Any:
    yaml: Any = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _dump(document: Any) -> str:
    text = io.StringIO()
    _yaml().dump(document, text)
    return text.getvalue()


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _write_all(texts: Mapping[Path, str]) -> None:
    parts = {path: path.with_name(f"{path.name}.{os.getpid()}.part") for path in texts}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_text(text, encoding="utf-8")
        for path, part in parts.items():
            part.replace(path)
    except OSError as err:
        raise not_writable(next(iter(texts)).parent, err) from err
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)

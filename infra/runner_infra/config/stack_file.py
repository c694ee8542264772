"""Read `Pulumi.<stack>.yaml`; report all its problems as one error with lines and fixes."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from runner.core.azure.clouds import cloud_named, cloud_of_region, find_cloud, with_cloud
from runner.core.yaml_files import (
    Document,
    FieldPath,
    FieldProblem,
    did_you_mean,
    fields_error,
    find_problems,
    read_document,
)
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.contradictions import contradictions
from runner_infra.config.pool import PoolConfig
from runner_infra.config.stack import StackConfig

_CODE = "R-STACK-CONFIG"
# Fields of StackConfig that are keys of azure-native: by field, the key and its variable.
_SETTINGS = {
    "location": ("location", "ARM_LOCATION"),
    "subscription_id": ("subscriptionId", "ARM_SUBSCRIPTION_ID"),
}
RUNNER_KEYS = frozenset(StackConfig.model_fields) - {"stack", *_SETTINGS}
# Sections that `null` turns off. Pulumi passes null as an empty text.
_OPTIONAL = ("adopt", "budget", "ci", "image", "network", "observability")
# Pulumi stores scalars as text: it writes `true` as `"true"` when it first opens a stack.
_BOOLEAN_KEYS = frozenset(
    name for name, field in StackConfig.model_fields.items() if field.annotation is bool
)
# The keys that the provider reads and its SDK does not declare (azure-native 3.29).
UNDECLARED_KEYS = frozenset(
    {
        "activeDirectoryAuthorityHost",
        "oidcAudience",
        "resourceManagerAudience",
        "resourceManagerEndpoint",
    }
)
# The keys of the provider's configuration. A test compares them with the SDK (azure-native 3.29).
AZURE_KEYS = UNDECLARED_KEYS | frozenset(
    {
        "auxiliaryTenantIds",
        "clientCertificatePassword",
        "clientCertificatePath",
        "clientId",
        "clientSecret",
        "disableInstanceDiscovery",
        "disablePulumiPartnerId",
        "environment",
        "location",
        "metadataHost",
        "msiEndpoint",
        "oidcRequestToken",
        "oidcRequestUrl",
        "oidcToken",
        "oidcTokenFilePath",
        "partnerId",
        "subscriptionId",
        "tenantId",
        "useDefaultAzureCredential",
        "useMsi",
        "useOidc",
    }
)
_NAMESPACES: Mapping[str, Collection[str]] = {"runner": RUNNER_KEYS, "azure-native": AZURE_KEYS}
# https://www.pulumi.com/docs/iac/concepts/projects/stack-settings-file/ (read 2026-11-22)
_FILE_KEYS = ("config", "encryptedkey", "encryptionsalt", "environment", "secretsprovider")


# By section of the stack, the key of pools that must agree with it.
_DEPENDENT_POOL_KEYS = {
    "storage": "mounts",
    "image": "image",
    "network": "ssh_from",
    "tags": "tags",
}


def parse_stack_config(
    values: Mapping[str, Any],
    *,
    stack: str,
    file: Path,
    azure_keys: Collection[str] = (),
    env: Mapping[str, str] = MappingProxyType({}),
) -> StackConfig:
    """Return the checked configuration of a stack.

    Args:
        values: the `runner:` keys without prefix, `location` and `subscription_id`.
        stack: the name of the stack.
        file: the file that the values came from, for errors.
        azure_keys: the `azure-native:` keys without prefix.
        env: the variables that select the cloud if `values` do not.

    Raises:
        RunnerError: values are missing or invalid. It names the file, and the field and fix of each
            problem; if the file can be read, also the line.
    """
    names = [("runner", name) for name in values if name not in _SETTINGS]
    values = {**values, "cloud": values.get("cloud") or find_cloud(env).name}
    names += [("azure-native", name) for name in azure_keys]
    return _validate(values, stack, file, list(_unknown_keys(names)), {})


def load_stack_config(file: Path, *, env: Mapping[str, str]) -> StackConfig:
    """Return the checked configuration of `Pulumi.<stack>.yaml`, read without Pulumi.

    Args:
        file: the stack's file.
        env: ARM_LOCATION and ARM_SUBSCRIPTION_ID are used if the file has neither.

    Raises:
        RunnerError: the file cannot be read, or values are missing or invalid.
    """
    document = read_document(file, code=_CODE).data
    names, values, azure = _read_values(document)
    values["cloud"] = values.get("cloud") or _provider_cloud(azure) or find_cloud(env).name
    unknown = [*_unknown_file_keys(document), *_unknown_keys(names)]
    variables: dict[str, str] = {}
    for field, (key, variable) in _SETTINGS.items():
        values[field] = azure.get(key) or env.get(variable)
        if not azure.get(key) and env.get(variable):
            variables[field] = variable
    stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
    return _validate(values, stack, file, unknown, variables)


def cloud_variables(file: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which other programs use the cloud of a stack.

    They are empty for the public cloud, and for a file that cannot be read, which another command
    reports.

    Raises:
        RunnerError: a variable contradicts the file.
    """
    try:
        _, values, azure = _read_values(read_document(file, code=_CODE).data)
    except RunnerError:
        return {}
    given = values.get("cloud") or _provider_cloud(azure)
    cloud = find_cloud(env, str(given) if given else None)
    return {name: value for name, value in with_cloud(env, cloud).items() if name not in env}


def _read_values(
    document: Mapping[Any, Any],
) -> tuple[list[tuple[str, str]], dict[str, Any], dict[str, Any]]:
    """Return the keys of a file with their namespaces, our values, and those of azure-native."""
    raw: object = document.get("config", {})
    config = cast("dict[Any, Any]", raw) if isinstance(raw, dict) else {}
    names = [_split_key(key) for key in config]
    given = list(zip(names, config.values(), strict=True))
    values = {name: value for (whose, name), value in given if whose == "runner"}
    azure = {name: value for (whose, name), value in given if whose == "azure-native"}
    return names, values, azure


def _provider_cloud(azure: Mapping[str, Any]) -> str | None:
    """Return the cloud that `azure-native:environment` selects, the provider's own key."""
    found = cloud_named(str(azure.get("environment") or ""))
    return found.name if found else None


def _split_key(key: object) -> tuple[str, str]:
    """Return namespace and name of a key. A key without a namespace belongs to the project."""
    namespace, colon, name = str(key).partition(":")
    return (namespace, name) if colon else ("runner", namespace)


def _unknown_keys(names: Sequence[tuple[str, str]]) -> Iterator[FieldProblem]:
    for namespace, name in names:
        known = _NAMESPACES.get(namespace)
        if known is None:
            # Other providers have separate namespaces, so only a similar name is an error.
            if fix := did_you_mean(namespace, _NAMESPACES, cutoff=0.8):
                yield FieldProblem((f"{namespace}:{name}",), "unknown key", "", fix)
        elif name not in known:
            why = f"allowed: {', '.join(sorted(known))}"
            fix = _other_namespace(namespace, name) or did_you_mean(name, known) or f"remove {name}"
            yield FieldProblem((_tree_key(namespace, name),), "unknown key", why, fix)


def _tree_key(namespace: str, name: str) -> str:
    """Return the key that `_load_tree` uses; for our keys, it is the field of StackConfig."""
    if namespace == "runner":
        return name if name not in _SETTINGS else f"runner:{name}"
    if namespace == "azure-native":
        fields = {key: field for field, (key, _) in _SETTINGS.items()}
        return fields.get(name, f"{namespace}:{name}")
    return f"{namespace}:{name}"


def _other_namespace(namespace: str, name: str) -> str:
    for other, known in _NAMESPACES.items():
        if other != namespace and name in known:
            return f"did you mean '{other}:{name}'?"
    field = _SETTINGS.get(name)
    return f"did you mean 'azure-native:{field[0]}'?" if field else ""


def _unknown_file_keys(document: Mapping[Any, Any]) -> Iterator[FieldProblem]:
    """Yield top-level keys with a name similar to a known one; Pulumi ignores unknown keys."""
    for key in document:
        if key not in _FILE_KEYS and (fix := did_you_mean(str(key), _FILE_KEYS)):
            yield FieldProblem((f"/{key}",), "unknown key", "", fix)


def _restore_type(key: str, value: Any) -> Any:
    """Return a value as the user wrote it, before Pulumi stored it as text."""
    if key in _OPTIONAL and value == "":
        return None
    return value == "true" if key in _BOOLEAN_KEYS and value in ("true", "false") else value


def _validate(
    values: Mapping[str, Any],
    stack: str,
    file: Path,
    unknown: Sequence[FieldProblem],
    variables: Mapping[str, str],
) -> StackConfig:
    """Return the configuration; `variables` are those of fields that the file does not set."""
    known = {
        key: _restore_type(key, value)
        for key, value in values.items()
        if key in StackConfig.model_fields
    }
    present = {key: value for key, value in known.items() if value or key not in _SETTINGS}
    document = Document(file, {**present, "stack": stack}, lambda: _load_tree(file))
    missing = [_missing(field, stack, file) for field in _SETTINGS if field not in present]
    config, problems = find_problems(document, StackConfig)
    problems = [problem for problem in problems if problem.place[0] not in {m[0] for m in missing}]
    if config is not None:
        problems += contradictions(config, file.parent)
    elif problems or missing:
        problems += _contradictions_elsewhere(document, [*problems, *(m[1] for m in missing)])
    problems = [*unknown, *problems, *(problem for _, problem in missing)]
    if config is not None and not problems:
        pools = _resolve_scripts(config.pools, file.parent)
        return config.model_copy(update={"pools": pools}).of_file(file)
    err = fields_error(
        document,
        problems,
        code=_CODE,
        format_field=lambda place: _field_name(place, variables),
    )
    if missing:
        err.code, err.exit_code = f"{_CODE}-MISSING", ExitCode.PREFLIGHT
        if len(problems) == len(missing) == len(_SETTINGS):
            err.what = f"{file}: the location and the subscription are missing"
            err.fix = f"add both to {file.name}, or run `runner init`, which replaces the file"
    raise err


def describe_key(config: StackConfig, place: FieldPath) -> str:
    """Return where a key of a configuration stands, such as `Pulumi.dev.yaml:9: pools.0.slots`.

    The line of a missing key is that of its parent.
    """
    name = _field_name(place, {})
    if (file := config.file) is None:
        return name
    document = Document(file, {}, lambda: _load_tree(file))
    return f"{file}:{document.line(place)}: {name}"


def _missing(field: str, stack: str, file: Path) -> tuple[str, FieldProblem]:
    key, variable = _SETTINGS[field]
    what = f"the {field.replace('_id', '')} is missing"
    why = f"stack {stack!r} does not set it, nor does {variable}"
    fix = f"add `azure-native:{key}: VALUE` under `config:` in {file.name}, or set {variable}"
    return field, FieldProblem((field,), what, why, fix)


def _contradictions_elsewhere(
    document: Document, problems: Sequence[FieldProblem]
) -> list[FieldProblem]:
    """Return the contradictions of the sections and pools that have no invalid value.

    Invalid parts are omitted, or replaced by a valid value if they are required.
    """
    wrong = {
        problem.place[:2] if problem.place[0] == "pools" else problem.place[:1]
        for problem in problems
    }
    if ("pools",) in wrong or any(place[:1] == ("stack",) for place in wrong):
        return []
    data = {key: value for key, value in document.data.items() if (key,) not in wrong}
    data = {"location": "eastus", "subscription_id": str(uuid.UUID(int=0)), **data}
    if wrong & {("cloud",), ("location",)}:
        data["cloud"] = cloud_of_region(str(data["location"])).name
    pools = data.get("pools")
    if not isinstance(pools, list):
        return []
    blank = {"vm_size": "none"}
    data["pools"] = [
        {**blank, "id": f"invalid-{number}"} if ("pools", number) in wrong else pool
        for number, pool in enumerate(cast("list[Any]", pools))
    ]
    try:
        config = StackConfig.model_validate(data)
    except ValueError:
        return []
    skipped = {key for section, key in _DEPENDENT_POOL_KEYS.items() if (section,) in wrong}
    found = contradictions(config, document.path.parent)
    # A place with at most two parts is the list of pools, or a whole pool.
    return [
        each
        for each in found
        if each.place[0] != "pools" or skipped.isdisjoint(map(str, each.place[2:3]))
    ]


def _field_name(place: FieldPath, variables: Mapping[str, str]) -> str:
    """Return the name of a field in an error, as the file or the environment spells it."""
    first = str(place[0])
    if first in variables:
        return f"{variables[first]} (environment)"
    if first in _SETTINGS:
        return f"azure-native:{_SETTINGS[first][0]}"
    return ".".join(str(part) for part in place).removeprefix("/")


def _resolve_scripts(pools: Sequence[PoolConfig], folder: Path) -> tuple[PoolConfig, ...]:
    """Return the pools with absolute paths of their scripts."""
    return tuple(
        pool.model_copy(update={"start_script": str(folder.absolute() / pool.start_script)})
        if pool.start_script is not None
        else pool
        for pool in pools
    )


def _load_tree(file: Path) -> Any:
    """Return the file's YAML tree with the keys of problems, so that errors can name lines.

    Return None if it cannot be read, because the values may come from Pulumi.
    """
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415  only for errors

    try:
        whole = read_document(file, code=_CODE).find_tree()
    except RunnerError:
        return None
    tree = CommentedMap()

    def add(source: Any, key: object, name: object) -> None:
        tree[name] = source[key]
        cast("Any", tree).lc.add_kv_line_col(name, source.lc.data[key])

    for key in whole:
        add(whole, key, f"/{key}")
    found = whole.get("config")
    if not isinstance(found, CommentedMap):
        return tree
    for key in cast("Mapping[Any, Any]", found):
        add(found, key, _tree_key(*_split_key(key)))
    return tree

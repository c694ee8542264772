"""What a submission reads from the files that list packages: commits in git, and passwords.

Branches and tags in git are resolved once, so that all attempts and trials of a submission install
the same, and the record of the run names it.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.core.recipe.code_archive import CodeArchive
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import SecretValues
from runner.protocol.git_requirements import INLINE_METADATA, find_git_addresses, resolve

_INCLUDE = re.compile(r"(?m)^\s*(?:-r|-c|--requirement|--constraint)[\s=]*[\"']?([^\s\"'#]+)")
# Other files of a folder that uv and pip read, or that name indexes.
_SETTINGS = (
    *("uv.toml", "pyproject.toml", "pip.conf", "pip.ini", ".pypirc", ".netrc", "setup.cfg"),
    *("poetry.toml", "Pipfile", "environment.yml", "environment.yaml"),
)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # as pip reads them
_USER = re.compile(r"[a-z][a-z0-9+.-]*://(?P<user>[^\s/:@\"'<>]*)(?::(?P<password>[^\s/@\"']*))?@")
_NETRC = re.compile(r"(?im)^(?:machine\b.*\s)?\s*password\s*[=:\s]\s*(?P<password>[^\s#]+)")
_TOKEN_LENGTH = 20  # a user name without password is a token from this length on


def read_package_texts(recipe: Recipe) -> dict[str, str]:
    """Return the texts of the file that lists packages and of those it includes, by path.

    A file that the runner adds to the code is one of them. Files that cannot be read are left out:
    other checks report them.
    """
    found = dict(recipe.package_source.added)
    if recipe.requirements_file is not None:
        _read(recipe.folder.resolve(), recipe.folder / recipe.requirements_file, found)
    return found


def _read(root: Path, path: Path, found: dict[str, str]) -> None:
    path = path.resolve()
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
    if not name or name in found:
        return
    try:
        found[name] = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return
    if path.suffix == ".py":
        found[name] = "".join(INLINE_METADATA.findall(found[name]))
    elif path.suffix != ".toml":
        for included in _INCLUDE.findall(found[name]):
            if "://" not in included:
                _read(root, path.parent / included, found)


def find_commits(
    recipe: Recipe, texts: Mapping[str, str], secrets: SecretValues | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the present commits of branches and tags in git, by `GitAddress.key`, and warnings."""
    addresses = find_git_addresses("\n".join(texts.values()))
    if all(each.is_commit for each in addresses):
        return {}, ()
    values = {**recipe.env, **(secrets.reveal()["values"] if secrets else {})}
    commits, problems = resolve(addresses, values, os.environ)
    warnings = tuple(
        f"{key} is resolved on the node, not now, so that runs may install different commits: {why}"
        for key, why in problems.items()
    )
    return commits, warnings


def warn_passwords(recipe: Recipe, texts: Mapping[str, str], code: CodeArchive) -> tuple[str, ...]:
    """Return a warning for each file with a password for a package index that is uploaded.

    Args:
        recipe: the recipe.
        texts: the files that list its packages.
        code: the archive that is uploaded.
    """
    others: dict[str, str] = {}
    if recipe.source != "builtin":
        for name in _SETTINGS:
            _read(recipe.folder.resolve(), recipe.folder / name, others)
    found = [name for name, text in {**others, **texts}.items() if any(_passwords(name, text))]
    if not found:
        return ()
    with tarfile.open(fileobj=io.BytesIO(code.data)) as archive:
        uploaded = set(archive.getnames()) - dict(recipe.package_source.added).keys()
    return tuple(
        f"{name} contains a password, and is uploaded with the code; {_advice(name)}"
        for name in found
        if name in uploaded
    )


def warn_unset(recipe: Recipe, texts: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for variables of the lists of packages that the run does not set.

    An image may set them.
    """
    if recipe.image is not None:
        return ()
    given = {*recipe.env, *(each.variable for each in recipe.secrets)}
    warnings: list[str] = []
    for file, text in texts.items():
        lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
        names = dict.fromkeys(_VARIABLE.findall("\n".join(lines)))
        missing = [name for name in names if name not in given]
        if missing:
            shown = ", ".join(f"${{{name}}}" for name in missing)
            warnings.append(
                f"{file} refers to {shown}, which the run does not set; for a password: "
                f"`secrets: {{{missing[0]}: {{env: {missing[0]}}}}}` in train.yaml, else use `env`"
            )
    return tuple(warnings)


def _passwords(name: str, text: str) -> Iterator[str]:
    for found in _USER.finditer(text):
        password = found["password"]
        if password is None and len(found["user"]) >= _TOKEN_LENGTH:
            password = found["user"]
        if password and not password.startswith("$") and set(password) != {"*"}:
            yield password
    if name in (".netrc", ".pypirc"):
        yield from (found["password"] for found in _NETRC.finditer(text))


def _advice(name: str) -> str:
    if name.endswith((".txt", ".in")):
        return "write ${INDEX_PASSWORD} instead, and `secrets: {INDEX_PASSWORD: {env: NAME}}`"
    return (
        "remove it, and give the address of the index as a secret: "
        "`secrets: {UV_EXTRA_INDEX_URL: {env: NAME}}`"
    )

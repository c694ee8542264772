"""The variables of a run that steer the installation of its packages: those of uv, and of pip.

uv installs, so variables of pip become those of uv or arguments.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# Variables of uv that decide where it installs, which the agent does.
_OF_THE_AGENT = frozenset({
    "UV_BREAK_SYSTEM_PACKAGES", "UV_CACHE_DIR", "UV_DRY_RUN", "UV_NO_CACHE", "UV_NO_PROGRESS",
    "UV_PREFIX", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_PYTHON_INSTALL_DIR",
    "UV_SYSTEM_PYTHON", "UV_TARGET", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY",
})  # fmt: skip
_STEERS_INSTALLATION = re.compile(r"(?:UV|PIP|GIT)_\w+|NETRC")
_STEERS_BUILDS = re.compile(
    r"(?:CC|CXX|FC|CPP|AR|LD|(?:C|CXX|CPP|LD|MAKE|F)FLAGS|MAX_JOBS|CMAKE_\w+|CUDA_(?:HOME|PATH)"
    r"|\w*_?CUDA_ARCH_LIST|\w*(?:BUILD|INSTALL)\w*|SETUPTOOLS_\w+|SSL_CERT_(?:FILE|DIR)"
    r"|(?:HTTP|HTTPS|ALL|NO)_PROXY|(?:http|https|all|no)_proxy)"
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAMES_FILES = re.compile(
    r"(?:UV|PIP)_(?:\w*CONSTRAINTS?|OVERRIDES?|EXCLUDE|FIND_LINKS|CONFIG_FILE)"
)
_HASH_ROUNDS = 100_000
# Variables of pip, with the one of uv that has the same meaning. Lists are separated by spaces.
_SAME_VALUE = {
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_CONSTRAINT": "UV_CONSTRAINT",
    "PIP_BUILD_CONSTRAINT": "UV_BUILD_CONSTRAINT",
    "PIP_DEFAULT_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_TIMEOUT": "UV_HTTP_TIMEOUT",
    "PIP_RETRIES": "UV_HTTP_RETRIES",
    "PIP_CERT": "SSL_CERT_FILE",
    "PIP_CLIENT_CERT": "SSL_CLIENT_CERT",
}
_FLAGS = {
    "PIP_NO_INDEX": "--no-index",
    "PIP_PRE": "--prerelease=allow",
    "PIP_REQUIRE_HASHES": "--require-hashes",
    "PIP_NO_DEPS": "--no-deps",
    "PIP_NO_DEPENDENCIES": "--no-deps",
}
_LISTS = {"PIP_NO_BINARY": "--no-binary", "PIP_ONLY_BINARY": "--only-binary"}
_TRUE = ("1", "true", "yes", "on", "y", "t")
_WITHOUT_MEANING = frozenset({
    "PIP_CONFIG_FILE", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR", "PIP_NO_INPUT",
    "PIP_ROOT_USER_ACTION", "PIP_PROGRESS_BAR", "PIP_QUIET", "PIP_VERBOSE", "PIP_CACHE_DIR",
    "PIP_PREFER_BINARY", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_USER", "PIP_NO_COLOR",
})  # fmt: skip


class InstallVariables:
    """The variables of a run that its installation uses.

    They are the variables of uv, pip and git, those that a file of requirements refers to, and of
    `env` also those of compilers and proxies. Others would only make more environments. `${NAME}`
    in one of them, as in requirements, is the value of another one.

    Args:
        env: the variables of the recipe.
        secrets: its secrets by variable.
    """

    def __init__(
        self, env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None
    ) -> None:
        self._env = dict(env or {})
        self._secrets = dict(secrets or {})

    def __repr__(self) -> str:
        return f"InstallVariables({', '.join(sorted({*self._env, *self._secrets}))})"

    def values(self, text: str) -> dict[str, str]:
        """Return the variables for requirements with this text, secrets included."""
        all_of_them = {**self._env, **self._secrets}

        def value(match: re.Match[str]) -> str:
            return all_of_them.get(match[1], match[0])

        env, secrets = self._chosen(text)
        return {**{name: _REFERENCE.sub(value, given) for name, given in env.items()}, **secrets}

    def identity(self, text: str) -> dict[str, object]:
        """Return what distinguishes the environment; empty if no variable matters.

        Instead of a secret, it has a hash that is slow to compute, so that nobody finds the secret
        from the name of the environment.
        """
        env, secrets = self._chosen(text)
        hidden = {
            name: hashlib.pbkdf2_hmac(
                "sha256", value.encode("utf-8", "surrogateescape"), name.encode(), _HASH_ROUNDS
            ).hex()
            for name, value in secrets.items()
        }
        return {"variables": {"env": env, "secrets": hidden}} if env or hidden else {}

    def _chosen(self, text: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables of `env` and the secrets for requirements with this text."""
        named = set(_REFERENCE.findall(text))
        env = _choose(self._env, (_STEERS_INSTALLATION, _STEERS_BUILDS), named)
        named.update(name for value in env.values() for name in _REFERENCE.findall(value))
        env = _choose(self._env, (_STEERS_INSTALLATION, _STEERS_BUILDS), named)
        return env, _choose(self._secrets, (_STEERS_INSTALLATION,), named)


def _choose(
    values: Mapping[str, str], patterns: Sequence[re.Pattern[str]], named: set[str]
) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(values.items())
        if (name in named or any(pattern.fullmatch(name) for pattern in patterns))
        and name not in _OF_THE_AGENT
    }


def named_files(variables: Mapping[str, str]) -> list[str]:
    """Return the paths of files and folders that variables of uv and pip name."""
    return [
        path
        for name, value in variables.items()
        if _NAMES_FILES.fullmatch(name)
        for path in re.split(r"[\s,]+", value)
        if path and not _URL.match(path)
    ]


def with_pip_variables(
    given: Mapping[str, str],
    code_dir: Path,
    settings: str,
    *,
    has_index: bool,
    has_extra_index: bool,
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the variables of uv for an installation, its further arguments, and notes.

    Variables of pip become those of uv, which win where both are set. From several indexes of a
    requirements file or of pip's variables, uv takes the best version, as pip does; a strategy in
    the settings of uv wins.

    Args:
        given: the variables of the run.
        code_dir: the folder of the code, which a configuration file of pip may be in.
        settings: the texts of the settings of uv that the code brings along.
        has_index: True if the requirements name an index instead of the usual one.
        has_extra_index: True if the requirements name further indexes.
    """
    pip = {name: value for name, value in given.items() if name.startswith("PIP_") and value}
    pip = {**_read_pip_config(pip.get("PIP_CONFIG_FILE"), code_dir), **pip}
    found = {_SAME_VALUE[name]: value for name, value in pip.items() if name in _SAME_VALUE}
    if (index := pip.get("PIP_INDEX_URL")) and not has_index:
        found["UV_DEFAULT_INDEX"] = index
    if links := pip.get("PIP_FIND_LINKS"):
        found["UV_FIND_LINKS"] = ",".join(links.split())
    if proxy := pip.get("PIP_PROXY"):
        found |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    arguments = [flag for name, flag in _FLAGS.items() if pip.get(name, "").lower() in _TRUE]
    for name, option in _LISTS.items():
        arguments += [f"{option}={each}" for each in re.split(r"[\s,]+", pip.get(name, "")) if each]
    if pip.get("PIP_NO_BUILD_ISOLATION", "").lower() in ("0", "false", "no", "off", "n", "f"):
        arguments.append("--no-build-isolation")
    has_several = "UV_EXTRA_INDEX_URL" in found or has_extra_index
    if has_several and not re.search(r"(?m)^\s*index-strategy\s*=", settings):
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    known = {*_SAME_VALUE, *_FLAGS, *_LISTS, *_WITHOUT_MEANING}
    known |= {"PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY", "PIP_NO_BUILD_ISOLATION"}
    notes = [f"{name} has no meaning for uv, which installs" for name in pip if name not in known]
    return {**found, **given}, list(dict.fromkeys(arguments)), notes


def _read_pip_config(name: str | None, code_dir: Path) -> dict[str, str]:
    """Return the options of a configuration file of pip as variables, {} without such a file."""
    if not name or name == os.devnull:
        return {}
    import configparser  # noqa: PLC0415  few runs have one

    parser = configparser.RawConfigParser()
    with suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read_string((code_dir / name).read_text(encoding="utf-8-sig"))
    pairs = [
        pair for part in ("global", "install") if part in parser for pair in parser.items(part)
    ]
    return {f"PIP_{key.upper().replace('-', '_')}": " ".join(value.split()) for key, value in pairs}

"""What uv installs in an environment: files that list packages, and variables that steer it.

What pip reads differently is translated: options in a file that uv ignores, the choice among
several indexes, addresses in git, and the variables of pip.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from runner.node.environment.uv import STEP
from runner.node.failures import StageFailedError
from runner.node.script.streams import Report
from runner.protocol.git_requirements import (
    INLINE_METADATA,
    GitAddress,
    find_git_addresses,
    pin,
)

INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")
# The value of a short option may follow without a space: `-rbase.txt`.
OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
COMMENT = re.compile(r"(^|\s)#.*")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# Changed copies of files, for one installation: they may contain what a file should not.
COPIES = ("requirements.txt", "commits.txt")
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")
LOCAL_SOURCE = re.compile(r"\b(path|workspace)\s*=|file:")
# Options of a file that uv reads on its command line only.
_ONLY_ARGUMENTS = {"--pre": "--prerelease=allow", "--trusted-host": "--allow-insecure-host"}
_NAMED_EGG = re.compile(r"(?:^|[#&])egg=([A-Za-z0-9._-]+)((?:\[[^\]]*\])?)")
_NAMED_BY_STRING = r"[\"']\s*([A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*git\+[^\"']*)[\"']"


class Requirements:
    """A file that lists packages for uv, with all files that it includes.

    It is a requirements file, a `pyproject.toml`, or a script with inline metadata. `local` is True
    if it installs from the code itself (`.`, `./lib`, `file:`), so that the environment depends on
    the code too.

    Attributes:
        path: The file.
        texts: The text of each file by its path in the code's folder.
        has_extra_index: True if it names a further index, among which pip chooses by version.
        has_index: True if it replaces the index.
        arguments: Arguments of uv for options that it ignores in a file.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.local = False
        self.has_extra_index = False
        self.has_index = False
        self.arguments: list[str] = []
        self._root = root.resolve()
        self._has_git_editable = False
        self._read(path)

    @property
    def is_list(self) -> bool:
        """True for a requirements file, False for a file with a table of dependencies."""
        return self.path.suffix not in (".toml", ".py")

    def report_to(self, report: Report) -> None:
        """Report the start of the installation, with the number of packages if known."""
        if self.is_list:
            report("installing", 0, self.count, "packages")
        else:
            report(f"installing the packages of {self.path.name}")

    @property
    def count(self) -> int:
        """The number of lines that request a package, which may install further ones."""
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        return sum(1 for line in lines if line and line[0] not in "#-")

    def git_addresses(self) -> list[GitAddress]:
        """Return the addresses of packages in git, each once."""
        return find_git_addresses("\n".join(self.texts.values()))

    def install_arguments(
        self, commits: Mapping[str, str], folder: Path, *, for_pip: bool = False
    ) -> list[str | Path]:
        """Return the arguments of `uv pip install`, or of pip, that install these packages.

        Args:
            commits: the commit of branches and tags in git, by `GitAddress.key`.
            folder: an existing folder for changed copies of the files.
            for_pip: True for pip, which reads all options in the files.
        """
        options = [] if for_pip else self.arguments
        if not self.is_list:
            lines = self._overrides(commits)
            if not lines:
                return ["-r", self.path]
            overrides = folder / COPIES[1]
            overrides.write_text("\n".join(lines), encoding="utf-8")
            return ["-r", self.path, "--override", overrides]
        if not (self._has_git_editable or any(a.key in commits for a in self.git_addresses())):
            return [*options, "-r", self.path]
        copy = folder / COPIES[0]
        copy.write_text("\n".join(self._lines(self.path, commits, set())), encoding="utf-8")
        return [*options, "-r", copy]

    def _read(self, path: Path) -> None:
        inside = path.resolve()
        if not inside.is_relative_to(self._root):
            raise bad_requirements(f"{path.name} is outside the code's folder")
        name = str(inside.relative_to(self._root))
        if name in self.texts:
            return
        try:
            self.texts[name] = inside.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as err:
            raise bad_requirements(
                f"{name} is not UTF-8 text: save it as UTF-8 (PowerShell's > writes UTF-16)"
            ) from err
        except OSError as err:
            raise bad_requirements(
                f"cannot read the requirements file {name}: {err.strerror}"
            ) from err
        if path.suffix in (".toml", ".py"):
            if path.suffix == ".py" and (found := INLINE_METADATA.search(self.texts[name])):
                self.texts[name] = found[0]  # other edits of the script need no new environment
            self.local = bool(LOCAL_SOURCE.search(self.texts[name]))
            return
        for line in _logical_lines(self.texts[name]):
            self._read_line(line, inside.parent)

    def _read_line(self, line: str, folder: Path) -> None:
        option = OPTION.match(line)
        if option is None:
            self.local = self.local or _is_local(line)
            return
        name, value = option[1], option[2].strip("\"' ")
        if name in EDITABLE:
            self._has_git_editable = self._has_git_editable or value.startswith("git+")
            self.local = self.local or not value.startswith("git+")
        elif name in INCLUDES and not URL.match(value):
            self._read(folder / value)
        elif name in FIND_LINKS and not URL.match(value):
            self.local = True
        elif name in _ONLY_ARGUMENTS:
            self.arguments += [_ONLY_ARGUMENTS[name], *([value] if value else [])]
        self.has_extra_index = self.has_extra_index or name == "--extra-index-url"
        self.has_index = self.has_index or name in ("-i", "--index-url", "--pypi-url")

    def _lines(self, path: Path, commits: Mapping[str, str], seen: set[Path]) -> Iterator[str]:
        """Yield the lines of a file with recorded commits, and those of the files it includes."""
        inside = path.resolve()
        if inside in seen:
            return
        seen.add(inside)
        for line in _logical_lines(self.texts[str(inside.relative_to(self._root))]):
            option = OPTION.match(line)
            name, value = (option[1], option[2].strip("\"' ")) if option else ("", "")
            file = inside.parent / value
            if name in INCLUDES[:2] and not URL.match(value):
                yield from self._lines(file, commits, seen)
            elif (name in INCLUDES and not URL.match(value)) or (
                name in FIND_LINKS and not URL.match(value) and file.exists()
            ):
                yield f"{name} {file}"
            elif name in EDITABLE and value.startswith("git+"):
                yield _plain_git(pin(value, commits))
            else:
                yield pin(line, commits)

    def _overrides(self, commits: Mapping[str, str]) -> list[str]:
        """Return requirements with recorded commits that replace those of a table."""
        text = "\n".join(self.texts.values())
        found = [pin(each, commits) for each in re.findall(_NAMED_BY_STRING, text)]
        lines = [line for line in found if line not in text]
        for address in self.git_addresses():
            if address.name and (commit := commits.get(address.key)):
                name = re.escape(address.name)
                extras = re.search(rf"[\"']{name}\s*(\[[^\]]*\])", text, re.IGNORECASE)
                where = f"#subdirectory={address.subdirectory}" if address.subdirectory else ""
                which = f"{address.name}{extras[1] if extras else ''}"
                lines.append(f"{which} @ git+{address.text}@{commit}{where}")
        return lines


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines of a requirements file without comments, joined after a backslash."""
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        if stripped := COMMENT.sub("", line).strip():
            yield stripped


def _plain_git(value: str) -> str:
    """Return the requirement of an editable package in git, whose folder no script needs."""
    address, _, fragment = value.partition("#")
    if (named := _NAMED_EGG.search(fragment)) is None:
        return value
    rest = "&".join(part for part in fragment.split("&") if not part.startswith("egg="))
    return f"{named[1]}{named[2]} @ {address}{f'#{rest}' if rest else ''}"


def read_requirements(
    code_dir: Path, file: str | None, packages: Sequence[str]
) -> tuple[Requirements | None, list[str]]:
    """Return the requirements, and the packages that they do not list at the start of a line.

    A package with a version, as in `torch>=2.4`, is always returned.
    """
    requirements = Requirements(code_dir / file, code_dir) if file else None
    text = "\n".join(requirements.texts.values()) if requirements else ""

    def is_listed(package: str) -> bool:
        # With a version, it is installed too, so that the file cannot hide what was asked for.
        line = rf"(?im)^[#\s\"']*{re.escape(package)}(?![\w.-])"
        return re.fullmatch(r"[\w.-]+", package) is not None and bool(re.search(line, text))

    return requirements, [name for name in packages if not is_listed(name)]


def _is_local(requirement: str) -> bool:
    """Return True if the requirement may be a path. A wrong True only causes a rebuild."""
    what = requirement.rpartition(" @ ")[2].partition(";")[0].strip()
    if what.startswith("file:"):
        return True
    if URL.match(what) or "://" in what:
        return False
    return "/" in what or what.startswith(".") or what.endswith(ARCHIVES)


def bad_requirements(message: str) -> StageFailedError:
    """Return the error for requirements that cannot be used."""
    return StageFailedError(STEP, "EnvironmentFailed", message)


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
        if path and not URL.match(path)
    ]


def with_pip_variables(
    given: Mapping[str, str], code_dir: Path, requirements: Requirements | None, settings: str
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the variables of uv for an installation, its further arguments, and notes.

    Variables of pip become those of uv, which win where both are set. From several indexes of a
    requirements file or of pip's variables, uv takes the best version, as pip does; a strategy in
    the settings of uv wins.

    Args:
        given: the variables of the run.
        code_dir: the folder of the code, which a configuration file of pip may be in.
        requirements: the file of requirements.
        settings: the texts of the settings of uv that the code brings along.
    """
    pip = {name: value for name, value in given.items() if name.startswith("PIP_") and value}
    pip = {**_read_pip_config(pip.get("PIP_CONFIG_FILE"), code_dir), **pip}
    found = {_SAME_VALUE[name]: value for name, value in pip.items() if name in _SAME_VALUE}
    if (index := pip.get("PIP_INDEX_URL")) and not (requirements and requirements.has_index):
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
    has_several = "UV_EXTRA_INDEX_URL" in found or (requirements and requirements.has_extra_index)
    if has_several and not re.search(r"(?m)^\s*index-strategy\s*=", settings):
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    known = {*_SAME_VALUE, *_FLAGS, *_LISTS, *_WITHOUT_MEANING}
    known |= {"PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY", "PIP_NO_BUILD_ISOLATION"}
    notes = [f"{name} has no meaning for uv, which installs" for name in pip if name not in known]
    return {**found, **given}, list(dict.fromkeys(arguments)), notes


def _read_pip_config(name: str | None, code_dir: Path) -> dict[str, str]:
    """Return the options of a configuration file of pip as variables, {} without such a file."""
    parser = configparser.RawConfigParser()
    if not name or name == os.devnull:
        return {}
    with suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read_string((code_dir / name).read_text(encoding="utf-8-sig"))
    pairs = [
        pair for part in ("global", "install") if part in parser for pair in parser.items(part)
    ]
    return {f"PIP_{key.upper().replace('-', '_')}": " ".join(value.split()) for key, value in pairs}

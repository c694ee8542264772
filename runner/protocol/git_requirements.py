"""Packages from git: the addresses in a file of requirements, and the commits that they mean.

The client resolves branches and tags when a run is submitted and records the commits in `run.json`;
the agent installs these, and resolves what the client could not. The forms of an address are those
of pip (https://pip.pypa.io/en/stable/topics/vcs-support/) and of the sources of uv.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ADDRESS = re.compile(r"git\+(?P<url>(?:https?|ssh|git|file)://[^\s'\"#;,]+)(?P<rest>#[^\s'\"]*)?")
# A table of [tool.uv.sources] in one line: `name = { git = "https://...", branch = "main" }`.
_SOURCE = re.compile(
    r"(?m)^\s*[\"']?(?P<name>[A-Za-z0-9][\w.-]*)[\"']?\s*=\s*\{(?P<table>[^}\n]*\bgit\s*=[^}\n]*)\}"
)
_FIELD = re.compile(
    r"\b(?P<key>git|branch|tag|rev|subdirectory)\s*=\s*[\"'](?P<value>[^\"']+)[\"']"
)
# Inline metadata of a script: packaging.python.org/specifications/inline-script-metadata.
INLINE_METADATA = re.compile(r"(?m)^# /// script\s*$(?s:.*?)^# ///\s*$")
# A comment of a requirements file begins at the start of a line or after a space.
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LABELS = ("fatal: ", "error: ", "remote: ", "ERROR: ")
_OF_A_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
TIMEOUT_S = 15.0
_AT_ONCE = 8


@dataclass(frozen=True)
class GitAddress:
    """The address of a package in git.

    Attributes:
        text: The address as it is written, without `git+`, the revision and the fragment; it may
            contain a password.
        revision: A branch, tag or commit; empty for the default branch.
        name: The package, if a table of uv's sources names it.
        subdirectory: The folder of the package in the repository, of such a table.
    """

    text: str = field(repr=False)
    revision: str = ""
    name: str = ""
    subdirectory: str = ""

    @property
    def key(self) -> str:
        """The address without user and password, and the revision: how `run.json` names it."""
        return f"{without_user(self.text)}@{self.revision or 'HEAD'}"

    @property
    def is_commit(self) -> bool:
        """True if the revision is a whole commit, which cannot move."""
        return _COMMIT.fullmatch(self.revision) is not None


class GitError(Exception):
    """A revision cannot be resolved; the message is the reason, without secrets."""


def without_user(url: str) -> str:
    """Return an address without the user and password that it may contain."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def describe_commits(commits: Mapping[str, str]) -> str:
    """Return recorded commits in words; empty if there are none."""
    return ", ".join(f"{key} is {commit[:12]}" for key, commit in commits.items())


def _split(url: str) -> tuple[str, str]:
    """Return the address and its revision: what follows the last `@` of the path."""
    start = url.find("/", url.find("://") + 3)
    base, at, revision = url[start:].rpartition("@")
    return (url[:start] + base, revision) if at and start > 0 else (url, "")


def find_git_addresses(text: str) -> list[GitAddress]:
    """Return the addresses of packages in git, each once.

    `text` is that of a requirements file, a TOML file, or a script with inline metadata.
    """
    if tables := INLINE_METADATA.findall(text):
        text = "".join(re.sub(r"(?m)^# ?", "", table) for table in tables)
    text = _COMMENT.sub("", text)
    found = [GitAddress(*_split(match["url"])) for match in _ADDRESS.finditer(text)]
    for match in _SOURCE.finditer(text):
        fields = {part["key"]: part["value"] for part in _FIELD.finditer(match["table"])}
        revision = fields.get("rev") or fields.get("tag") or fields.get("branch") or ""
        where, name = fields.get("subdirectory", ""), match["name"]
        if url := fields.get("git", "").removeprefix("git+"):
            found.append(GitAddress(url, revision, name, where))
    return list(dict.fromkeys(found))


def pin(text: str, commits: Mapping[str, str]) -> str:
    """Return a text with recorded commits instead of branches and tags in addresses."""

    def replace(match: re.Match[str]) -> str:
        base, revision = _split(match["url"])
        commit = commits.get(GitAddress(base, revision).key)
        return f"git+{base}@{commit}{match['rest'] or ''}" if commit else match[0]

    return _ADDRESS.sub(replace, text)


def resolve(
    addresses: Iterable[GitAddress],
    variables: Mapping[str, str],
    environment: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Ask the repositories which commits branches and tags are at the moment.

    Args:
        addresses: the addresses. Those with a commit are left out of the answer.
        variables: values of `${NAME}` in addresses.
        environment: the environment of git.

    Returns:
        The commit by key of the address, and the reason by key of each that has no answer.
    """
    wanted = {each.key: each for each in addresses if not each.is_commit}
    if not wanted:
        return {}, {}
    commits: dict[str, str] = {}
    problems: dict[str, str] = {}

    def ask(address: GitAddress) -> None:
        try:
            commits[address.key] = _find_commit(address, variables, environment)
        except GitError as err:
            problems[address.key] = str(err)

    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:
        list(pool.map(ask, wanted.values()))
    return {key: commits[key] for key in wanted if key in commits}, problems


def _find_commit(
    address: GitAddress, variables: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """Return the commit of an address. Raise GitError."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise GitError(f"the value of ${{{match[1]}}} is not known here")
        return variables[match[1]]

    url = _REFERENCE.sub(value, address.text)
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        url = without_user(url)
    wanted = address.revision or "HEAD"
    # As pip: a branch before a tag with the same name. `^{}` is the commit of an annotated tag.
    names = (f"refs/heads/{wanted}", f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", wanted)
    lines = _list_remote(url, names, _git_variables(url, parts.netloc, environment))
    found = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
    commit = next((found[name] for name in names if name in found), "")
    if not _COMMIT.fullmatch(commit):
        raise GitError(f"the repository has no branch or tag {wanted!r}")
    return commit


def _git_variables(url: str, netloc: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git asks nobody, and signs in with the user of an address.

    The password is in no argument, which every process of the machine could read.
    """
    found = {name: each for name, each in environment.items() if name not in _OF_A_REPOSITORY}
    found |= {
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",
        "GIT_ALLOW_PROTOCOL": "http:https:ssh:git:file",
        "LC_ALL": "C",
    }
    found.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=10")
    user, at, host = netloc.rpartition("@")
    if at and url.startswith("http"):
        name, _, password = user.partition(":")
        plain = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        given = found.get("GIT_CONFIG_COUNT", "")
        number = int(given) if given.isdecimal() else 0
        found |= {
            "GIT_CONFIG_COUNT": str(number + 1),
            f"GIT_CONFIG_KEY_{number}": f"http.{url.partition(':')[0]}://{host}/.extraHeader",
            f"GIT_CONFIG_VALUE_{number}": f"Authorization: Basic {plain}",
        }
    return found


def _list_remote(url: str, names: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--", url, *names],
            # Not in the folder of the code, whose configuration may name programs.
            cwd=Path.cwd().anchor,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"the repository gave no answer in {TIMEOUT_S:g} s") from None
    except OSError as err:
        raise GitError(f"git cannot be started: {err.strerror}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        lines = [line for line in lines if not line.lower().startswith("warning: ")]
        said = (lines or ["git failed"])[0]
        for label in _LABELS:
            said = said.removeprefix(label)
        raise GitError(re.sub(r"(?<=://)[^/\s@]*@", "", said))
    return done.stdout.splitlines()

"""What a requirements file asks for, as far as the cached environment depends on it."""

from __future__ import annotations

import re
from pathlib import Path

from runner.node.failures import StageFailedError

STEP = "environment"
INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")
# The value of a short option may follow at once: `-rbase.txt`.
OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
COMMENT = re.compile(r"(^|\s)#.*")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


class Requirements:
    """The files that count: the one named, and those it includes.

    `local` is true when it installs something out of the code itself (`.`, `./lib`, `file:`): the
    environment then depends on the code too.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.local = False
        self._root = root.resolve()
        self._read(path)

    @property
    def count(self) -> int:
        """How many lines ask for a package: a lower bound of the packages that get installed."""
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        return sum(1 for line in lines if line and line[0] not in "#-")

    def _read(self, path: Path) -> None:
        inside = path.resolve()
        if not inside.is_relative_to(self._root):
            raise _failed(f"{path.name} lies outside the code's folder")
        name = str(inside.relative_to(self._root))
        if name in self.texts:
            return
        try:
            self.texts[name] = inside.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as err:
            raise _failed(
                f"{name} is not UTF-8 text: save it as UTF-8 (PowerShell's > writes UTF-16)"
            ) from err
        except OSError as err:
            raise _failed(f"cannot read the requirements file {name}: {err.strerror}") from err
        # A backslash at its end joins a line with the next one.
        for line in re.sub(r"\\\n", "", self.texts[name]).splitlines():
            self._read_line(COMMENT.sub("", line).strip(), inside.parent)

    def _read_line(self, line: str, folder: Path) -> None:
        option = OPTION.match(line)
        if option is None:
            self.local = self.local or _is_local(line)
            return
        name, value = option[1], option[2].strip("\"' ")
        if name in EDITABLE:
            raise _failed(
                f"{line!r}: an editable install points into one task's folder, which other "
                "tasks of the node do not have; write the path without -e"
            )
        if name in INCLUDES and not URL.match(value):
            self._read(folder / value)
        elif name in FIND_LINKS and not URL.match(value):
            self.local = True


def _is_local(requirement: str) -> bool:
    """Whether it is, or may be, a path: then it costs a build too many, not a stale one."""
    what = requirement.rpartition(" @ ")[2].partition(";")[0].strip()
    if what.startswith("file:"):
        return True
    if URL.match(what) or "://" in what:
        return False
    return "/" in what or what.startswith(".") or what.endswith(ARCHIVES)


def _failed(message: str) -> StageFailedError:
    return StageFailedError(STEP, "EnvironmentFailed", message)

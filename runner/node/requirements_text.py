"""What a requirements file asks for, as far as the cached environment depends on it."""

from __future__ import annotations

from pathlib import Path

from runner.node.failures import StageFailedError

STEP = "environment"
INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")


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
            self.texts[name] = inside.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise _failed(f"cannot read the requirements file {name}: {err}") from err
        for line in self.texts[name].splitlines():
            self._read_line(line.strip(), inside.parent)

    def _read_line(self, line: str, folder: Path) -> None:
        word, _, rest = line.replace("=", " ", 1).partition(" ")
        if line.startswith("--") or word in INCLUDES + EDITABLE:
            if word in EDITABLE:
                raise _failed(
                    f"{line!r}: an editable install points into one task's folder, which other "
                    "tasks of the node do not have; write the path without -e"
                )
            if word in INCLUDES:
                self._read(folder / rest.strip())
        elif line.startswith((".", "/", "file:")) or "@ file:" in line:
            self.local = True


def _failed(message: str) -> StageFailedError:
    return StageFailedError(STEP, "EnvironmentFailed", message)

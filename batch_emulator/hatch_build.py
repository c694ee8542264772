"""Build hook of both distributions: what is in a wheel, and what an editable one exposes.

An editable installation exposes packages, not folders. A folder on `sys.path` would also expose
what lies beside the packages. The regular packages `tests` and `tools` of the repository would then
hide folders of these names without `__init__.py` in the projects of users.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The last finder: a module of any folder on sys.path is found first.
_FINDER = """\
import sys
from importlib.machinery import PathFinder

FOLDERS = {folders!r}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [FOLDERS[name]]) if name in FOLDERS else None


sys.meta_path.append(Finder)
"""


class EditableHook(BuildHookInterface[Any]):
    """Adds a finder for the packages of the table `packages`: their names and parent folders.

    The table `made` has folders of files that another program makes, and their places in a package.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the finder and the `.pth` file that imports it to an editable wheel."""
        if version != "editable":
            made: dict[str, str] = self.config.get("made", {})
            for folder, place in made.items():
                for file in sorted(Path(self.root, folder).glob("*")):
                    build_data["force_include"][str(file)] = f"{place}/{file.name}"
            return
        self.build_config.sources.clear()  # these files are not part of a package
        parents: dict[str, str] = self.config["packages"]
        folders = {name: str(Path(self.root, parent).resolve()) for name, parent in parents.items()}
        # Not at the top level, where pytest would rewrite it as a plugin and warn that it cannot.
        package = f"_editable_{next(iter(folders))}"
        self._folder = tempfile.TemporaryDirectory()
        for name, text in (
            (f"{package}/finder.py", _FINDER.format(folders=folders)),
            (f"{package}.pth", f"import {package}.finder"),
        ):
            file = Path(self._folder.name, Path(name).name)
            file.write_text(text, encoding="utf-8")
            build_data["force_include_editable"][str(file)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary files."""
        del build_data, artifact_path
        if version == "editable":
            self._folder.cleanup()

"""Which test files to run for a change of one module: the nearest in the import graph."""

from __future__ import annotations

import ast
import re
from collections import deque
from pathlib import Path

from tools.mutants import Point

TARGETED = 3  # test files
WIDER = 2  # of the tests that the group names
FARTHEST = 4  # number of imports between a test and the module
PACKED = ("runner/node/", "runner/protocol/")  # the modules in the archive of the agent
_PACKS = "def build_agent("  # a module that contains it counts as importing all packed modules


class Tests:
    """The test files of a tree, and their distances from every module of the product."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folders = ("runner", "batch_emulator", "infra", "tests")
        paths = sorted(path for name in folders for path in (root / name).rglob("*.py"))
        self._texts = {path: path.read_text(encoding="utf-8") for path in paths}
        self._modules = {_module(path.relative_to(root)): path for path in paths}
        self._imports = {path: self._imported(path) for path in paths}
        self._distances: dict[Path, dict[Path, int]] = {}
        self._unit = self._tests("unit")
        self._contract = self._tests("contract")

    def near(self, point: Point) -> tuple[list[Path], list[Path]]:
        """Return the targeted test files and the wider ones, in the order to run them."""
        far = FARTHEST + 1
        unit = [test for test in self._unit if self._distance(test, point.path) < far]
        unit.sort(key=lambda test: self._rank(test, point))
        names = {f"test_{word}" for word in point.words}
        wider = [test for test in (*self._unit, *self._contract) if test.stem in names]
        if not names:  # then the tests that import the module
            wider = [test for test in self._contract if self._distance(test, point.path) == 1]
        targeted = sorted(unit[:TARGETED], key=self._size)
        further = [test for test in sorted(wider, key=self._size) if test not in targeted]
        return targeted, [*unit[TARGETED : TARGETED + 1], *further[:WIDER]]

    def _tests(self, kind: str) -> list[Path]:
        """Return the test files of a kind. Unit tests outside of subfolders check only texts."""
        depth = 1 if kind == "unit" else 0
        folder = self._root / "tests" / kind
        found = sorted(folder.rglob("test_*.py"))
        return [path for path in found if len(path.relative_to(folder).parts) > depth]

    def _rank(self, test: Path, point: Point) -> tuple[int, int]:
        """Return a sort key: distance by imports, then common words of the paths."""
        place = test.relative_to(self._root).as_posix()
        parts = point.path.relative_to(self._root).with_suffix("").as_posix()
        words = {word for word in re.findall(r"[a-z]+", parts) if len(word) > 3} - {"runner"}
        alike = sum(word.removesuffix("s") in place for word in words)
        return self._distance(test, point.path) - alike, self._size(test)

    def _size(self, test: Path) -> int:
        return len(self._texts[test])

    def _distance(self, test: Path, module: Path) -> int:
        """Return the number of imports in between, without helpers of the tests."""
        if test not in self._distances:
            self._distances[test] = self._walk(test)
        return self._distances[test].get(module, FARTHEST + 1)

    def _walk(self, test: Path) -> dict[Path, int]:
        found = {test: 0}
        queue = deque([test])
        while queue:
            path = queue.popleft()
            for other in self._imports[path]:
                helper = other.is_relative_to(self._root / "tests")
                distance = found[path] + (0 if helper else 1)
                if distance <= FARTHEST and distance < found.get(other, FARTHEST + 1):
                    found[other] = distance
                    (queue.appendleft if helper else queue.append)(other)
        return found

    def _imported(self, path: Path) -> set[Path]:
        text = self._texts[path]
        names: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        found = {self._modules[name] for name in names if name in self._modules}
        if _PACKS in text:
            packed = tuple(str(self._root / folder) for folder in PACKED)
            found |= {other for other in self._texts if str(other).startswith(packed)}
        return found


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[:2] == ("infra", "runner_infra") else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

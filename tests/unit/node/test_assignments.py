"""Objects of the agent are built whole: no other object sets their attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.source_tree import ROOT, assert_none

# `file: object` whose attributes are set from outside, each with the reason.
ACCEPTED = {
    "distributed/connection.py: timer": "`threading.Timer` has no other way to be a daemon",
    "distributed/node_group.py: worker": "a record of this module, whose owner is the group",
    "metric_files/aim_folders.py: each": "a record of this module, whose owner is the folder",
    "metric_files/aim_program.py: package": "a module of Aim, whose place is all that is loaded",
    "script/metric_sources.py: each": "a record of this module, whose owner is RepeatedValues",
    "script/metric_sources.py: own": "a record of this module, whose owner is RepeatedValues",
    "script/command.py: writer": "a record of this module, whose owner is OpenWriters",
    "script/workspace.py: file": "a reader of this module, which learns its limit from the archive",
    "script/workspace.py: member": "a member of an archive, of the standard library",
    "script/workspace.py: tar": "an archive of the standard library, before Python 3.12",
    "settings.py: getenv": "a function of C, which gets its type this way",
    "storage/http.py: self._local": "what each thread has of its own",
}


def assigned(path: Path) -> Iterator[str]:
    """Yield the objects, except `self`, whose attributes a module sets."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute):
                    yield ast.unparse(each.value)


def test_no_attribute_of_another_object_is_set_from_outside() -> None:
    node = ROOT / "runner" / "node"
    found = {
        f"{path.relative_to(node).as_posix()}: {name}"
        for path in node.rglob("*.py")
        for name in assigned(path)
        if name not in {"self", "cls"}
    }
    assert_none(found - ACCEPTED.keys(), "give the object what it needs when it is built")
    assert_none(ACCEPTED.keys() - found, "no longer needed")

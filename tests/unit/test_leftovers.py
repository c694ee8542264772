"""Nothing of the services is left in the temporary folder of the machine."""

from __future__ import annotations

import ast

import pytest

from tests.unit.source_tree import assert_none, nodes, product, shown, sources

# Python does not delete these if the process is killed: they must be where their owner finds them.
NEED_A_FOLDER = ("mkdtemp",)
# Paths of sockets must be short. This is used only if the folder with a name known beforehand
# belongs to another user, and the attempt removes it.
EXCEPTIONS = ("runner/node/script/workspace.py",)


@pytest.mark.parametrize("package", product())
def test_temporary_folders_are_in_folders_that_are_cleaned(package: str) -> None:
    found: list[str] = []
    for path in sources(package):
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if not isinstance(owner, ast.Name) or owner.id != "tempfile":
                continue
            named = {each.arg: each.value for each in node.keywords}
            is_kept = "delete" in named and ast.unparse(named["delete"]) == "False"
            needs = node.func.attr in NEED_A_FOLDER or is_kept
            if needs and "dir" not in named and shown(path) not in EXCEPTIONS:
                found.append(f"{shown(path)}:{node.lineno} {node.func.attr}")
    assert_none(found, "pass `dir`, a folder whose leftovers the next start deletes")

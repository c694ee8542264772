"""What features declare, and the core without them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import runner.features
import runner.page
from runner.cli import main
from tests.unit.source_tree import ROOT, parsed

FEATURES = sorted((ROOT / "runner/features").glob("*/__init__.py"))


@pytest.mark.parametrize("path", FEATURES, ids=lambda path: path.parent.name)
def test_declaration_of_a_feature_imports_nothing(path: Path) -> None:
    assert ast.get_docstring(parsed(path))
    assert all(isinstance(node, ast.Assign | ast.Expr) for node in parsed(path).body)


def test_verbs_of_features_stand_at_their_places() -> None:
    verbs = list(main.VERBS)
    assert verbs[verbs.index("dev") :][:3] == ["dev", "tensorboard", "export"]
    assert verbs[verbs.index("skus") :][:4] == ["skus", "monitor", "image", "selftest"]
    assert verbs[verbs.index("sweep") :][:2] == ["sweep", "schedule"]


def test_core_without_features_has_its_own_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.features, "__path__", [str(tmp_path)])
    verbs, of_nouns = main._with_features()
    page = runner.page.VERBS.keys()  # a face of its own beside the features
    own = {verb: found for verb, found in verbs.items() if verb not in page}
    assert (own, of_nouns) == (dict(main._CORE), {})


def test_command_line_built_twice_has_each_command_once() -> None:
    main.build_app(["cost"])
    [cost] = main.build_app(["cost"]).registered_groups
    assert cost.typer_instance is not None
    assert [each.name for each in cost.typer_instance.registered_commands] == ["show", "whatif"]

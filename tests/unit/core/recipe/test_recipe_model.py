"""`model` of train.yaml: accepted and refused values, and their place in the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.recipe import keys
from runner.core.recipe.file import list_recipes
from runner.protocol import models as model_documents
from runner.protocol.errors import RunnerError
from runner.protocol.models import ModelRequest
from tests.unit.core import recipe_maker


def load(folder: Path, text: str) -> ModelRequest | None:
    return recipe_maker.load_text(folder, text).model


def test_model_name_alone_selects_all_outputs(tmp_path: Path) -> None:
    assert load(tmp_path, "model: cats\n") == ModelRequest("cats")
    assert load(tmp_path, "{}\n") is None


def test_every_key_of_a_model_is_in_the_run(tmp_path: Path) -> None:
    text = "model: {name: cats, aliases: [next], path: './model*', description: ' Cats '}\n"
    model = load(tmp_path, text)
    assert model == ModelRequest("cats", ("next",), "model*", "Cats")
    document = recipe_maker.plan(recipe_maker.recipe(model=model)).to_spec().to_json()
    request = model_documents.ModelRequest.from_json(document["model"]).check()
    assert request == model_documents.ModelRequest("cats", ("next",), "model*", "Cats")
    assert recipe_maker.plan().to_spec().to_json()["model"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: Cats", "model"),
        ("model: ''", "model"),
        ("model: a/b", "model"),
        ("model: cats@3", "model"),
        (f"model: {'a' * 64}", "model"),
        ("model: {aliases: [x]}", "name"),
        ("model: {name: cats, aliases: [latest]}", "computed from the versions"),
        ("model: {name: cats, aliases: ['3']}", "aliases"),
        ("model: {name: cats, path: ../x}", "leaves"),
        ("model: {name: cats, path: /x}", "leaves"),
        ("model: {name: cats, version: 3}", "version"),
        ("model: [cats]", "model"),
    ],
)
def test_invalid_model_is_an_error_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunnerError) as caught:
        load(tmp_path, f"{text}\n")
    assert caught.value.code.startswith("R-RECIPE")
    assert said in str(caught.value)


def test_recipe_and_model_registry_accept_the_same_names() -> None:
    assert keys.NAME_PATTERN == model_documents.NAME_PATTERN
    assert keys.ALIAS_PATTERN == model_documents.ALIAS_PATTERN


def test_built_in_recipe_registers_its_model() -> None:
    models = {recipe.name: recipe.model for recipe in list_recipes()}
    assert models["mnist"] == ModelRequest("mnist")

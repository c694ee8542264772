"""What a submission finds in files that list packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.recipe.code_archive import pack_code
from runner.core.recipe.file import load_recipe
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.secrets import SecretValues
from runner.flows.submit.packages import (
    find_commits,
    read_package_texts,
    warn_passwords,
    warn_unset,
)
from runner.protocol.errors import RunnerError
from tests.package_index import make_repository, served, write_package


def recipe_of(folder: Path, files: dict[str, str]) -> Recipe:
    folder.mkdir(exist_ok=True)
    for name, text in {"train.py": "", **files}.items():
        (folder / name).write_text(text)
    return load_recipe(str(folder), cwd=folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "--extra-index-url https://joe:hunter2secret@h/packages\nsix\n"),
        ("requirements.txt", "x @ git+https://ghp_0123456789abcdefghij@h/x.git\n"),
        ("requirements.txt", "-r more.txt\n"),
        ("uv.toml", '[[index]]\nurl = "https://joe:hunter2secret@h/packages"\n'),
        ("pip.conf", "[global]\nindex-url = https://joe:hunter2secret@h/packages\n"),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://joe:hunter2secret@h/packages"\n'),
        ("environment.yml", "dependencies: [pip: [-i https://joe:hunter2secret@h/packages]]\n"),
    ],
)
def test_password_in_a_file_is_a_warning(tmp_path: Path, name: str, text: str) -> None:
    more = {"more.txt": "-i https://joe:hunter2secret@h/packages\n"}
    recipe = recipe_of(tmp_path / "p", {name: text, **(more if "-r" in text else {})})
    [warning] = warn_passwords(recipe, read_package_texts(recipe), pack_code(recipe))
    assert f"{'more.txt' if '-r' in text else name} contains a password" in warning
    assert "hunter2secret" not in warning
    assert "`secrets: {" in warning


@pytest.mark.parametrize(
    "text",
    [
        "-i https://joe:${PW}@h/packages\n",
        "-i https://${TOKEN_OF_A_LONG_NAME}@h/packages\n",
        "x @ git+ssh://git@h/x.git\n",
        "-i https://joe:****@h/packages\n",
        "six  # see https://h/a@b:c\n",
        "",
    ],
)
def test_reference_to_a_secret_is_no_password(tmp_path: Path, text: str) -> None:
    recipe = recipe_of(tmp_path / "p", {"requirements.txt": text})
    assert warn_passwords(recipe, read_package_texts(recipe), pack_code(recipe)) == ()


def test_commits_are_asked_for_with_the_secrets_of_the_run(tmp_path: Path) -> None:
    source = write_package(tmp_path / "source", "gpkg", "V = 1\n")
    commit = make_repository(source, tmp_path / "gpkg.git")
    with served(tmp_path, "joe:hunter2secret") as host:
        line = f"gpkg @ git+http://joe:${{PW}}@{host}/gpkg.git@main\n"
        recipe = recipe_of(tmp_path / "p", {"requirements.txt": "-r more.txt\n", "more.txt": line})
        texts, secrets = read_package_texts(recipe), SecretValues({"PW": "hunter2secret"}, {})
        assert find_commits(recipe, texts, secrets) == (
            {f"http://{host}/gpkg.git@main": commit},
            (),
        )
        commits, [warning] = find_commits(recipe, texts, SecretValues({}, {"PW": "https://vault"}))
    assert commits == {}
    assert "is resolved on the node" in warning
    assert "the value of ${PW} is not known here" in warning


def test_files_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("-i https://joe:hunter2secret@h\n")
    with pytest.raises(RunnerError, match="outside of the folder") as caught:
        recipe_of(tmp_path / "p", {"requirements.txt": "-r ../secret.txt\n"})
    assert "hunter2secret" not in str(caught.value)


def test_file_that_is_not_uploaded_is_no_warning(tmp_path: Path) -> None:
    text = "[global]\nindex-url = https://joe:hunter2secret@h/packages\n"
    recipe = recipe_of(tmp_path / "p", {"pip.conf": text, ".runnerignore": "pip.conf\n"})
    assert warn_passwords(recipe, read_package_texts(recipe), pack_code(recipe)) == ()


@pytest.mark.parametrize(
    ("text", "yaml", "missing"),
    [
        ("-i https://joe:${PW}@h/packages\n", "", "${PW}"),
        ("-r more.txt\n", "", "${PW}"),
        ("-i https://${ME}:${PW}@h/p\n", "env: {ME: joe}\n", "${PW}"),
        ("-i https://${ME}:${PW}@h/p\n", "env: {ME: joe}\nsecrets: {PW: {env: PW}}\n", ""),
        ("# ${PW}\nsix\n", "", ""),
        ("-i https://joe:${PW}@h/packages\n", "image: python:3.12\n", ""),
    ],
)
def test_variable_that_the_run_does_not_set_is_named(
    tmp_path: Path, text: str, yaml: str, missing: str
) -> None:
    more = {"more.txt": "-i https://joe:${PW}@h/packages\n", "train.yaml": yaml}
    recipe = recipe_of(tmp_path / "p", {"requirements.txt": text, **more})
    found = warn_unset(recipe, read_package_texts(recipe))
    assert len(found) == bool(missing)
    assert all(f"refers to {missing}, which the run does not set" in each for each in found)

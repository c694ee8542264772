"""How scripts get parameters: `--name value`, `name=value`, or in the grammar of Hydra."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from runner.core.planning.plan import compose_command, script_arguments
from runner.core.recipe.entry import NEEDS_FOLDER
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions, resolve_params, with_options
from runner.core.recipe.recipe import Recipe
from runner.protocol.commands import place_parameters, replace_arguments, to_arguments
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RecipeSpec

HYDRA = """
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(cfg.lr)
if __name__ == "__main__":
    main()
"""
FROM_CLI = "from omegaconf import OmegaConf\nprint(OmegaConf.from_cli().lr)\n"


def load(folder: Path, text: str, name: str = "train.py") -> Recipe:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load_recipe(str(folder), cwd=folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HYDRA, "hydra"),
        ("import hydra as hy\n@hy.main(None, 'c')\ndef main(cfg): ...\n", "hydra"),
        ("from hydra import main\n@main()\ndef train(cfg): ...\n", "hydra"),
        ("from hydra_zen import zen\nzen(print).hydra_main(None)\n", "hydra"),
        (FROM_CLI, "hydra"),
        (f"import argparse\n{FROM_CLI}", "flags"),
        ("from hydra import compose, initialize\n", "flags"),
        ("import argparse\nargparse.ArgumentParser()\n", "flags"),
        ("def main(): ...\nmain()\n", "flags"),
        ("this is no Python", "flags"),
    ],
)
def test_form_of_parameters_is_found_in_the_script(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert load(tmp_path, text).params_as == expected


def test_form_is_found_in_the_script_of_a_command(tmp_path: Path) -> None:
    load(tmp_path, HYDRA)
    recipe = load(tmp_path, "command: torchrun --standalone train.py --quiet\n", "train.yaml")
    assert recipe.params_as == "hydra"
    load(tmp_path, "", "package/__init__.py")
    load(tmp_path, HYDRA, "package/job.py")
    assert load(tmp_path, "command: python -m package.job\n", "train.yaml").params_as == "hydra"


def test_key_of_train_yaml_and_option_decide_the_form(tmp_path: Path) -> None:
    load(tmp_path, HYDRA)
    recipe = load(tmp_path, "params_as: flags\n", "train.yaml")
    assert recipe.params_as == "flags"
    assert with_options(recipe, RunOptions(params_as="key=value")).params_as == "key=value"
    with pytest.raises(RunnerError) as caught:
        with_options(recipe, RunOptions(params_as="hidra"))
    assert (caught.value.code, caught.value.fix) == ("R-FLAG-VALUE", "--params-as hydra")


def test_declared_parameter_can_have_a_dotted_name(tmp_path: Path) -> None:
    load(tmp_path, HYDRA)
    recipe = load(tmp_path, "params: {model.size: 3}\n", "train.yaml")
    params = resolve_params(recipe.params, ["model.size=4"], None, recipe)
    assert script_arguments(recipe, params) == ("model.size=4",)


def test_script_of_hydra_needs_the_folder_with_its_configuration(tmp_path: Path) -> None:
    load(tmp_path, HYDRA)
    script = tmp_path / "train.py"
    assert load_recipe(str(script), cwd=tmp_path).files == ("train.py",)
    load(tmp_path, "lr: 1\n", "conf/config.yaml")
    with pytest.raises(RunnerError) as caught:
        load_recipe(str(script), cwd=tmp_path)
    assert caught.value.code == NEEDS_FOLDER
    assert "conf/config.yaml" in caught.value.what


# The values that Hydra 1.3.8 and OmegaConf.from_dotlist read from these arguments are the texts.
@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("adam", "adam"),
        ("./data/a-b_c.csv", "./data/a-b_c.csv"),
        ("", "''"),
        ("-", "'-'"),
        ("a,b", "'a,b'"),
        ("a=b", "'a=b'"),
        ("x[0]", "'x[0]'"),
        ("a: b #c", "'a: b #c'"),
        ("12:30", "'12:30'"),
        ("choice(1, 2)", "'choice(1, 2)'"),
        ("größe", "'größe'"),
        ('say "hi"', "'say \"hi\"'"),
        ("it's", '"it\'s"'),
        ('it\'s "x"', r'"it' + r"'s \"x\"" + '"'),
        (r"C:\dir\x", r"'C:\dir\x'"),
        ("$RUNNER_INPUT_CSV", "'$RUNNER_INPUT_CSV'"),
        ("${RUNNER_DATA_DIR}/a", "'${RUNNER_DATA_DIR}/a'"),
    ],
)
def test_text_is_quoted_as_hydra_and_omegaconf_read_it(text: str, argument: str) -> None:
    assert to_arguments({"a.b": text}, "hydra") == [f"a.b={argument}"]
    assert to_arguments({"a.b": text}, "key=value") == [f"a.b={text}"]


@pytest.mark.parametrize(
    "value", [3, 0.5, 1e-05, True, "null", "[1, 2]", "{a: 1, b: [2]}", "'a,b'", '"x"', "$COUNT"]
)
def test_numbers_lists_mappings_and_quoted_texts_are_not_quoted(value: object) -> None:
    text = "true" if value is True else str(value)
    assert to_arguments({"+n": value}, "hydra") == [f"+n={text}"]


@pytest.mark.parametrize("text", ["a\\'b", "ends with \\", "two\nlines"])
def test_text_without_a_literal_form_is_refused(tmp_path: Path, text: str) -> None:
    recipe = load(tmp_path, HYDRA)
    with pytest.raises(RunnerError) as caught:
        script_arguments(recipe, {"note": text})
    assert caught.value.code == "R-SET-VALUE"
    assert "note" in caught.value.what
    assert script_arguments(load(tmp_path, ""), {"note": text}) == ("--note", text)


@pytest.mark.parametrize("name", ["model.size", "+new", "++forced", "model/optimizer", "db@to"])
def test_names_of_hydra_are_accepted_for_key_value_only(name: str) -> None:
    assert resolve_params((), [f"{name}=1"], None, RecipeSpec(params_as="hydra")) == {name: "1"}
    assert resolve_params((), [f"{name}=1"], None, RecipeSpec(params_as="key=value")) == {name: "1"}
    if "." not in name:
        with pytest.raises(RunnerError) as caught:
            resolve_params((), [f"{name}=1"])
        assert caught.value.why == f"the script would receive it as --{name}"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--config-name big +opt=sgd", "--config-name big lr=1 +opt=sgd"),
        ("--config-name=big", "lr=1 --config-name=big"),
        ("opt=sgd --config-name big", "lr=1 opt=sgd --config-name big"),
        ("fit", "fit lr=1"),
    ],
)
def test_overrides_of_hydra_stay_together(tmp_path: Path, args: str, expected: str) -> None:
    recipe = load(tmp_path, HYDRA)  # Hydra 1.3 refuses `lr=1 --config-name big +opt=sgd`
    command, _ = compose_command(recipe, {"lr": 1}, args.split())
    assert " ".join(command) == f"python train.py {expected}"


def test_changed_parameters_replace_those_of_the_command() -> None:
    command = shlex.split("python t.py a=1 'note='\"'x,y'\"'' --quiet")
    old, new = {"a": 1, "note": "x,y"}, {"a": 2, "note": "z"}
    found = replace_arguments(command, old, new, "hydra")
    assert found == ("python", "t.py", "a=2", "note=z", "--quiet")
    assert replace_arguments(command, old, new, "flags") is None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("{lr}", "0.1"),
        ("--config-name={cfg}", "--config-name=a b"),
        ("out/{cfg}/{lr}/{lr}", "out/a b/0.1/0.1"),
        ('{"opt":{"lr":{lr}}}', '{"opt":{"lr":0.1}}'),
        ("{model.size}", "3"),
        ("{verbose}", "true"),
        # These are no places of a parameter.
        ('{"a": 1, "lr": 2}', '{"a": 1, "lr": 2}'),
        ("{epoch}", "{epoch}"),
        ("{{epoch}}", "{{epoch}}"),
        ("{ lr }", "{ lr }"),
        ("{lr:.2f}", "{lr:.2f}"),
        ("{}", "{}"),
        ("$lr ${lr} $${lr} ${{lr}}", "$lr ${lr} $${lr} ${{lr}}"),
        ("{{lr}}", "{lr}"),
        ("{{lr}} {lr}", "{lr} 0.1"),
    ],
)
def test_name_of_a_parameter_in_braces_stands_for_its_value(word: str, expected: str) -> None:
    params = {"lr": 0.1, "cfg": "a b", "model.size": 3, "verbose": True}
    assert place_parameters(["t.py", word], params, "flags") == ["t.py", expected]


def test_value_with_braces_is_not_replaced_again() -> None:
    params = {"a": "{b}", "b": "x", "c": "{b}"}
    template = ["t.py", "{a}", "{b}", None, "-v"]
    assert place_parameters(template, params, "flags") == ["t.py", "{b}", "x", "--c", "{b}", "-v"]


def test_value_in_an_override_of_hydra_is_quoted_and_in_a_flag_is_not() -> None:
    words = ["--config-name={cfg}", "+note={cfg}", "group@{cfg}={n}", "{cfg}", "a=[{cfg},1]", None]
    found = place_parameters(words, {"cfg": "a,b", "n": 1, "lr": "c,d"}, "hydra")
    assert found == [
        "--config-name=a,b", "+note='a,b'", "group@a,b=1", "a,b", "a=[a,b,1]", "lr='c,d'",
    ]  # fmt: skip
    assert place_parameters(["+note={cfg}"], {"cfg": "a,b"}, "key=value") == ["+note=a,b"]


def test_parameter_that_a_word_names_is_not_added_as_a_flag(tmp_path: Path) -> None:
    load(tmp_path, "print()")
    text = "command: python train.py {data} --out {out}\nparams: {data: x.csv, lr: 0.5, out: o}\n"
    recipe = load(tmp_path, text, "train.yaml")
    params = resolve_params(recipe.params, ["out=here", "cfg=big"], words=["--cfg={cfg}"])
    command, template = compose_command(recipe, params, ("fit", "--cfg={cfg}"))
    expected = "python train.py x.csv --out here fit --lr 0.5 --cfg=big"
    assert list(command) == shlex.split(expected)
    assert template[2:] == ("{data}", "--out", "{out}", "fit", None, "--cfg={cfg}")
    other = compose_command(recipe, {"data": "y", "out": "o", "lr": 1}, ('{"a": "{b}"}',))
    assert list(other[0]) == ["python", "train.py", "y", "--out", "o", '{"a": "{b}"}', "--lr", "1"]


def test_command_without_names_in_braces_has_no_template(tmp_path: Path) -> None:
    recipe = load(tmp_path, "print()")
    words = ('{"lr": 1}', "${lr}", "{epoch}")
    assert compose_command(recipe, {"lr": 1}, words) == (
        ("python", "train.py", *words, "--lr", "1"),
        (),
    )


def test_declared_parameter_without_a_value_has_no_place(tmp_path: Path) -> None:
    load(tmp_path, "print()")
    text = "command: python train.py {data}\nparams: {data: {type: str}}\n"
    recipe = load(tmp_path, text, "train.yaml")
    with pytest.raises(RunnerError) as caught:
        compose_command(recipe, {}, ())
    assert (caught.value.code, caught.value.fix) == ("R-SET-MISSING", "--set data=VALUE")


def test_value_that_hydra_cannot_read_in_its_place_is_refused(tmp_path: Path) -> None:
    recipe = load(tmp_path, HYDRA)
    with pytest.raises(RunnerError) as caught:
        compose_command(recipe, {"note": "two\nlines"}, ("+note={note}",))
    assert caught.value.code == "R-SET-VALUE"
    command, _ = compose_command(recipe, {"note": "two\nlines"}, ("--config-name={note}",))
    assert command[-1] == "--config-name=two\nlines"

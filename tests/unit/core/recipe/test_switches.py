"""Flags without a value: how they are found in source, set, swept and left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.sweep import change_sweep, parse_params
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.sweep import check_sweep
from runner.protocol.commands import replace_arguments
from runner.protocol.errors import RunnerError

ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--amp", action="store_true")
p.add_argument("-q", "--use-fp16", action="store_true")
p.add_argument("--no-cuda", action="store_false", dest="cuda")
p.add_argument("--bn", action=argparse.BooleanOptionalAction)
p.add_argument("-v", action="count")
p.add_argument("--lr", type=float)
p.add_argument("--debug", type=lambda text: text == "true")
"""
CLICK = """
import click
@click.command()
@click.option("--shout/--no-shout", default=False)
@click.option("--amp", is_flag=True)
@click.option("--name")
def main(**given): ...
"""
TYPER = """
import typer
from typing import Annotated
def main(
    shout_loud: bool = False,
    fast: Annotated[bool, typer.Option("--quick/--slow")] = True,
    amp: bool = typer.Option(False, "-a", "--amp"),
    count: int = 1,
): ...
typer.run(main)
"""
ABSL = "from absl import flags\nflags.DEFINE_boolean('amp', False, 'mixed precision')\n"
OPTPARSE = "import optparse\noptparse.OptionParser().add_option('--amp', action='store_true')\n"


def command(folder: Path, source: str, *texts: str) -> list[str]:
    (folder / "train.py").write_text(source)
    recipe = load_recipe(".", cwd=folder)
    return list(check_run(recipe, RunOptions(set=texts)).command[2:])


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        (ARGPARSE, "amp=true", ["--amp"]),
        (ARGPARSE, "amp=1", ["--amp"]),
        (ARGPARSE, "amp=false", []),
        (ARGPARSE, "amp=null", []),
        (ARGPARSE, "use_fp16=yes", ["--use-fp16"]),
        (ARGPARSE, "q=True", ["--use-fp16"]),
        (ARGPARSE, "cuda=false", ["--no-cuda"]),
        (ARGPARSE, "cuda=true", []),
        (ARGPARSE, "no-cuda=true", ["--no-cuda"]),
        (ARGPARSE, "bn=false", ["--no-bn"]),
        (ARGPARSE, "bn=true", ["--bn"]),
        (ARGPARSE, "v=true", ["-v"]),
        (ARGPARSE, "lr=1e-3", ["--lr", "1e-3"]),
        (ARGPARSE, "lr=null", []),
        (ARGPARSE, "debug=true", ["--debug", "true"]),
        (CLICK, "shout=true", ["--shout"]),
        (CLICK, "shout=false", ["--no-shout"]),
        (CLICK, "amp=true", ["--amp"]),
        (CLICK, "name=true", ["--name", "true"]),
        (TYPER, "shout_loud=false", ["--no-shout-loud"]),
        (TYPER, "fast=false", ["--slow"]),
        (TYPER, "amp=true", ["--amp"]),
        (TYPER, "count=1", ["--count", "1"]),
        (ABSL, "amp=false", ["--noamp"]),
        (OPTPARSE, "amp=true", ["--amp"]),
        ("print(1)", "amp=true", ["--amp", "true"]),
    ],
)
def test_flag_is_passed_as_its_script_reads_it(
    tmp_path: Path, source: str, text: str, expected: list[str]
) -> None:
    assert command(tmp_path, source, text) == expected


def test_flags_of_an_imported_module_are_found(tmp_path: Path) -> None:
    package = tmp_path / "lib"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "options.py").write_text(ARGPARSE)
    assert command(tmp_path, "from lib import options\n", "amp=true") == ["--amp"]


def test_option_with_a_value_elsewhere_is_no_flag(tmp_path: Path) -> None:
    source = f"{ARGPARSE}\np.add_parser('x').add_argument('--amp')\n"
    assert command(tmp_path, source, "amp=true") == ["--amp", "true"]


def test_value_of_a_flag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="invalid value '2' for amp") as caught:
        command(tmp_path, ARGPARSE, "amp=2")
    assert caught.value.fix == "--set amp=true, or amp=false to leave it out"


def test_declared_bool_of_a_flag_is_the_option(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("params: {amp: false, lr: 1e-3}")
    assert command(tmp_path, ARGPARSE) == ["--lr", "1e-3"]
    assert command(tmp_path, ARGPARSE, "amp=true", "lr=null") == ["--amp"]


def trials(folder: Path, text: str, *args: str) -> list[tuple[str, ...]]:
    (folder / "train.py").write_text(ARGPARSE)
    recipe = load_recipe(".", cwd=folder)
    sweep = change_sweep(None, parse_params([text]), {})
    checked = check_sweep(recipe, sweep, RunOptions(args=args))
    return [run.command[2:] for run in checked.runs.values()]


def test_flag_is_swept(tmp_path: Path) -> None:
    assert trials(tmp_path, "amp=true,false") == [("--amp",), ()]
    assert trials(tmp_path, "amp=[null, 1]") == [(), ("--amp",)]
    assert trials(tmp_path, "bn=[true, false, null]") == [("--bn",), ("--no-bn",), ()]
    assert trials(tmp_path, "lr=1e-3,null") == [("--lr", "1e-3"), ()]


def test_null_leaves_out_a_word_and_an_empty_text_does_not(tmp_path: Path) -> None:
    text = 'x={choice: ["--fast", "", null]}'
    assert trials(tmp_path, text, "a", "{x}", "b") == [
        ("a", "--fast", "b"), ("a", "", "b"), ("a", "b"),
    ]  # fmt: skip
    with pytest.raises(RunnerError, match="x is null in '--name=\\{x\\}'"):
        trials(tmp_path, text, "--name={x}")


def test_null_reaches_hydra(tmp_path: Path) -> None:
    source = "import hydra\n@hydra.main()\ndef main(c): ...\n"
    assert command(tmp_path, source, "trainer.logger=null") == ["trainer.logger=null"]


def test_flag_of_a_recorded_command_is_replaced() -> None:
    switches = {"amp": ("--amp", "")}
    old, new = {"amp": True, "lr": 0.001}, {"amp": False, "lr": 0.001}
    words = ["python", "t.py", "--amp", "--lr", "1e-3", "data"]
    assert replace_arguments(words, old, new, "flags", switches) == (
        "python", "t.py", "--lr", "1e-3", "data",
    )  # fmt: skip

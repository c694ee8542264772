"""Commands that only a shell understands, and shell scripts that no shell can read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.flows.submit.check_and_read import check_run
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import plan


def refused(folder: Path, yaml: str) -> RunnerError:
    folder.mkdir(exist_ok=True)
    (folder / "train.yaml").write_text(yaml)
    with pytest.raises(RunnerError) as caught:
        load_recipe(".", cwd=folder)
    return caught.value


@pytest.mark.parametrize(
    ("text", "found", "fix"),
    [
        (
            "cd src; python t.py",
            ";",
            "[bash, -eo, pipefail, -c, 'cd src; python t.py \"$@\"', train]",
        ),
        ("cd src", "cd", "[bash, -eo, pipefail, -c, 'cd src', train]"),
        ("FOO=1 python t.py", "FOO=1", "env FOO=1 python t.py"),
        ("python a.py&&python b.py", "&&", "[bash, -eo, pipefail, -c, 'python a.py&&python b.py"),
        ("python t.py | tee log", "|", "'python t.py \"$@\" | tee log', train]"),
        ("python t.py 2>log", ">", "'python t.py \"$@\" 2>log', train]"),
        ("python t.py data/*.csv", "*", "'python t.py data/*.csv \"$@\"', train]"),
        ("python t.py a/part-?.csv", "?", "'python t.py a/part-?.csv \"$@\"', train]"),
        ("python t.py --o $(date)", "$(", "'python t.py --o $(date) \"$@\"', train]"),
        ("python t.py --o `date`", "`", "'python t.py --o `date` \"$@\"', train]"),
        ("python t.py ~/x", "~", "python t.py $HOME/x"),
        ("python t.py $@", "$@", "python t.py"),
        ("python t.py ${X:-1}", "${", "'python t.py ${X:-1} \"$@\"', train]"),
        ("python t.py http://x/?a=1&b=2", "&", 'python t.py "http://x/?a=1&b=2"'),
        ("exec python t.py", "exec", "'exec python t.py \"$@\"', train]"),
    ],
)
def test_shell_syntax_is_refused_with_the_form_that_works(
    tmp_path: Path, text: str, found: str, fix: str
) -> None:
    err = refused(tmp_path, f"command: {text}\n")
    assert err.what.endswith(f"unexpected {found!r}: commands do not run in a shell")
    assert fix in err.fix
    (tmp_path / "train.yaml").write_text(f"{err.fix}\n")
    for name in ("t.py", "a.py"):
        (tmp_path / name).write_text("")
    assert load_recipe(".", cwd=tmp_path).command


def test_lines_of_a_command_are_refused_unless_one_continues_another(tmp_path: Path) -> None:
    err = refused(tmp_path, "command: |\n  cd src\n  python t.py\n")
    assert "unexpected 'a second line'" in err.what
    assert r'"cd src\npython t.py \"$@\""' in err.fix
    (tmp_path / "t.py").write_text("")
    (tmp_path / "train.yaml").write_text("command: |\n  python t.py \\\n    a\n    --lr 3\n")
    assert load_recipe(".", cwd=tmp_path).command == ("python", "t.py", "a", "--lr", "3")


@pytest.mark.parametrize(
    ("yaml", "found", "fix"),
    [
        (
            '[cd, src, "&&", python, t.py]',
            "unexpected 'cd'",
            "'cd src && python t.py \"$@\"', train]",
        ),
        ("[FOO=1, python, t.py]", "unexpected 'FOO=1'", "command: env FOO=1 python t.py"),
        ('["python t.py --lr 3"]', "is one word", "command: python t.py --lr 3"),
    ],
)
def test_list_that_only_a_shell_understands_is_refused(
    tmp_path: Path, yaml: str, found: str, fix: str
) -> None:
    err = refused(tmp_path, f"command: {yaml}\n")
    assert found in err.what
    assert fix in err.fix


@pytest.mark.parametrize(
    "text",
    [
        "python t.py '*.csv' 'a;b' \"c&d\" 'e > f'",
        "python t.py --layers [64,32] http://x/?a=1",
        "python t.py $RUNNER_DATA_DIR ${HOME}/x $$5 {lr}",
        "sh -c 'cd src; python t.py > log'",
        "python -c 'print(1); print(2)'",
        "torchrun t.py model.lr=1e-3 'a=[1, 2]'",
    ],
)
def test_plain_words_are_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.py").write_text("")
    (tmp_path / "train.yaml").write_text(f"command: >-\n  {text}\n")
    assert load_recipe(".", cwd=tmp_path).command


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_form_of_the_fix_passes_parameters_and_fails_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "t.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    err = refused(tmp_path, "command: cd src; python t.py | cat; echo done\n")
    (tmp_path / "train.yaml").write_text(f"{err.fix}\n")
    recipe = load_recipe(".", cwd=tmp_path)
    command = check_run(recipe, RunOptions(set=("lr=1e-3",))).command
    words = [word.replace("python t.py", f"{sys.executable} t.py") for word in command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "['--lr', '1e-3']\n")


def test_arguments_that_shell_code_ignores_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("command: [sh, -c, 'python t.py']\nparams: {lr: 3}\n")
    assert any(
        "ignores the arguments --lr 3" in text
        for text in plan(load_recipe(".", cwd=tmp_path), params={"lr": 3}).warnings
    )
    (tmp_path / "train.yaml").write_text(
        "command: [sh, -c, 'python t.py \"$@\"', x]\nparams: {lr: 3}\n"
    )
    assert not any(
        "ignores" in text
        for text in plan(load_recipe(".", cwd=tmp_path), params={"lr": 3}).warnings
    )


CRLF = b"#!/bin/bash\r\nset -e\r\npython train.py\r\n"


@pytest.mark.parametrize(
    ("yaml", "files"),
    [
        ("command: [./run.sh]", {"run.sh": CRLF}),
        ("command: bash run.sh", {"run.sh": CRLF}),
        ("command: run", {"run.sh": b"", "run": CRLF}),
        ("entry: run.sh", {"run.sh": CRLF}),
        ("command: [bash, -c, 'cd . && sh run.sh']", {"run.sh": CRLF}),
        ("command: python train.py\nprepare: sh run.sh", {"run.sh": CRLF}),
        ("command: bash outer.sh", {"outer.sh": b"sh lib/run.sh\n", "lib/run.sh": CRLF}),
        ("command: [./run.py]", {"run.py": b"#!/usr/bin/env python3\r\nprint(1)\n"}),
        ("command: [./run.sh]", {"run.sh": b"\xef\xbb\xbf#!/bin/sh\necho\n"}),
    ],
)
def test_script_that_no_shell_can_read_is_refused(
    tmp_path: Path, yaml: str, files: dict[str, bytes]
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    err = refused(tmp_path, yaml)
    assert err.code == "R-RECIPE-CRLF"
    subprocess.run(["sh", "-c", err.fix], check=True)
    load_recipe(".", cwd=tmp_path)


def test_script_with_crlf_that_is_sent_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_bytes(b"echo hi\r\n")
    with pytest.raises(RunnerError, match=r"go\.sh has Windows line endings"):
        load_recipe("./go.sh", cwd=tmp_path)


def test_python_and_data_with_crlf_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"#!/usr/bin/env python3\r\nprint(1)\r\n")
    (tmp_path / "data.csv").write_bytes(b"a,b\r\n")
    (tmp_path / "train.yaml").write_text("command: python train.py data.csv")
    assert load_recipe(".", cwd=tmp_path).command[-1] == "data.csv"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("source venv/bin/activate; python t.py", "python t.py"),
        (". .venv/bin/activate && python t.py --lr 3", "python t.py --lr 3"),
        ("conda activate ml && python t.py", "python t.py"),
        ("source activate ml; python t.py", "python t.py"),
        ("nohup python t.py &", "python t.py"),
        ("nohup python t.py > log.txt 2>&1 &", "python t.py"),
        ("python t.py &", "python t.py"),
        ("source venv/bin/activate && nohup python -u t.py &", "python -u t.py"),
    ],
)
def test_fix_leaves_out_what_a_node_does_not_need(tmp_path: Path, text: str, plain: str) -> None:
    assert refused(tmp_path, f"command: {text}\n").fix == f"command: {plain}"
    (tmp_path / "t.py").write_text("")
    (tmp_path / "train.yaml").write_text(f"command: {plain}\n")
    assert load_recipe(".", cwd=tmp_path).command == tuple(plain.split())


@pytest.mark.parametrize(
    "text",
    [
        "source env.sh; python t.py",
        "source venv/bin/activate; python t.py | tee log",
        "python t.py & wait",
        "python a.py & python t.py &",
    ],
)
def test_fix_keeps_what_a_shell_has_to_do(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, f"command: {text}\n").fix.startswith("command: [bash, ")

"""The message about a failed installation, from what uv and pip print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.node.environment.uv import Installer
from runner.node.failures import StageFailedError

_BUILD = """\
Using Python 3.11.7 environment at: v
Resolved 1 package in 1.02s
error: Failed to build `chainer==7.8.1`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)

         [stdout]
         running bdist_wheel
         error is not here

         [stderr]
         Traceback (most recent call last):
           File "<string>", line 4, in <module>
         {end}

hint: This error likely indicates that `x` is not declared as a build dependency:

[tool.uv.extra-build-dependencies]
chainer = ["x"]
"""
_UNNAMED = """\
error: The build backend returned an error
  cause: Call to `build` failed (exit status: 1)

         [stdout]
{noise}         REAL CAUSE: nvcc not found
{noise}
"""
_NOISE = "".join(f"         note {n}\n" for n in range(3000))
_OF_PIP = """\
Looking in links: /x
Collecting gym==0.9
  error: subprocess-exited-with-error

  \N{MULTIPLICATION SIGN} Getting requirements to build wheel did not run successfully.
  \N{BOX DRAWINGS LIGHT VERTICAL} exit code: 1
  \N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}\N{BOX DRAWINGS LIGHT HORIZONTAL}> [2 lines of output]
      Traceback (most recent call last):
      ModuleNotFoundError: No module named 'numpy'
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
"""
_SOLUTION = """\
Using Python 3.11.7 environment at: v
error: No solution found when resolving dependencies
  cause: Because six==99 does not exist, it fails.
         And because of this too.

hint: look there
"""
_GIT = """\
   Updating http://h/x.git (main)
error: Failed to download and build `x @ git+http://h/x.git@main`
  cause: Git operation failed
  cause: process didn't exit successfully: `/usr/bin/git fetch` (exit status: 128)
         --- stderr
         fatal: couldn't find remote ref main
"""


def message_of(tmp_path: Path, output: str, *options: str) -> list[str]:
    (tmp_path / "output").write_text(output, encoding="utf-8")
    code = f"import sys; sys.stdout.write(open({str(tmp_path / 'output')!r}).read()); sys.exit(1)"
    with pytest.raises(StageFailedError) as caught:
        Installer(tmp_path, lambda *_: None, lambda: None, lambda _: None).run(
            [sys.executable, "-c", code, *options], {"PYTHONUTF8": "1"}, tmp_path
        )
    return caught.value.message.splitlines()


@pytest.mark.parametrize(
    "end",
    [
        "ModuleNotFoundError: No module named 'pkg_resources'",
        "setuptools.errors.InvalidRequirement: no",
        "a.c:1:10: fatal error: nosuch.h: No such file or directory\n         a: SystemExit: 1",
        "SystemExit: 1\n         error: can't find Rust compiler",
    ],
)
def test_failed_build_names_the_package_and_the_cause(tmp_path: Path, end: str) -> None:
    first, *rest = message_of(tmp_path, _BUILD.format(end=end))
    cause = next(line.strip() for line in end.splitlines() if "SystemExit" not in line)
    assert first.endswith(f" exited with code 1: chainer==7.8.1 cannot be built: {cause}")
    assert cause in rest
    assert not any("hint:" in line for line in rest), "it refers to a table that is not shown"


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("# ./x\n./pkg\nsix\n", "./pkg"),
        ("-e ./a\n./b ; os_name == 'posix'\n", "./a or ./b"),
        ("six\n", "a package"),
    ],
)
def test_cause_is_found_between_many_lines(tmp_path: Path, listed: str, named: str) -> None:
    (tmp_path / "r.txt").write_text(listed)
    output = _UNNAMED.format(noise=_NOISE)
    first, *rest = message_of(tmp_path, output, "-r", str(tmp_path / "r.txt"))
    assert first.endswith(f": {named} cannot be built: REAL CAUSE: nvcc not found")
    assert rest[-3:] == ["REAL CAUSE: nvcc not found", "note 0", "note 1"]


def test_failed_build_of_pip_is_read_too(tmp_path: Path) -> None:
    first, *_ = message_of(tmp_path, _OF_PIP)
    assert first.endswith("gym==0.9 cannot be built: ModuleNotFoundError: No module named 'numpy'")


def test_missing_solution_is_explained_in_the_first_line(tmp_path: Path) -> None:
    first, *rest = message_of(tmp_path, _SOLUTION)
    assert first.endswith("dependencies: Because six==99 does not exist, it fails.")
    assert rest == ["         And because of this too.", "hint: look there"]


def test_repository_is_not_a_build(tmp_path: Path) -> None:
    first, *_ = message_of(tmp_path, _GIT)
    assert first.endswith("x cannot be fetched: fatal: couldn't find remote ref main")


@pytest.mark.parametrize("output", ["", "\n\n"])
def test_no_output_is_said(tmp_path: Path, output: str) -> None:
    assert message_of(tmp_path, output)[1:] == ["it printed nothing"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://joe:hunter2secret@h/x", "http://joe:***@h/x"),
        ("https://:hunter2secret@h/x", "https://:***@h/x"),
        ("https://ghp_0123456789abcdefghijkl@h/x", "https://***@h/x"),
        ("ssh://git@h/x", "ssh://git@h/x"),
        ("http://joe:****@h/x", "http://joe:***@h/x"),
        ("http://h:8080/a@b", "http://h:8080/a@b"),
    ],
)
def test_password_of_an_address_is_in_no_message(tmp_path: Path, address: str, shown: str) -> None:
    output = f"error: Git operation failed\n  cause: fatal: unable to access '{address}'\n"
    assert message_of(tmp_path, output)[0].endswith(f"fatal: unable to access '{shown}'")


def test_long_lines_of_a_build_are_shortened(tmp_path: Path) -> None:
    found = message_of(tmp_path, _BUILD.format(end="RuntimeError: " + "x" * 100_000))
    assert max(map(len, found)) < 1000

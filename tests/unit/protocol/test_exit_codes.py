"""Exit codes of errors, which follow from the code of the error."""

from __future__ import annotations

import ast

import pytest

from runner.protocol.errors import EXIT_CODES, ExitCode, RunnerError
from tests.unit.error_codes import error_codes
from tests.unit.source_tree import assert_none, nodes, product, sources


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("R-RUN-FAILED", ExitCode.RUN_FAILED),
        ("R-RUN-UNKNOWN", ExitCode.USAGE),
        ("R-SERVICES-DOWN", ExitCode.PREFLIGHT),
        ("R-AZURE-SIGN-IN", ExitCode.ACCESS),
        ("R-QUOTA", ExitCode.CAPACITY),
        ("R-COST-CAP", ExitCode.COST_CAP),
        ("R-BUG", ExitCode.BUG),
        ("R-QUALIFY-INTERRUPTED", ExitCode.INTERRUPTED),
        ("R-SELFTEST-INTERRUPTED", ExitCode.INTERRUPTED),
    ],
)
def test_exit_code_follows_from_the_code(code: str, exit_code: ExitCode) -> None:
    assert RunnerError(code, "what").exit_code is exit_code


def test_exit_code_of_a_raise_overrides_the_one_of_the_code() -> None:
    assert RunnerError("R-QUOTA", "what", exit_code=ExitCode.OK).exit_code is ExitCode.OK


def test_every_code_with_an_exit_code_is_raised() -> None:
    assert_none(EXIT_CODES.keys() - error_codes(), "codes that nothing raises: delete them")


def test_no_error_repeats_the_exit_code_of_its_code() -> None:
    repeated = [
        f"{path.name}:{node.lineno}: {code.value}"
        for path in sources(*product())
        for node in nodes(path)
        if isinstance(node, ast.Call) and node.args
        for code, keyword in ((node.args[0], each) for each in node.keywords)
        if keyword.arg == "exit_code"
        and isinstance(code, ast.Constant)
        and isinstance(code.value, str)
        and ast.unparse(keyword.value) == f"ExitCode.{RunnerError(code.value, '').exit_code.name}"
    ]
    assert_none(repeated, "exit codes that the code implies: delete the argument")

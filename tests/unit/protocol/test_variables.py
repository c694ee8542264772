"""References to variables in a command."""

from __future__ import annotations

import pytest

from runner.protocol.commands import expand_variables, referenced_variables

VALUES = {"RUNNER_OUTPUT_DIR": "/out", "A": "1"}


@pytest.mark.parametrize(
    ("command", "expanded"),
    [
        (
            ["python", "t.py", "--out", "$RUNNER_OUTPUT_DIR/m"],
            ["python", "t.py", "--out", "/out/m"],
        ),
        (["t", "${A}b$A"], ["t", "1b1"]),
        (["t", "$$A costs $5, ^x$", "a$"], ["t", "$A costs $5, ^x$", "a$"]),
        (["sh", "-c", "echo $B", "$A"], ["sh", "-c", "echo $B", "1"]),
        (["bash", "-e", "-lc", "echo $B"], ["bash", "-e", "-lc", "echo $B"]),
        (["bash", "-euo", "pipefail", "-c", "$B"], ["bash", "-euo", "pipefail", "-c", "$B"]),
        (["python", "-W", "error", "-c", "$B"], ["python", "-W", "error", "-c", "$B"]),
        (["bash", "-e", "run.sh", "-c", "$A"], ["bash", "-e", "run.sh", "-c", "1"]),
        (["timeout", "5", "/bin/bash", "-c", "$B"], ["timeout", "5", "/bin/bash", "-c", "$B"]),
        (["python3.11", "-c", "print('$B')"], ["python3.11", "-c", "print('$B')"]),
        (["python", "t.py", "-c", "$A/config"], ["python", "t.py", "-c", "1/config"]),
    ],
)
def test_variables_are_replaced_outside_of_code(command: list[str], expanded: list[str]) -> None:
    assert expand_variables(command, VALUES) == expanded


def test_unset_variable_is_an_error_with_its_name() -> None:
    with pytest.raises(KeyError, match="B"):
        expand_variables(["t", "${B}"], VALUES)


def test_references_in_code_are_not_listed() -> None:
    assert referenced_variables(["sh", "-c", "$B", "$A", "${C}", "$$D"]) == ["A", "C"]

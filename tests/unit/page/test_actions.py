"""What the page of a command shows of its result."""

from __future__ import annotations

import pytest

from runner.page.actions import ACTIONS, StartedCommand
from runner.page.rendering import templates


@pytest.mark.parametrize(
    ("output", "run_id"),
    [
        ('{"run_id": "train-20261129-021651-qj8e"}', "train-20261129-021651-qj8e"),
        ('{"error": {"code": "R-RETRY-STATE", "what": "cannot retry"}}', ""),
        ("[]", ""),
        ('"text"', ""),
        ("", ""),
        ("Traceback ...", ""),
        ('{"run_id": null}', ""),
    ],
)
def test_result_of_any_form_is_shown(output: str, run_id: str) -> None:
    job = StartedCommand(1, ACTIONS["retry"], ["retry", "x"], {}, output=output, exit_code=2)
    assert job.run_id == run_id
    template = templates().get_template("job.html")
    shown = "".join(template.blocks["view"](template.new_context({"job": job})))
    assert "exit code 2" in shown
    assert ("/runs/" in shown) == bool(run_id)

"""`named_outputs` of train.yaml: accepted and refused values, and their place in the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpecError, parse_run_spec
from tests.unit.core import recipe_maker


def test_names_become_variables_and_promises(tmp_path: Path) -> None:
    recipe = recipe_maker.load_text(
        tmp_path, "outputs: ['*.json']\nnamed_outputs: {best-model: m/best, plots: p}\n"
    )
    variables = {"RUNNER_OUTPUT_BEST_MODEL": "m/best", "RUNNER_OUTPUT_PLOTS": "p"}
    assert recipe.outputs == ("*.json", "m/best", "p")
    plan = recipe_maker.plan(
        recipe_maker.recipe(outputs=recipe.outputs, named_outputs=recipe.named_outputs)
    )
    spec = parse_run_spec(json.dumps(plan.to_spec().to_json()).encode())
    assert spec.named_outputs == variables
    assert spec.outputs == recipe.outputs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{dir: x}", "RUNNER_OUTPUT_DIR"),
        ("{a-b: x, a_b: y}", "RUNNER_OUTPUT_A_B"),
        ("{x: ../y}", "leaves"),
        ("{x: /y}", "leaves"),
        ("{x: '*.png'}", "pattern"),
        ("{'1x': y}", "named_outputs"),
        ("[x]", "named_outputs"),
    ],
)
def test_invalid_output_is_an_error_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunnerError) as caught:
        recipe_maker.load_text(tmp_path, f"named_outputs: {text}\n")
    assert caught.value.code.startswith("R-RECIPE")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "named", [{"PATH": "x"}, {"RUNNER_OUTPUT_DIR": "x"}, {"RUNNER_OUTPUT_X": "../x"}]
)
def test_forged_output_is_refused_by_the_agent(named: dict[str, str]) -> None:
    document = {**recipe_maker.plan().to_spec().to_json(), "named_outputs": named}
    with pytest.raises(RunSpecError):
        parse_run_spec(json.dumps(document).encode())

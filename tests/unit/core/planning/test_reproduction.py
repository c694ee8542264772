"""Each difference between the requests of two runs is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runner.core.planning.plan import RunContent
from runner.core.planning.reproduction import spec_drift
from runner.protocol.run_spec import CodeRef, RunSpec, parse_run
from tests.unit.core.recipe_maker import RUN_ID, plan


def spec(params: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]], *args: str) -> RunSpec:
    made = plan(
        params=params,
        script_args=args,
        content=RunContent(CodeRef("c" * 64, 4096, 2), "a" * 64, None, None, inputs),
    )
    return parse_run(json.dumps(made.to_spec().to_json()).encode(), RUN_ID)


def path(place: str, *hashes: str) -> Mapping[str, Any]:
    files = [{"name": f"{n}.txt", "sha256": sha256 * 64} for n, sha256 in enumerate(hashes)]
    return {"kind": "path", "path": place, "files": files}


def drift(was: RunSpec, now: RunSpec) -> list[str]:
    return [f"{one.what}, {one.was} -> {one.now}" for one in spec_drift(was, now)]


def test_command_is_named_only_if_more_than_parameters_differs() -> None:
    was = spec({"seed": 1, "noise": 0}, {}, "--flag")
    assert drift(was, spec({"seed": 2, "noise": 0}, {}, "--flag")) == ["parameter seed, 1 -> 2"]
    assert drift(was, spec({"seed": 1, "noise": 0}, {})) == [
        "command, python train.py --flag -> python train.py"
    ]


def test_parameters_in_their_places_do_not_change_the_command() -> None:
    was = spec({"seed": 1, "noise": 0}, {}, "{seed}", "--flag")
    assert drift(was, spec({"seed": 2, "noise": 0}, {}, "{seed}", "--flag")) == [
        "parameter seed, 1 -> 2"
    ]
    assert drift(was, spec({"seed": 1, "noise": 0}, {}, "{seed}")) == [
        "command, python train.py '{seed}' --flag -> python train.py '{seed}'"
    ]


def test_inputs_are_compared_by_content_not_location() -> None:
    was = spec({}, {"d": path("./d", "a"), "e": path("./e", "b", "c")})
    assert drift(was, spec({}, {"d": path("/x", "a"), "e": path("/y", "b", "c")})) == []
    one, many = drift(was, spec({}, {"d": path("./d", "f"), "e": path("./e", "b", "d")}))
    assert one == "input d, 0.txt aaaaaaaaaaaa -> 0.txt ffffffffffff"
    assert many.startswith("input e, 2 files ")
    assert drift(was, spec({}, {"d": path("./d", "a")}))[0].endswith(" -> none")


def test_inputs_of_unknown_content_are_compared_by_location() -> None:
    was = spec({}, {"d": {"kind": "url", "url": "https://a/b", "sha256": None}})
    (found,) = drift(was, spec({}, {"d": {"kind": "url", "url": "https://a/c", "sha256": None}}))
    assert found.startswith("input d, url:https://a/b ")

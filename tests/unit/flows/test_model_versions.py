"""A version of a model shows all parameters of its run."""

from __future__ import annotations

from typing import Any

from runner.cli.commands.models import version_pairs
from runner.flows.models.versions import ModelVersion, _with_all_params

DOCUMENT: dict[str, Any] = {
    "run_id": "cats-1",
    "attempt": 1,
    "files": [],
    "lineage": {
        "params": {"epochs": 3},
        "command": ["t.py", "--epochs", "3", "lr=0.1"],
        "recipe": {"name": "cats"},
    },
}


def test_version_shows_the_parameters_in_the_command() -> None:
    document = _with_all_params(DOCUMENT)
    assert document is not None
    assert document["lineage"]["params"] == {"epochs": 3, "lr": 0.1}
    assert version_pairs(ModelVersion("cats", 1, document))["params"] == "epochs=3, lr=0.1"
    assert DOCUMENT["lineage"]["params"] == {"epochs": 3}, "the stored document stays"


def test_version_of_an_unreadable_or_older_document_stays_as_it_is() -> None:
    assert _with_all_params(None) is None
    assert _with_all_params({"run_id": "cats-1"}) == {"run_id": "cats-1"}

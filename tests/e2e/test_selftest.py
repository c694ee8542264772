"""`runner selftest` against the local services: the answers, one training, and nothing left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli


def test_local_services_answer_like_a_new_emulator(cli: Cli) -> None:
    document = cli.json("selftest", "--yes", "--no-training")
    assert [step for step in document["steps"] if step["differences"]] == []
    assert (document["passed"], document["usd"], document["left"]) == (True, 0, [])
    assert json.loads((cli.cwd / "selftest-report.json").read_text()) == document
    assert "Self-test of local" in (cli.cwd / "selftest-report.md").read_text()


def test_nothing_starts_without_consent(cli: Cli) -> None:
    refused = cli.run("selftest")
    assert refused.returncode == 2
    assert "R-SELFTEST-DECLINED" in refused.stderr
    assert "add --yes" in refused.stderr
    assert not (cli.cwd / "selftest-report.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.feature(60)
def test_selftest_trains_through_an_eviction_and_keeps_the_model_file(
    own_cli: Cli, mnist: Path
) -> None:
    done = own_cli.ok("selftest", "--yes", "--data", mnist, "-o", "json", timeout_s=1200)
    document = json.loads(done)
    training = document["training"]
    assert (training["state"], training["attempts"], training["problem"]) == ("succeeded", 2, "")
    assert Path(training["model_file"]).stat().st_size > 100_000
    assert training["model"] == "selftest@1"
    assert own_cli.json("models", "ls") == []
    assert document["passed"], document

"""Hundreds of seeded races for versions of one model, over the agent's own client.

The slow suite tries 300 seeds, or `PROOF_RACES=N`: 1,000 in `make proof`.
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import pytest

from runner.flows.models.remove import remove
from runner.node.agent.model_registration import AgentModelStore
from runner.protocol import models
from runner.protocol.models import (
    ModelBlobs,
    ModelDocument,
    ModelRegistry,
    ModelRequest,
    draft_version,
    is_deleted_version,
)
from tests.unit.node.races import Process, Race, output, sha256

NAME = "mnist"
RACES = int(os.environ.get("PROOF_RACES", "300"))
BLOBS = ModelBlobs(NAME)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "COPY_BLOCK_BYTES", 16)
    monkeypatch.setattr(models, "DIGEST_READ_BYTES", 24)


class DeletingModels(AgentModelStore):
    """A person's store: with the right to delete, which the agent lacks."""

    def delete(self, name: str, etag: str) -> bool:
        answer = self._transport.send("DELETE", name, headers={"If-Match": etag})
        return answer.status in (202, 404)


class Story:
    """Some runs, who registers which of them, and what came of it."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.race = Race(
            random, kill=random.choice([0, 0, 0.01, 0.03]), lose=random.choice([0, 0.05, 0.2])
        )
        self.removing = random.random() < 0.3
        self.drafts = {f"run-{n}": self._write_run(f"run-{n}") for n in range(random.randint(1, 3))}
        self.by_hand: set[str] = set()
        self.finished: dict[str, list[int]] = {}
        names = list(self.drafts)
        bodies = [self._registrant(random.choice(names)) for _ in range(random.randint(2, 4))]
        self.race.run(*self._registered_before(names))
        if self.removing:
            bodies.append(self._remover)
        self.race.run(*bodies)

    def _write_run(self, run_id: str) -> ModelDocument:
        random = self.race.random
        contents = [bytes([n]) * size for n, size in enumerate((0, 10, 16, 40))]
        files = {
            f"f{n}": contents[int(random.random() * len(contents))]
            for n in range(random.randint(1, 3))
        }
        for path, data in files.items():
            self.race.service.put(f"runs/{run_id}/output/{path}", data)
        outputs = [output(path, data) for path, data in files.items()]
        return draft_version(
            ModelRequest(NAME, ("staging",)),
            {"run_id": run_id},
            {"attempt": 1, "outputs": outputs},
        )

    def _registered_before(self, names: list[str]) -> list[Any]:
        some = names[: int(self.race.random.random() * 2)]
        return [self._registrant(name) for name in some]

    def _registrant(self, run_id: str) -> Any:
        retry_budget = 1 + int(self.race.random.random() * 4)
        anew = self.removing and self.race.random.random() < 0.4  # a user, who wants it back
        self.by_hand |= {run_id} if anew else set()

        def register(process: Process) -> None:
            store = AgentModelStore(process.container("models"), process.container("runs"))
            registered = ModelRegistry(store, NAME).register(
                self.drafts[run_id], lambda path: f"{run_id}/output/{path}", anew=anew
            )
            assert not (anew and registered.deleted), "by hand a run becomes a version again"
            self.finished.setdefault(run_id, []).append(registered.version)

        def life(process: Process) -> None:
            for left in reversed(range(retry_budget)):
                try:
                    register(process)
                    return
                except BaseException:
                    if not (process.dead and left):
                        raise
                    process.revive()  # the next attempt, or the same user again

        return life

    def _remover(self, process: Process) -> None:
        store = DeletingModels(process.container("models"), process.container("runs"))
        registry = ModelRegistry(store, NAME)
        for _ in range(2):
            live = [n for n in registry.numbers() if not is_deleted_version(registry.load(n) or {})]
            if live:
                remove(store, registry, NAME, [process.race.random.choice(live)])

    @property
    def versions(self) -> dict[int, ModelDocument]:
        prefix = f"models/{BLOBS.versions}"
        found = {key: data for key, (data, _) in self.race.service.blobs.items()}
        return {
            int(key.removeprefix(prefix).removesuffix(".json")): json.loads(data)
            for key, data in found.items()
            if key.startswith(prefix)
        }

    @property
    def staging(self) -> int | None:
        body = self.race.service.data(f"models/{BLOBS.aliases}")
        entry = json.loads(body)["aliases"].get("staging") if body else None
        return entry["version"] if entry else None

    def is_whole(self, version: ModelDocument) -> bool:
        contents = [self.race.service.data(f"models/{file['blob']}") for file in version["files"]]
        return [None if c is None else sha256(c) for c in contents] == [
            file["sha256"] for file in version["files"]
        ]


def check(story: Story) -> None:
    versions = story.versions
    assert sorted(versions) == list(range(1, len(versions) + 1)), "numbers are dense"
    by_run: dict[str, list[int]] = {}
    for number, version in versions.items():
        assert version["version"] == number
        by_run.setdefault(version["run_id"], []).append(number)
    for run_id, numbers in by_run.items():
        counted = [
            n for n in numbers if run_id not in story.by_hand or not is_deleted_version(versions[n])
        ]
        assert len(counted) <= 1, "one version of a run"
    for run_id, numbers in story.finished.items():
        assert set(numbers) <= set(by_run[run_id])
        assert run_id in story.by_hand or len(set(numbers)) == 1, "all were told the same version"
    for number, version in versions.items():
        sure = version["run_id"] in story.finished or not story.removing
        assert is_deleted_version(version) or not sure or story.is_whole(version), (
            f"{number} is whole"
        )
        writes = story.race.service.written[f"models/{BLOBS.version(number)}"]
        assert writes == 1 + is_deleted_version(version), "a version never changes"
    told = [number for numbers in story.finished.values() for number in numbers]
    if told and not story.removing:
        assert story.staging in versions
        assert story.staging >= max(told), "the alias is at the newest that asked for it"


@pytest.mark.feature(47)
@pytest.mark.parametrize("seeds", [100, pytest.param(RACES, marks=pytest.mark.slow)])
def test_races_create_one_version_per_run_with_its_files(seeds: int) -> None:
    requests = kills = 0
    for seed in range(seeds):
        story = Story(seed)
        try:
            check(story)
        except AssertionError as err:
            raise AssertionError(f"seed {seed}: {err}") from err
        requests += story.race.requests
        kills += len(story.drafts) > len(story.finished)
    assert requests > 30 * seeds, "they did race"
    assert kills > seeds / 100, "and some died for good"


def test_same_seed_repeats_the_race() -> None:
    first, second = Story(7), Story(7)
    times = {"created": None, "deleted": None}
    assert first.race.requests == second.race.requests
    assert [{**v, **times} for v in first.versions.values()] == [
        {**v, **times} for v in second.versions.values()
    ]

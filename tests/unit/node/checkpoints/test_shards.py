"""Sharded checkpoints: the folders of all ranks are committed and restored as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.node.checkpoints.shards import check_generations, find_generation
from runner.node.checkpoints.snapshot import FileState, FolderListing, UnsettledError
from runner.protocol.checkpoints import (
    CheckpointBlobs,
    CheckpointFile,
    CheckpointManifest,
    merge_shards,
    parse_checkpoint,
    select_shards,
)
from tests.unit.node.node_group_task import NodeGroupTask

BLOBS = CheckpointBlobs("run-1")
Until = Callable[[Callable[[], object]], None]


def _shard(*files: tuple[str, str]) -> CheckpointManifest:
    listed = tuple(
        CheckpointFile(path, 1, sha * 64, f"run-1/checkpoints/files/1/{sha * 64}")
        for path, sha in files
    )
    return CheckpointManifest(1, 1, "2026-11-24T00:00:00+00:00", listed, {}, (), step=200)


def _paths(checkpoint: CheckpointManifest) -> dict[str, str]:
    return {file.path: file.sha256[0] for file in checkpoint.files}


TWO = merge_shards({
    0: _shard(("step-2/a0", "a"), ("step-2/meta", "c"), ("latest", "d")),
    1: _shard(("step-2/a1", "b"), ("step-2/meta", "c"), ("latest", "e")),
})  # fmt: skip


def test_each_rank_gets_its_own_shard_on_as_many_nodes() -> None:
    read = parse_checkpoint(TWO.to_bytes(), BLOBS, 1)
    assert read.ranks == 2
    assert _paths(select_shards(read, 0, 2)) == {
        "step-2/a0": "a",
        "step-2/meta": "c",
        "latest": "d",
    }
    assert _paths(select_shards(read, 1, 2)) == {
        "step-2/a1": "b",
        "step-2/meta": "c",
        "latest": "e",
    }


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_rank_gets_all_shards_on_another_number_of_nodes(nodes: int) -> None:
    assert _paths(select_shards(TWO, 0, nodes)) == {
        "step-2/a0": "a",
        "step-2/a1": "b",
        "step-2/meta": "c",
        "rank-0/latest": "d",
        "rank-1/latest": "e",
    }


def test_checkpoint_of_one_folder_is_the_same_on_all_ranks() -> None:
    own = _shard(("state", "a"))
    assert select_shards(own, 2, 3) is own
    assert b"ranks" not in own.to_json()
    assert replace(own, ranks=0) == own


def test_newest_folder_is_the_one_with_the_greatest_number() -> None:
    state = FileState(0, 0, 0, 0, 0)
    names = ("step-9/a", "step-10/a", "step-10/b/c", "latest", "logs/x")
    assert find_generation(FolderListing(dict.fromkeys(names, state))) == "step-10"
    assert find_generation(FolderListing({"state.pt": state})) == ""


def test_shards_of_different_steps_are_not_committed() -> None:
    check_generations("step-2", {1: "step-2", 2: "step-2"})
    with pytest.raises(UnsettledError, match="rank 0 has 'step-2', rank 2 has 'step-1'"):
        check_generations("step-2", {1: "step-2", 2: "step-1"})
    with pytest.raises(UnsettledError, match="need one folder per checkpoint"):
        check_generations("", {1: "", 2: ""})


SAVES = """
import os, pathlib, time
rank, attempt = os.environ["RUNNER_NODE_RANK"], os.environ["RUNNER_ATTEMPT"]
folder = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"])
shared = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"])
found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
print(found, [(folder / name).read_text() for name in found], flush=True)
if attempt == "1":
    new = folder / ".new"
    new.mkdir()
    (new / f"shard-{rank}").write_text(f"of {rank}")
    new.rename(folder / "step-1")
    if rank == "1":  # has begun the next step, which rank 0 has not
        while not (shared / "next").exists():
            time.sleep(0.02)
        (folder / "step-2").mkdir()
        (folder / "step-2" / "shard-1").write_text("early")
    time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.feature(33)
def test_shards_of_all_ranks_are_one_checkpoint(node_group: NodeGroupTask, until: Until) -> None:
    rule = {"interval_s": 0.2, "sharded": True}
    node_group.submit(SAVES, resources={"nodes": 2}, checkpoints=rule)
    primary = node_group.start_node_group(2)
    until(lambda: node_group.has("checkpoints/1/manifest.json"))
    assert node_group.json("checkpoints/1/manifest.json")["ranks"] == 2
    (node_group.shared / "next").touch()
    until((node_group.work_dir(1) / "checkpoints/step-2/shard-1").exists)
    primary.kill()
    primary.wait(120)
    until(lambda: "the primary was lost" in node_group.worker_log(1))
    assert node_group.run_node_group(2) == 0, node_group.output
    for rank, log in enumerate(("logs/stdout.txt", "nodes/1/stdout.txt")):
        last = node_group.text(log).splitlines()[-1]
        assert last == f"['step-1/shard-{rank}'] ['of {rank}']"

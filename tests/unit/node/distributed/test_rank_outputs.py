"""Files of scripts on workers: outputs are exported, and a warning names what is not stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.node.checkpoints import snapshot as folder_listing_module
from runner.node.distributed.rank_outputs import CheckpointWatch
from runner.node.script.outputs import rank_folder
from tests.unit.node.node_group_task import NodeGroupTask, lines_of

WRITES = """
import os, pathlib, sys
rank = os.environ["RUNNER_NODE_RANK"]
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
out.joinpath("shard").write_text(f"of rank {rank}")
"""
Until = Callable[[Callable[[], object]], None]


def notices(node_group: NodeGroupTask) -> list[str]:
    lines = node_group.lines("attempts/1/events.jsonl")
    return [line["message"] for line in lines if line["stage"] == "notice"]


@pytest.mark.slow
def test_outputs_of_all_ranks_are_exported_without_conflict(
    node_group: NodeGroupTask,
) -> None:
    script = (
        WRITES
        + """
if rank == "0":
    (out / "rank-1").mkdir()
    (out / "rank-1" / "shard").write_text("what rank 0 calls so")
"""
    )
    node_group.submit(script, resources={"nodes": 3})
    assert node_group.run_node_group(3) == 0, node_group.output
    paths = [one["path"] for one in node_group.json("result.json")["outputs"]]
    assert paths == ["rank-1/shard", "rank-1_/shard", "rank-2/shard", "shard"]
    texts = [node_group.text(f"output/{path}") for path in paths]
    assert texts == ["what rank 0 calls so", "of rank 1", "of rank 2", "of rank 0"]
    assert not notices(node_group)


@pytest.mark.slow
def test_unreadable_output_of_worker_fails_the_run(node_group: NodeGroupTask) -> None:
    script = WRITES + "if rank == '1': out.joinpath('bad').symlink_to('/proc/self/mem')\n"
    node_group.submit(script, resources={"nodes": 2})
    assert node_group.run_node_group(2) != 0
    result = node_group.json("result.json")
    assert (result["code"], result["rank"]) == ("OutputUnreadable", 1)
    assert result["message"].startswith("rank 1 on node tvm-1: cannot export")


@pytest.mark.slow
def test_checkpoint_files_of_worker_cause_a_warning(
    node_group: NodeGroupTask, until: Until
) -> None:
    script = (
        WRITES
        + """
import time
folder = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"])
(out / "new").write_text("x" * 2000)
(out / "new").rename(folder / f"shard-{rank}")
while not pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "go").exists():
    time.sleep(0.02)
"""
    )
    node_group.submit(script, resources={"nodes": 2}, checkpoints={"interval_s": 3600})
    primary = node_group.start_node_group(2)
    until(lambda: notices(node_group))
    text = (
        "rank 1 on node tvm-1: 1 file (2.0 kB) in $RUNNER_CHECKPOINT_DIR of this node are in no "
        "checkpoint: only rank 0 commits checkpoints"
    )
    assert notices(node_group)[0] == text
    (node_group.shared / "go").touch()
    assert primary.wait(120) == 0
    assert [e for e in lines_of(node_group, 1) if e["stage"] == "notice"]


BOTH = """
import time
open(f"model-{rank}.pt", "w").write(rank)
there = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"])
(there / f"there-{rank}").touch()
while len(list(there.glob("there-*"))) < 2:
    time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["0", "1"])
def test_failed_run_keeps_files_of_every_rank(node_group: NodeGroupTask, failing: str) -> None:
    script = WRITES + BOTH + f"if rank == {failing!r}: sys.exit(3)\ntime.sleep(300)\n"
    node_group.submit(script, resources={"nodes": 2})
    assert node_group.run_node_group(2) == 3, node_group.output
    result = node_group.json("result.json")
    paths = [one["path"] for one in result["outputs"]]
    assert paths == ["model-0.pt", "rank-1/model-1.pt", "rank-1/shard", "shard"]
    assert result["partial"]
    assert node_group.text("output/rank-1/model-1.pt") == "1"


@pytest.mark.slow
def test_failed_run_keeps_files_of_the_same_name(node_group: NodeGroupTask) -> None:
    script = WRITES + BOTH
    script += (
        "if rank == '0':\n    (out / 'rank-1').mkdir()\n    (out / 'rank-1' / 'shard').touch()\n"
        "(there / f'here-{rank}').touch()\n"
        "while len(list(there.glob('here-*'))) < 2: time.sleep(0.02)\nsys.exit(3)\n"
    )
    node_group.submit(script, resources={"nodes": 2})
    assert node_group.run_node_group(2) == 3, node_group.output
    paths = [one["path"] for one in node_group.json("result.json")["outputs"]]
    assert {"rank-1/shard", "rank-1_/shard", "rank-1_/model-1.pt"} <= set(paths)


@pytest.mark.slow
def test_retried_failure_does_not_wait_for_outputs_of_workers(
    node_group: NodeGroupTask,
) -> None:
    node_group.submit(WRITES + BOTH + "sys.exit(3)\n", resources={"nodes": 2}, retries=1)
    assert node_group.run_node_group(2) == 3, node_group.output
    assert not node_group.has("nodes/1/attempts/1/outputs.json")


@pytest.mark.slow
def test_terminated_run_keeps_files_of_every_rank(node_group: NodeGroupTask, until: Until) -> None:
    node_group.submit(WRITES + BOTH + "time.sleep(300)\n", resources={"nodes": 2})
    primary = node_group.start_node_group(2)
    until((node_group.shared / "there-1").exists)
    until((node_group.shared / "there-0").exists)
    primary.terminate()
    primary.wait(120)
    until(lambda: node_group.has("nodes/1/attempts/1/outputs.json"))
    until(lambda: node_group.has("output/rank-1/model-1.pt"))
    assert node_group.has("output/model-0.pt")


@pytest.mark.slow
def test_next_attempt_keeps_files_of_the_same_name(node_group: NodeGroupTask, until: Until) -> None:
    script = WRITES + (
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        "    if rank == '0':\n        (out / 'rank-1').mkdir()\n"
        "        (out / 'rank-1' / 'model-1.pt').write_text('of rank 0')\n"
    )
    script += "    " + BOTH.strip().replace("\n", "\n    ") + "\n    time.sleep(300)\n"
    node_group.submit(script, resources={"nodes": 2})
    primary = node_group.start_node_group(2)
    until((node_group.shared / "there-1").exists)
    until((node_group.shared / "there-0").exists)
    primary.terminate()
    primary.wait(120)
    until(lambda: node_group.has("nodes/1/attempts/1/outputs.json"))
    assert node_group.text("output/rank-1/model-1.pt") == "of rank 0"
    assert node_group.text("output/rank-1_/model-1.pt") == "1"
    assert node_group.run_node_group(2) == 0, node_group.output
    kept = {one["path"]: one.get("attempt") for one in node_group.json("result.json")["outputs"]}
    assert (kept["rank-1/model-1.pt"], kept["rank-1_/model-1.pt"]) == (1, 1)


@pytest.mark.slow
def test_next_attempt_keeps_files_of_every_rank(node_group: NodeGroupTask, until: Until) -> None:
    script = WRITES + "if os.environ['RUNNER_ATTEMPT'] == '1':\n    "
    script += BOTH.strip().replace("\n", "\n    ") + "\n    time.sleep(300)\n"
    node_group.submit(script, resources={"nodes": 2})
    primary = node_group.start_node_group(2)
    until((node_group.shared / "there-1").exists)
    until((node_group.shared / "there-0").exists)
    primary.terminate()
    primary.wait(120)
    until(lambda: node_group.has("nodes/1/attempts/1/outputs.json"))
    assert node_group.run_node_group(2) == 0, node_group.output
    kept = {one["path"]: one.get("attempt") for one in node_group.json("result.json")["outputs"]}
    assert kept == {
        "model-0.pt": 1, "rank-1/model-1.pt": 1, "rank-1/shard": None, "shard": None,
    }  # fmt: skip


def test_restored_checkpoint_folder_causes_no_warning(tmp_path: Path) -> None:
    (tmp_path / "restored").write_text("x")
    reported: list[str] = []
    with CheckpointWatch(tmp_path, reported.append):
        pass
    assert not reported
    with CheckpointWatch(tmp_path, reported.append):
        (tmp_path / "new").write_text("x")
    [text] = reported
    assert text.startswith("1 file (1 B) in $RUNNER_CHECKPOINT_DIR of this node are in no")


def test_rank_folder_avoids_outputs_of_rank_0() -> None:
    own = ["rank-1", "rank-1_/x", "rank-22"]
    assert [rank_folder(rank, own) for rank in (1, 2)] == ["rank-1__/", "rank-2/"]


def test_too_many_files_cause_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_listing_module, "MAX_FILES", 2)
    reported: list[str] = []
    with CheckpointWatch(tmp_path, reported.append):
        for name in "abc":
            (tmp_path / name).touch()
    assert len(reported) == 1
    assert reported[0].startswith("more than ")
    with CheckpointWatch(tmp_path, reported.append):  # restored from a checkpoint of an older agent
        (tmp_path / "d").touch()
    assert len(reported) == 1

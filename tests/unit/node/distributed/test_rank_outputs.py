"""Files of scripts on workers: outputs are exported, and a warning names what is not stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.node.checkpoints import snapshot as folder_listing_module
from runner.node.distributed.rank_outputs import CheckpointWatch, describe_unsaved, rank_folder
from runner.protocol.results import OutputFile
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


def test_unreadable_output_of_worker_fails_the_run(node_group: NodeGroupTask) -> None:
    script = WRITES + "if rank == '1': out.joinpath('\\udcff').write_text('x')\n"
    node_group.submit(script, resources={"nodes": 2})
    assert node_group.run_node_group(2) != 0
    result = node_group.json("result.json")
    assert (result["code"], result["rank"]) == ("OutputUnreadable", 1)
    assert result["message"].startswith("rank 1 on node tvm-1: cannot export")


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


def test_unexported_outputs_of_stopped_worker_are_logged(
    node_group: NodeGroupTask, until: Until
) -> None:
    script = (
        WRITES
        + """
import time
while rank == "0" and not pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "go").exists():
    time.sleep(0.02)
sys.exit(3 if rank == "0" else 0)
"""
    )
    node_group.submit(script, resources={"nodes": 2})
    primary = node_group.start_node_group(2)
    until(lambda: ("command", "end") in [(e["stage"], e["state"]) for e in lines_of(node_group, 1)])
    (node_group.shared / "go").touch()
    assert primary.wait(120) == 3
    [text] = [e["message"] for e in lines_of(node_group, 1) if e["stage"] == "notice"]
    assert text.startswith("1 file (9 B) in $RUNNER_OUTPUT_DIR are not exported: the run did not")


def test_files_beside_the_script_of_a_failed_worker_are_named(node_group: NodeGroupTask) -> None:
    node_group.submit("open('model.pt', 'w').close()\nraise SystemExit(3)", resources={"nodes": 2})
    assert node_group.start_node_group(2).wait(120) == 3
    texts = [e["message"] for e in lines_of(node_group, 1) if e["stage"] == "notice"]
    assert any("1 file beside the script is not exported (model.pt)" in text for text in texts)


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


def test_rank_folder_avoids_outputs_of_rank_0(tmp_path: Path) -> None:
    own = [
        OutputFile("rank-1", 1, ""),
        OutputFile("rank-1_/x", 1, ""),
        OutputFile("rank-22", 1, ""),
    ]
    assert [rank_folder(rank, own) for rank in (1, 2)] == ["rank-1__/", "rank-2/"]
    assert describe_unsaved(tmp_path, "X", "no reason") == ""


def test_too_many_files_cause_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_listing_module, "MAX_FILES", 2)
    reported: list[str] = []
    with CheckpointWatch(tmp_path, reported.append):
        for name in "abc":
            (tmp_path / name).touch()
    assert len(reported) == 1
    assert reported[0].startswith("more than ")
    assert describe_unsaved(tmp_path, "RUNNER_OUTPUT_DIR", "why").startswith("more than ")
    with CheckpointWatch(tmp_path, reported.append):  # restored from a checkpoint of an older agent
        (tmp_path / "d").touch()
    assert len(reported) == 1

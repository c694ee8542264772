"""Each format of metric files: complete, growing, half-written and damaged.

`written` has files of wandb 0.31.0 and tensorboardX 2.6.5. To write them again:

    run = wandb.init(mode="offline")
    for step in range(3):
        run.log({"train/loss": 1 / (step + 1), "nested": {"accuracy": step / 4}, "note": "text"})
    run.log({"val/loss": 0.25, "diverged": float("nan")}, step=10)
    run.summary["best_accuracy"] = 0.5
    run.finish()

    writer = SummaryWriter()
    for step in range(3):
        writer.add_scalar("train/loss", 1 / (step + 1), step * 10)
    writer.add_text("note", "text", 1)
    writer.add_histogram("weights", numpy.arange(10.0), 20)
    writer.add_scalar("val/loss", 0.25, 20)
    writer.close()
"""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from runner.node.metric_files import mlflow_files
from runner.node.metric_files.event_files import EventFile
from runner.node.metric_files.formats import FORMATS, Opened, may_have_metrics, open_reader
from runner.node.metric_files.reading import READ_BYTES, FileReader, FoundValue
from runner.node.script.printed import is_metric_of

WRITTEN = Path(__file__).parent / "written"
LOSSES = [("train/loss", 1.0, 0), ("train/loss", 0.5, 1), ("train/loss", 0.333333, 2)]
MLFLOW_RUN = "mlruns/1/0123456789abcdef0123456789abcdef"


def rounded(found: FoundValue) -> tuple[str, float | str, int | None]:
    value = round(found.value, 6) if math.isfinite(found.value) else str(found.value)
    return found.name, value, found.step


def open_file(path: Path) -> tuple[str, FileReader]:
    opened = open_reader(path, Opened(is_metric_of(())))
    assert opened is not None, path
    return opened


def read(reader: FileReader) -> list[tuple[str, float | str, int | None]]:
    return [rounded(each) for each in reader.read()]


def test_file_that_wandb_wrote_is_read() -> None:
    source, reader = open_file(WRITTEN / "run.wandb")
    found = read(reader)
    assert source == "wandb"
    assert [each for each in found if each[0] == "train/loss"] == LOSSES
    assert ("nested.accuracy", 0.25, 1) in found
    assert found[-2:] == [("val/loss", 0.25, 10), ("diverged", "nan", 10)] or found[-2:] == [
        ("diverged", "nan", 10),
        ("val/loss", 0.25, 10),
    ]
    assert len(found) == 8
    assert [rounded(each) for each in reader.finish()] == [("best_accuracy", 0.5, None)]


def test_file_that_tensorboardx_wrote_is_read() -> None:
    source, reader = open_file(WRITTEN / "events.out.tfevents.1.node")
    assert source == "tensorboard"
    assert read(reader) == [
        ("train/loss", 1.0, 0),
        ("train/loss", 0.5, 10),
        ("train/loss", 0.333333, 20),
        ("val/loss", 0.25, 20),
    ]


@pytest.mark.parametrize("name", ["run.wandb", "events.out.tfevents.1.node"])
def test_record_counts_once_and_when_it_is_complete(tmp_path: Path, name: str) -> None:
    content = (WRITTEN / name).read_bytes()
    whole = read(open_file(WRITTEN / name)[1])
    path = tmp_path / name
    path.write_bytes(content[:30])
    _, reader = open_file(path)
    found = read(reader)
    for end in range(40, len(content) + 97, 97):
        path.write_bytes(content[:end])
        found += read(reader)
        assert found == whole[: len(found)]
    assert found == whole
    assert read(reader) == []


def test_damaged_event_file_is_an_error(tmp_path: Path) -> None:
    content = bytearray((WRITTEN / "events.out.tfevents.1.node").read_bytes())
    content[1] ^= 1
    path = tmp_path / "events.out.tfevents.2"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read(EventFile(path))


def test_scalar_that_tensorflow_2_writes_as_a_tensor_is_read(tmp_path: Path) -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    from runner.node.metric_files.event_files import _masked_crc

    tensor = bytes([1 << 3, 1]) + field(2, b"") + field(4, struct.pack("<f", 0.75))
    metadata = field(1, field(1, b"scalars"))
    value = field(1, b"epoch_accuracy") + field(8, tensor) + field(9, metadata)
    event = bytes([2 << 3, 7]) + field(5, field(1, value))
    size = struct.pack("<Q", len(event))
    path = tmp_path / "events.out.tfevents.3"
    path.write_bytes(size + struct.pack("<I", _masked_crc(size)) + event + b"\0\0\0\0")
    assert read(EventFile(path)) == [("epoch_accuracy", 0.75, 7)]


def test_files_of_mlflow_are_read_while_they_grow(tmp_path: Path) -> None:
    path = tmp_path / MLFLOW_RUN / "metrics" / "val" / "loss"
    path.parent.mkdir(parents=True)
    (tmp_path / MLFLOW_RUN / "meta.yaml").write_text("run_id: x\n")
    path.write_text("1764400000000 0.5 0\n1764400000001 0.")
    source, reader = open_file(path)
    assert (source, read(reader)) == ("mlflow", [("val/loss", 0.5, 0)])
    with path.open("a") as file:
        file.write("25 1\n1764400000002 nan 2\n")
    assert read(reader) == [("val/loss", 0.25, 1), ("val/loss", "nan", 2)]


def test_database_of_mlflow_is_read_while_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp"
            " BIGINT NOT NULL, run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT 0 NOT NULL,"
            " is_nan BOOLEAN DEFAULT 0 NOT NULL,"
            " PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan))"
        )
        add = "INSERT INTO metrics VALUES (?, ?, 1, ?, ?, ?)"
        database.execute(add, ("acc", 0.5, "a", 1, 0))
        database.commit()
        monkeypatch.setattr(mlflow_files, "_MAX_ROWS", 1)  # all of several parts are read
        source, reader = open_file(path)
        assert (source, read(reader)) == ("mlflow", [("acc", 0.5, 1)])
        database.execute(add, ("acc", 0.0, "a", 2, 1))
        database.execute(add, ("acc", 0.25, "b", 1, 0))
        database.commit()
    assert read(reader) == [("acc", "nan", 2), ("run-2/acc", 0.25, 1)]


def test_other_database_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE metrics (loss FLOAT)")
        database.commit()
    assert open_reader(path, Opened(is_metric_of(()))) is None


def test_table_that_is_written_anew_with_more_columns_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss,lr\n0,49,0.9,0.1\n")
    source, reader = open_file(path)
    assert (source, read(reader)) == ("csv", [("train_loss", 0.9, 49)])
    path.write_text("epoch,lr,step,train_loss,val_loss\n0,0.1,49,0.9,\n0,,99,,0.7\n")
    assert read(reader) == [("val_loss", 0.7, 99)]
    with path.open("a") as file:
        file.write("1,0.1,149,nan,\n1,,199,,")
    assert read(reader) == [("train_loss", "nan", 149)]
    with path.open("a") as file:
        file.write("0.6\n")
    assert read(reader) == [("val_loss", 0.6, 199)]


def test_long_table_that_is_written_anew_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = range(100_000)  # more than one part
    path.write_text("step,loss\n" + "".join(f"{n},{n / 8}\n" for n in rows))
    assert path.stat().st_size > READ_BYTES
    _, reader = open_file(path)
    assert len(read(reader)) == len(rows)
    path.write_text("step,loss,lr\n" + "".join(f"{n},{n / 8},1\n" for n in rows) + "7,0.5,1\n")
    assert read(reader) == [("loss", 0.5, 7)]
    path.write_text("step,loss\n0,0.0\n")  # a script that starts again
    assert read(reader) == []
    with path.open("a") as file:
        file.write("1,0.125\n2,9.0\n")
    assert read(reader) == [("loss", 0.125, 1), ("loss", 9.0, 2)]


def test_error_table_of_catboost_has_the_name_of_its_data(tmp_path: Path) -> None:
    path = tmp_path / "test_error.tsv"
    path.write_text("iter\tLogloss\tAUC\n0\t0.68\t0.7\n")
    assert read(open_file(path)[1]) == [("test/Logloss", 0.68, 0), ("test/AUC", 0.7, 0)]


def test_entries_of_all_trainer_states_count_once(tmp_path: Path) -> None:
    entries = [
        {"epoch": 0.5, "grad_norm": 2.0, "loss": 0.9, "step": 10},
        {"epoch": 1.0, "loss": 0.7, "step": 20},
        {"epoch": 1.0, "eval_loss": 0.8, "eval_runtime": 1.0, "step": 20},
    ]
    opened = Opened(is_metric_of(()))
    found: list[object] = []
    for count in (1, 3, 2):
        path = tmp_path / f"checkpoint-{count}" / "trainer_state.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"epoch": 1.0, "log_history": entries[:count]}))
        reader = open_reader(path, opened)
        assert reader is not None
        assert reader[0] == "trainer"
        found += read(reader[1])
    assert found == [
        ("grad_norm", 2.0, 10), ("loss", 0.9, 10), ("loss", 0.7, 20), ("eval_loss", 0.8, 20),
    ]  # fmt: skip


def test_json_lines_are_read_while_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{"iteration": 19, "total_loss": 2.0, "lr": 0.1, "eta_seconds": 12.0}\n{"it')
    source, reader = open_file(path)
    assert (source, read(reader)) == ("json", [("total_loss", 2.0, 19)])
    with path.open("a") as file:
        file.write('eration": 39, "total_loss": NaN}\nno JSON\n')
    assert read(reader) == [("total_loss", "nan", 39)]


def test_results_and_histories_are_read(tmp_path: Path) -> None:
    path = tmp_path / "eval_results.json"
    path.write_text('{"eval_accuracy": 0.9, "eval_runtime": 3.0, "note": "loss"}')
    assert read(open_file(path)[1]) == [("eval_accuracy", 0.9, None)]
    path = tmp_path / "history.json"
    path.write_text('{"loss": [0.5, 0.25], "lr": [1, 1], "name": ["a"]}')
    assert read(open_file(path)[1]) == [("loss", 0.5, 1), ("loss", 0.25, 2)]


def test_results_that_are_being_written_are_read_later(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"accuracy": 0.')
    _, reader = open_file(path)
    with pytest.raises(OSError, match="not complete"):
        read(reader)
    path.write_text('{"accuracy": 0.9}')
    assert read(reader) == [("accuracy", 0.9, None)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("submission.csv", "id,score\n1,0.5\n"),
        ("prices.csv", "date,price,error\n2026-01-01,3,0\n"),
        ("predictions.csv", ",score\n0,0.5\n"),
        ("data.csv", "epoch,height\n1,2\n"),
        ("numbers.csv", "1,2,3\n4,5,6\n"),
        ("config.json", '{"loss": 0.5, "dropout": 0.1}'),
        ("list.json", "[1, 2]"),
        ("annotations.jsonl", '{"image_id": 1, "score": 0.5}\n'),
        ("empty.csv", ""),
        ("garbage.csv", "\0\1\2\n" * 9),
        ("run.wandb", "no log"),
        ("other.db", "no database"),
    ],
)
def test_file_without_metrics_is_not_read(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert open_reader(path, Opened(is_metric_of(()))) is None


def test_each_format_has_paths_that_may_be_of_it() -> None:
    paths = (
        "/a/events.out.tfevents.1", "/a/run.wandb", f"/a/{MLFLOW_RUN}/metrics/loss", "/mlflow.db",
        "/a/trainer_state.json", "/a/metrics.csv", "/a/log.jsonl", "/a/.aim/run_metadata.sqlite",
    )  # fmt: skip
    assert all(any(each.may_be(path) for path in paths) for each in FORMATS)
    assert all(map(may_have_metrics, paths))
    assert not may_have_metrics("/a/images/1.png")

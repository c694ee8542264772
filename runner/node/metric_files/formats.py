"""The table of formats of metric files, and how a file's format is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runner.node.metric_files.aim_folders import AIM_FILE, AimFolder, AskPython
from runner.node.metric_files.event_files import NAME_PART, EventFile
from runner.node.metric_files.mlflow_files import (
    DATABASE_HEAD,
    MlflowDatabase,
    MlflowMetric,
    is_mlflow_database,
)
from runner.node.metric_files.reading import FileReader, SeenValues
from runner.node.metric_files.tables import IsMetric, JsonLines, Results, TextTable, TrainerState
from runner.node.metric_files.wandb_files import HEADER, WandbFile

HEAD_BYTES = 64 * 1024  # read to recognise the format of a file
_TRAINER_STATE = "trainer_state.json"
_CATBOOST = {"learn_error.tsv": "learn/", "test_error.tsv": "test/"}  # below catboost_info
_MLFLOW_METRIC = re.compile(r"(.*/[0-9a-f]{32})/metrics/(.{1,250})")


@dataclass(frozen=True)
class Opened:
    """What the readers of one attempt share: which names are metrics, and histories of copies.

    `ask` runs a program with the Python of the script; None if it has none.
    """

    is_metric: IsMetric
    ask: AskPython | None = None
    trainer: SeenValues = field(default_factory=SeenValues)


@dataclass(frozen=True)
class FileFormat:
    """A format of metric files.

    Attributes:
        source: the source of its values, as in `metrics.jsonl`.
        may_be: False for paths that cannot be of this format, whose files are not opened.
        open: returns the reader, or None if the file, of which it gets the first bytes, is of
            another format.
    """

    source: str
    may_be: Callable[[str], bool]
    open: Callable[[Path, bytes, Opened], FileReader | None]


def _open_events(path: Path, head: bytes, _: Opened) -> FileReader | None:
    return EventFile(path) if head else None


def _open_wandb(path: Path, head: bytes, _: Opened) -> FileReader | None:
    return WandbFile(path) if head.startswith(HEADER) else None


def _open_aim(path: Path, head: bytes, opened: Opened) -> FileReader | None:
    if opened.ask is None or not head.startswith(DATABASE_HEAD):
        return None
    return AimFolder(path, opened.ask)


def _open_mlflow(path: Path, head: bytes, _: Opened) -> FileReader | None:
    found = _MLFLOW_METRIC.fullmatch(path.as_posix())
    if found is None or not head or not Path(found[1], "meta.yaml").is_file():
        return None
    return MlflowMetric(path, found[2])


def _open_database(path: Path, head: bytes, _: Opened) -> FileReader | None:
    is_ours = head.startswith(DATABASE_HEAD) and is_mlflow_database(path)
    return MlflowDatabase(path) if is_ours else None


def _open_trainer_state(path: Path, head: bytes, opened: Opened) -> FileReader | None:
    return TrainerState(path, opened.trainer) if head.lstrip().startswith(b"{") else None


def _open_table(path: Path, head: bytes, opened: Opened) -> FileReader | None:
    title, end, _ = head.partition(b"\n")
    prefix = _CATBOOST.get(path.name, "")
    is_metric: IsMetric = (lambda name: name != "iter") if prefix else opened.is_metric
    if not end or not TextTable.has_metrics(title.decode("utf-8", "replace"), is_metric):
        return None
    return TextTable(path, is_metric, prefix)


def _open_json(path: Path, head: bytes, opened: Opened) -> FileReader | None:
    line, end, _ = head.partition(b"\n")
    if end and JsonLines.has_metrics(line, opened.is_metric):
        return JsonLines(path, opened.is_metric)
    is_results = path.suffix == ".json" and Results.may_be(path)
    if is_results and head.lstrip().startswith(b"{"):
        return Results(path, opened.is_metric)
    return None


FORMATS = (
    FileFormat("tensorboard", lambda path: NAME_PART in path, _open_events),
    FileFormat("wandb", lambda path: path.endswith(".wandb"), _open_wandb),
    FileFormat("aim", lambda path: path.endswith(AIM_FILE), _open_aim),
    FileFormat("mlflow", lambda path: "/metrics/" in path, _open_mlflow),
    FileFormat(
        "mlflow", lambda path: path.endswith((".db", ".sqlite", ".sqlite3")), _open_database
    ),
    FileFormat("trainer", lambda path: path.endswith(f"/{_TRAINER_STATE}"), _open_trainer_state),
    FileFormat("csv", lambda path: path.endswith((".csv", ".tsv")), _open_table),
    FileFormat("json", lambda path: path.endswith((".json", ".jsonl", "log.txt")), _open_json),
)


def may_have_metrics(path: str) -> bool:
    """Return False for a path of no format."""
    return any(each.may_be(path) for each in FORMATS)


def open_reader(path: Path, opened: Opened) -> tuple[str, FileReader] | None:
    """Return the source and the reader of a file, or None if it has no metrics, or none yet.

    Raise OSError if the file cannot be read.
    """
    shown = path.as_posix()
    formats = [each for each in FORMATS if each.may_be(shown)]
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    for each in formats:
        if (reader := each.open(path, head, opened)) is not None:
            return each.source, reader
    return None

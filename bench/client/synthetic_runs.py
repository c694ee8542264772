"""Write many synthetic runs into stopped local services, as a year of use would leave them.

400,000 uploads take Azurite most of an hour. So this writes the file in which Azurite keeps the
metadata of blobs, as Azurite saves it, and the contents in a few extents:

    python -m bench.client.synthetic_runs HOME RUNS [--only-by-experiment]

`HOME` is a RUNNER_HOME whose local services were started once and stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import IO, Any
from uuid import UUID

from runner.protocol.paths import RunPaths, make_run_id, run_id_suffix, submission_time
from runner.protocol.results import BY_TIME_MARK, by_time_blob, index_blob, index_metadata
from runner.protocol.usage import load_usage, usage_to_json

SEED = 33
DAYS = 365
EXPERIMENTS = 40
NODES = 12
UNFINISHED = 20  # runs without a result whose task no longer exists, spread over the time
_EXTENT_RUNS = 5000
_POINTS = 30
_BLOBS = "$BLOBS_COLLECTION$"

Blobs = dict[str, bytes]


def synthetic_runs(count: int, until: datetime) -> Iterator[tuple[str, Blobs, dict[str, str]]]:
    """Yield the ID, the blobs and the entry in the index of each run, oldest first.

    Runs share nodes, one in twenty was evicted once, and one in ten failed.
    """
    random = Random(SEED)
    pause = timedelta(days=DAYS) / max(count, 1)
    for number in range(count):
        created = until - pause * (count - number)
        name = f"exp{random.randrange(EXPERIMENTS):02d}"
        run_id = make_run_id(name, created, run_id_suffix(f"{number}"))
        is_over = number % max(count // UNFINISHED, 1) != 7
        yield run_id, *_run(random, run_id, name, created, number, is_over=is_over)


def _run(
    random: Random, run_id: str, name: str, created: datetime, number: int, *, is_over: bool
) -> tuple[Blobs, dict[str, str]]:
    paths = RunPaths(run_id)
    attempts = 2 if random.random() < 0.05 else 1
    status = "failed" if random.random() < 0.1 else "succeeded"
    run = _run_json(random, run_id, name, created)
    blobs: Blobs = {paths.run: _pretty(run)}
    start = end = created + timedelta(seconds=20)
    for attempt in range(1, attempts + 1):
        end = start + timedelta(seconds=random.randrange(60, 3600))
        node = f"tvm-{(number + attempt) % NODES:04d}"
        started = {
            "attempt": attempt, "node": node, "pool": "local", "dedicated": False,
            "started": start.isoformat(), "log_offsets": {"stdout": 0, "stderr": 0},
            "node_times": {"created": (start - timedelta(minutes=2)).isoformat()},
        }  # fmt: skip
        blobs[paths.attempt_start(attempt)] = _pretty(started)
        blobs[paths.attempt_events(attempt)] = _events(start)
        is_last = attempt == attempts
        if is_over or not is_last:
            why = status if is_last else "terminated"
            document = {"attempt": attempt, "ended": end.isoformat(), "why": why}
            blobs[paths.attempt_end(attempt)] = _pretty(document)
        start = end + timedelta(minutes=3)
    blobs[paths.stdout] = "".join(
        f"epoch {n}/30 loss {1 / (n + 1):.4f}\n" for n in range(30)
    ).encode()
    blobs[paths.metrics] = _metrics(created, attempts)
    result = None
    if is_over:
        result = _result(random, run_id, status, attempts, created, end)
        blobs[paths.result] = _pretty(result)
    usage = load_usage(
        blobs.get, run_id, nodes=1, status=status if is_over else "", ended=end if is_over else None
    )
    metadata = index_metadata(run, result, usage_to_json(usage) if is_over else None)
    return blobs, metadata


def _run_json(random: Random, run_id: str, name: str, created: datetime) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "experiment": name,
        "created": created.isoformat(),
        "recipe": {"name": "mnist", "description": "digits", "source": "builtin"},
        "command": ["python", "train.py", "--epochs", "8", "--batch-size", "128"],
        "params": {"epochs": 8, "batch_size": 128, "seed": 0, "learning_rate": random.random()},
        "metrics": {"patterns": {}, "primary": "test_accuracy", "goal": "max"},
        "code": {"sha256": "c" * 64, "size_bytes": 2000, "blob": "code/" + "c" * 64},
        "agent": {"sha256": "a" * 64, "blob": "code/" + "a" * 64},
        "resources": {"nodes": 1, "gpus": 0},
        "batch": {"account": "local", "pool": "local", "vm_size": "local", "spot": True,
                  "job_id": f"{name}_local", "task_id": run_id},
    }  # fmt: skip


def _result(
    random: Random, run_id: str, status: str, attempt: int, created: datetime, ended: datetime
) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "status": status,
        "attempt": attempt,
        "evicted": attempt - 1,
        "exit_code": 0 if status == "succeeded" else 1,
        "message": None if status == "succeeded" else "the script ended with exit code 1",
        "started": created.isoformat(),
        "ended": ended.isoformat(),
        "metrics": {"test_accuracy": random.random(), "test_loss": 0.031, "loss": 0.02},
        "output": "output/",
        "outputs": [{"path": "model.keras", "size_bytes": 7, "sha256": "0" * 64}],
    }


def _events(start: datetime) -> bytes:
    lines = [
        {"stage": stage, "state": state, "time": (start + timedelta(seconds=n)).isoformat()}
        for n, (stage, state) in enumerate(
            (stage, state)
            for stage in ("environment", "data", "restore", "command")
            for state in ("start", "end")
            if (stage, state) != ("command", "end")
        )
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _metrics(created: datetime, attempt: int) -> bytes:
    lines = [
        {"time": created.isoformat(), "attempt": attempt, "step": step, "name": "loss",
         "value": 1 / (step + 1)}
        for step in range(_POINTS)
    ]  # fmt: skip
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _pretty(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


def seed(home: Path, count: int, until: datetime, *, by_time: bool = True) -> int:
    """Write runs into the stopped local services of a home. Return the number of blobs.

    Args:
        home: RUNNER_HOME.
        count: The number of runs.
        until: The newest runs are submitted shortly before.
        by_time: Write the index by time too, as clients do since it exists.
    """
    folder = home / "local" / "blob"
    path = folder / "__azurite_db_blob__.json"
    database: dict[str, Any] = json.loads(path.read_text())
    collections: list[dict[str, Any]] = database["collections"]
    blobs = next(each for each in collections if each["name"] == _BLOBS)
    outputs = json.loads((home / "local" / "outputs.json").read_text())
    store = _Store(folder, outputs["storage_account"], outputs["container_runs"], blobs["maxId"])
    before = json.dumps(blobs["data"])[1:-1]
    with path.with_suffix(".new").open("w") as out:
        # With this version, LokiJS builds the indexes of a collection when it loads the file.
        head = json.dumps(
            {**database, "databaseVersion": 1, "collections": []}, separators=(",", ":")
        )
        start, end = head.split('"collections":[]')
        out.write(f'{start}"collections":[')
        out.writelines(f"{json.dumps(each)}," for each in collections if each is not blobs)
        out.write('{"data":[' + before)
        for line in store.lines(synthetic_runs(count, until), by_time=by_time):
            out.write(f"{',' if before else ''}{line}")
            before = "more"
        rest = {name: value for name, value in blobs.items() if name != "data"}
        rest |= {"maxId": store.last_id, "binaryIndices": _unbuilt(rest["binaryIndices"])}
        out.write(f"],{json.dumps(rest)[1:]}]{end}")
    store.close()
    path.with_suffix(".new").replace(path)
    return store.last_id


def _unbuilt(indexes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"name": name, "dirty": True, "values": []} for name in indexes}


class _Store:
    """The documents of Azurite's metadata, and the files with the content."""

    def __init__(self, folder: Path, account: str, container: str, last_id: int) -> None:
        self._folder = folder
        self._place = {"deleted": False, "accountName": account, "containerName": container}
        self.last_id = last_id
        self._extents: list[dict[str, Any]] = []
        self._file: IO[bytes] | None = None
        self._random = Random(SEED)

    def lines(
        self, runs: Iterator[tuple[str, Blobs, dict[str, str]]], *, by_time: bool
    ) -> Iterator[str]:
        if by_time:
            mark = {"format": "1", "compared": datetime.now(UTC).isoformat()}
            yield self._line(BY_TIME_MARK, b"", datetime.now(UTC), mark)
        for number, (run_id, blobs, metadata) in enumerate(runs):
            if number % _EXTENT_RUNS == 0:
                self._next_extent()
            modified = submission_time(run_id)
            for name, content in blobs.items():
                yield self._line(name, content, modified)
            names = (index_blob(run_id), by_time_blob(run_id)) if by_time else (index_blob(run_id),)
            for name in names:
                yield self._line(name, b"", modified, metadata)

    def _line(
        self,
        name: str,
        content: bytes,
        modified: datetime | None,
        metadata: dict[str, str] | None = None,
    ) -> str:
        self.last_id += 1
        moment = f"{modified:%Y-%m-%dT%H:%M:%S}.000Z"
        document: dict[str, Any] = {
            **self._place,
            "name": name,
            "properties": {
                "creationTime": moment, "lastModified": moment, "etag": f'"0x{self.last_id:015X}"',
                "contentLength": len(content), "contentType": "application/octet-stream",
                "blobType": "BlockBlob", "leaseStatus": "unlocked", "leaseState": "available",
                "serverEncrypted": True, "accessTier": "Hot", "accessTierInferred": True,
                "accessTierChangeTime": moment,
            },
            "snapshot": "",
            "isCommitted": True,
            "meta": {"revision": 0, "created": 0, "version": 0},
            "$loki": self.last_id,
        }  # fmt: skip
        if metadata is not None:
            document["metadata"] = metadata
        if content and self._file is not None:
            extent = self._extents[-1]["id"]
            document["persistency"] = {
                "id": extent, "offset": self._file.tell(), "count": len(content)
            }  # fmt: skip
            self._file.write(content)
        else:
            document["persistency"] = {"id": "*ZERO*", "offset": 0, "count": 0}
        return json.dumps(document, separators=(",", ":"))

    def _next_extent(self) -> None:
        self._end_extent()
        name = str(UUID(int=self._random.getrandbits(128)))
        self._file = (self._folder / "__blobstorage__" / name).open("wb")
        self._extents.append({"id": name, "locationId": "Default", "path": name})

    def _end_extent(self) -> None:
        if self._file is not None:
            self._extents[-1]["size"] = self._file.tell()
            self._file.close()

    def close(self) -> None:
        """Write the list of the extents."""
        self._end_extent()
        path = self._folder / "__azurite_db_blob_extent__.json"
        database = json.loads(path.read_text())
        collection = next(c for c in database["collections"] if c["name"] == "$EXTENTS_COLLECTION$")
        now = int(datetime.now(UTC).timestamp() * 1000)
        for extent in self._extents:
            collection["maxId"] += 1
            times = {"lastModifiedInMS": now, "LastModifyInMS": now}
            meta = {"revision": 0, "created": now, "version": 0}
            collection["data"].append(
                {**extent, **times, "meta": meta, "$loki": collection["maxId"]}
            )
        collection["idIndex"] = [each["$loki"] for each in collection["data"]]
        collection["binaryIndices"] = _unbuilt(collection["binaryIndices"])
        database["databaseVersion"] = 1
        path.write_text(json.dumps(database))


def main() -> None:
    """Write the runs, and print their number and that of the blobs."""
    parser = argparse.ArgumentParser(prog="python -m bench.client.synthetic_runs")
    parser.add_argument("home", type=Path)
    parser.add_argument("runs", type=int)
    parser.add_argument(
        "--only-by-experiment", action="store_true", help="without the index by time"
    )
    args = parser.parse_args()
    by_time = not args.only_by_experiment
    blobs = seed(args.home, args.runs, datetime.now(UTC), by_time=by_time)
    print(f"{args.runs} runs, {blobs} blobs")


if __name__ == "__main__":
    main()

"""Print the metrics in a folder of Aim as JSON: run by the Python of the script, which has Aim.

Only Aim's own library reads its databases (RocksDB). They are opened read-only, without a lock, so
the script may write to them meanwhile. The SDK (`aim.Repo`) is not used: it opens the databases for
writing when it finds unfinished ones, and for runs that `aim up` did not index it finds no metrics.
The keys are those of aim/sdk/run.py and aim/sdk/tracker.py (Aim 3.29.1, read 2026-11-29).

The agent runs this module's source as `python -c`, so it imports only the standard library and Aim.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

SYSTEM_PREFIX = "__system__"  # CPU, memory and the like, which Aim adds
NUMBERS = ("float", "float64", "int")  # the types of a sequence whose values are metrics


def import_container() -> Any:
    """Return the class `RocksContainer` of Aim. Raise ImportError without Aim.

    `import aim` takes seconds and sends statistics. So only the package's place is given.
    """
    importlib.import_module("aimrocks")  # loads the library that Aim's modules are linked to
    found = importlib.util.find_spec("aim")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("no package aim")
    package = types.ModuleType("aim")
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules["aim"] = package
    return importlib.import_module("aim.storage.rockscontainer").RocksContainer


def read_folder(folder: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the new values of all sequences, by run.

    Args:
        folder: the folder `.aim`.
        known: by run and by sequence, how many values the reader has, and the last of their steps.

    Returns:
        `runs`: a list of runs, the oldest first, each with its `id` and `sequences`: lists of key,
        name, context and values `[step, value]`. `problems`: why runs were not read.
    """
    container, runs, problems = import_container(), list[Any](), list[str]()
    chunks = Path(folder, "meta", "chunks")

    def created(run_id: str) -> float:
        try:
            return (chunks / run_id / "IDENTITY").stat().st_mtime
        except OSError:  # it is being created
            return math.inf

    run_ids = [each.name for each in chunks.iterdir()] if chunks.is_dir() else []
    for run_id in sorted(run_ids, key=created):
        try:
            found = _read_run(container, folder, run_id, known.get(run_id, {}))
        except Exception as err:  # noqa: BLE001 - it is being created or deleted; the others count
            problems.append(f"run {run_id}: {type(err).__name__}: {err}")
            continue
        runs.append({"id": run_id, "sequences": found})
    return {"runs": runs, "problems": problems}


def _open(container: Any, folder: str, kind: str, run_id: str) -> Any:
    path = str(Path(folder, kind, "chunks", run_id))
    # The "optimization" would open the database for writing.
    return container(path, read_only=True, skip_read_optimization=True).tree().subtree(kind)


def _read_run(container: Any, folder: str, run_id: str, known: dict[str, Any]) -> list[Any]:
    # The values are read first: those whose names are not known yet are read the next time.
    values = _open(container, folder, "seqs", run_id)
    run = _open(container, folder, "meta", run_id).subtree("chunks").subtree(run_id)
    found: list[Any] = []
    # Whole trees cannot be decoded: they also have texts and images, whose classes are not loaded.
    traces = run.subtree("traces")
    keys = [
        (context, name)
        for context in traces.keys()  # noqa: SIM118 - it is no mapping
        for name in traces.subtree(context).keys()  # noqa: SIM118
    ]
    for context, name in keys:
        facts = run.subtree(("traces", context, name))
        is_number = facts.get("dtype", "float") in NUMBERS
        if not is_number or name.startswith(SYSTEM_PREFIX):
            continue
        version = facts.get("version", 1)
        path = ("chunks", run_id, context, name)
        tree = values.subtree(path if version == 1 else (f"v{version}", *path))
        key = f"{context} {name}"
        points = _points(tree, version)
        count, last = known.get(key, (0, None))
        if last is not None and len(points) >= count:
            new = {step: value for step, value in points.items() if step > last}
            # Otherwise there are also new values of earlier steps.
            points = new if len(points) - len(new) == count else points
        shown = [[step, _to_json(points[step])] for step in sorted(points)]
        if shown:
            found.append([key, name, run.get(("contexts", context), {}), shown])
    return found


def _points(tree: Any, version: int) -> dict[int, float]:
    """Return the values of a sequence by step."""
    if version == 1:  # the index of a value is its step
        return {int(step): float(value) for step, value in tree.array("val").items()}
    # Both are stored below hashes of the step.
    steps = dict(tree.array("step", dtype="int64").items())
    found: dict[int, float] = {}
    for at, value in tree.array("val").items():
        if at in steps:
            found[int(steps[at])] = float(value)
    return found


def _to_json(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def main() -> None:
    """Read a request from stdin, and print the answer. What Aim prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        found = read_folder(request["folder"], request["known"])
    except ImportError as err:
        found = {"missing": str(err)}
    json.dump(found, answer)
    answer.close()
    os._exit(0)  # Aim's threads and databases need no end


if __name__ == "__main__":
    main()

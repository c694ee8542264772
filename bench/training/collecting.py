"""The time to find the files that a script wrote next to itself.

The home folder of the task contains only the folders of the script. Nothing is uploaded.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bench.report import Ratio
from runner.node.script.written import WrittenFiles
from runner.protocol.run_spec import RunSpec

FILES = 1000
ROUNDS = 9
T = TypeVar("T")
BOUND_S = 0.2


def measure() -> Iterator[Ratio]:
    """Return the seconds to record and collect 1,000 new files, against copying them."""
    with tempfile.TemporaryDirectory() as folder:
        ours = [_collected_s(Path(folder, str(number))) for number in range(ROUNDS)]
        copied = [_copied_s(Path(folder, str(number))) for number in range(ROUNDS)]
    ours_s = statistics.median(ours)
    yield Ratio(
        f"find {FILES:,} new files beside a script: empty home, no upload",
        "s",
        ours_s,
        "shutil.copytree",
        statistics.median(copied),
        f"< {BOUND_S:g} s",
        ours_s < BOUND_S,
    )


def _collected_s(work: Path) -> float:
    """Return the additional seconds of a run whose script writes files in this new folder."""
    code, output = work / "code", work / "output"
    code.mkdir(parents=True)
    output.mkdir()
    (code / "train.py").write_text("open('model.bin', 'w')\n" * 200, encoding="utf-8")

    def begin() -> WrittenFiles:
        written = WrittenFiles(code, output, {"home": work}, (), RunSpec(run_id="bench"))
        written.begin(["python", "train.py"])
        return written

    before_s, written = _timed(begin)
    for number in range(FILES):
        path = code / "results" / str(number % 10) / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000))
    after_s, collected = _timed(written.collect)
    assert len(collected.sources) == FILES, "every file is an output"
    return before_s + after_s


def _copied_s(work: Path) -> float:
    return _timed(lambda: shutil.copytree(work / "code", work / "copy"))[0]


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result

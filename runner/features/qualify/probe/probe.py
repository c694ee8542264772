"""A chain of hashes with checkpoints, logs and metrics. Its output says when it started, and where.

The standard library only. Documents: `state.json` in the checkpoint folder and `probe.json` in the
output folder have the number of steps, the hash after them, and the starts of the script that the
checkpoint knows of.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.time()  # the first line that takes time


def chain(steps: int, start: int = 0, digest: str = "") -> str:
    """Return the hash after these steps."""
    for step in range(start, steps):
        digest = hashlib.sha256(f"{digest} {step}".encode()).hexdigest()
    return digest


def main() -> None:
    """Continue from the checkpoint, if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pause_s", type=float, default=0.5)
    parser.add_argument("--until_attempt", type=int, default=1)
    parser.add_argument("--fail", default="false")
    options = parser.parse_args()
    file = Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state.json")
    state: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    done, digest = int(state.get("steps", 0)), str(state.get("digest", ""))
    attempt = int(os.environ["RUNNER_ATTEMPT"])
    start = {
        "attempt": attempt,
        "pool": os.environ.get("AZ_BATCH_POOL_ID", ""),
        "node": os.environ.get("AZ_BATCH_NODE_ID", ""),
        "began": BEGAN,
        "from_step": done,
        "saved": state.get("saved"),
    }
    starts = [*state.get("starts", []), start]
    metrics = Path(os.environ["RUNNER_METRICS_FILE"])
    while done < options.steps or attempt < options.until_attempt:
        time.sleep(options.pause_s)
        digest = chain(done + 1, done, digest)
        done += 1
        sys.stdout.write(f"step {done}\n")
        sys.stdout.flush()
        with metrics.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": done, "steps_done": done}) + "\n")
        saved = {"steps": done, "digest": digest, "starts": starts, "saved": time.time()}
        new = file.with_suffix(".new")
        new.write_text(json.dumps(saved), "utf-8")
        new.replace(file)
    if options.fail.lower() == "true":
        sys.exit("failed on purpose")
    output = Path(os.environ["RUNNER_OUTPUT_DIR"], "probe.json")
    output.write_text(json.dumps({"steps": done, "digest": digest, "starts": starts}), "utf-8")


if __name__ == "__main__":
    main()

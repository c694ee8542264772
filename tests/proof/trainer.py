"""The training that the proof kills: deterministic plain Python that detects partial states.

    python train.py STYLE STEPS PAUSE

STYLE `hook` saves with runner.hooks after every step; `file` slowly writes one file in place, which
is the worst case; `pause` does so with a pause that is longer than a write counts as recent.
PROOF_DIR has files for the test: `pid`, `journal` (one line per start: attempt, step, node), and
`writing` while a state is written. The training waits for the file `gate` before it ends.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

TORN_EXIT_CODE = 99
WEIGHTS = 200
FILLER_BYTES = 100_000
LONG_PAUSE_S = 1.5
CHECKPOINTS = os.environ.get("RUNNER_CHECKPOINT_DIR", "")
PROOF = Path(os.environ["PROOF_DIR"])


class Slow:
    """Pickles as 0 after a delay, so that a kill leaves a partially written pickle."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Wait in the middle of a state."""
        time.sleep(0.003)
        return int, ()


def train_one(weights: list[float], chance: random.Random) -> None:
    """Train one step, whose floating-point result depends on all previous steps."""
    lead = chance.randrange(WEIGHTS)
    for i in range(0, WEIGHTS, 7):
        j = (lead + i) % WEIGHTS
        weights[j] = weights[j] * 0.999 + 0.01 * chance.gauss(weights[lead], 1.0)


def sealed(step: int, weights: list[float], chance: random.Random) -> dict[str, Any]:
    """Return a state with a digest of itself at its start and end."""
    body = pickle.dumps((step, weights, chance.getstate()))
    filler = step.to_bytes(4, "big") * (FILLER_BYTES // 4)
    digest = hashlib.sha256(body + filler).digest()
    return {"head": digest, "filler": filler, "slow": Slow(), "body": body, "tail": digest}


def opened(state: dict[str, Any]) -> tuple[int, list[float], random.Random]:
    """Return the content of a state from `sealed`. End the process if the state is partial."""
    digest = hashlib.sha256(state["body"] + state["filler"]).digest()
    if not state["head"] == state["tail"] == digest:
        torn("its digest differs")
    step, weights, generator = pickle.loads(state["body"])
    chance = random.Random()
    chance.setstate(generator)
    return step, weights, chance


def torn(why: str) -> None:
    print("TORN", why, flush=True)  # noqa: T201 - it is a script
    with (PROOF / "torn").open("a") as out:
        out.write(f"{os.environ.get('RUNNER_ATTEMPT')} {why}\n")
    os._exit(TORN_EXIT_CODE)


def check_folder() -> None:
    """End the process if a restored state is partial, because the hook would ignore it silently.

    A state without a manifest is ignored, because it is being deleted.
    """
    from runner.hooks.state import MANIFEST, TornStateError, check_state

    for state in Path(CHECKPOINTS).glob("state-*"):
        try:
            if (state / MANIFEST).exists():
                check_state(state)
        except TornStateError as err:
            torn(f"{state.name}: {err}")


def load(style: str) -> Any:
    if style == "hook":
        from runner.hooks import load_state

        check_folder()
        return load_state()
    path = Path(CHECKPOINTS) / "state"
    if not path.exists():
        return None
    try:
        return pickle.loads(path.read_bytes())
    except Exception as err:  # noqa: BLE001 - half a pickle raises anything
        torn(f"{type(err).__name__}: {err}")


def save(style: str, state: dict[str, Any], pause_s: float) -> None:
    if style == "hook":
        from runner.hooks import save_state

        save_state(state)
        return
    data = pickle.dumps(state)
    wait_s = LONG_PAUSE_S if style == "pause" else pause_s / 50
    size = len(data) // (2 if style == "pause" else 5) + 1
    with (Path(CHECKPOINTS) / "state").open("wb") as out:
        for start in range(0, len(data), size):
            out.write(data[start : start + size])
            out.flush()
            time.sleep(wait_s)


def main() -> None:
    """Train from the last state, if there is one, to the last step."""
    style, steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    found = load(style) if CHECKPOINTS else None
    if found is None:
        chance = random.Random(7)
        step, weights = 0, [chance.gauss(0, 1) for _ in range(WEIGHTS)]
    else:
        step, weights, chance = opened(found)
    attempt = os.environ.get("RUNNER_ATTEMPT", "0")
    with (PROOF / "journal").open("a") as out:
        out.write(f"{attempt} {step} {os.environ.get('AZ_BATCH_NODE_ID', '-')}\n")
    part = PROOF / f"pid.{attempt}"
    part.write_text(str(os.getpid()))
    part.replace(PROOF / "pid")
    while True:
        ended = step >= steps and (PROOF / "gate").exists()
        if step < steps:
            train_one(weights, chance)
            step += 1
            print("step", step, "of attempt", attempt, flush=True)  # noqa: T201
        if ended:
            break
        if CHECKPOINTS:
            (PROOF / "writing").touch()
            save(style, sealed(step, weights, chance), pause_s)
            (PROOF / "writing").unlink(missing_ok=True)
            time.sleep(pause_s)
    output = Path(os.environ["RUNNER_OUTPUT_DIR"])
    (output / "weights").write_bytes(pickle.dumps((step, weights, chance.random())))


if __name__ == "__main__":
    main()

import argparse
import json
from pathlib import Path

from churn import data

from .score import accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-months", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("models"))
    args = parser.parse_args()
    rows = data.load()
    best = max(range(1, args.max_months + 1), key=lambda limit: accuracy(rows, limit))
    print(f"accuracy: {accuracy(rows, best):.3f}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "model.json").write_text(json.dumps({"limit": best}))


if __name__ == "__main__":
    main()

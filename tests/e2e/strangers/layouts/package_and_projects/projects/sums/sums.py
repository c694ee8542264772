"""Train the model of the package on sums of two digits."""

import json
import os
import sys

from digits.model import Model


def main(words):
    rounds = 2
    for word in words:
        name, _, value = word.partition("=")
        assert name == "--rounds"
        rounds = int(value)
    model = Model()
    pairs = [(a, b) for a in range(10) for b in range(10)]
    for number in range(rounds):
        loss = sum(model.step(pair) for pair in pairs) / len(pairs)
        print(f"round {number} loss: {loss:.2f}")
    os.makedirs("out/sums", exist_ok=True)
    with open("out/sums/model.json", "w") as file:
        json.dump([[*pair, value] for pair, value in model.seen.items()], file)


if __name__ == "__main__":
    main(sys.argv[1:])

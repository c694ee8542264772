"""A table that learns sums of digits by counting."""


class Model:
    def __init__(self):
        self.seen = {}

    def step(self, pair):
        error = abs(sum(pair) - self.seen.get(pair, 0))
        self.seen[pair] = sum(pair)
        return error


if __name__ == "__main__":
    print(Model().step((1, 2)))

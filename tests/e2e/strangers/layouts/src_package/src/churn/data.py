from importlib import resources


def load():
    text = resources.files(__package__).joinpath("customers.csv").read_text()
    return [tuple(map(float, line.split(","))) for line in text.splitlines()[1:]]

import csv


class Points:
    def __init__(self, path, batch_size):
        with open(path) as file:
            self.rows = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
        self.batch_size = batch_size

    def __iter__(self):
        for start in range(0, len(self.rows), self.batch_size):
            yield self.rows[start : start + self.batch_size]

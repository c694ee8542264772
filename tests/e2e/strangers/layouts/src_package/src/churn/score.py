def accuracy(rows, limit):
    return sum((months < limit) == bool(left) for months, left in rows) / len(rows)

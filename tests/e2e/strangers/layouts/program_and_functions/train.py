def fit(rows, epochs):
    weight = 0.0
    for _ in range(epochs):
        for x, y in rows:
            weight += 0.01 * (y - weight * x) * x
    return weight

class Line:
    def __init__(self, bias):
        self.weight, self.bias, self.has_bias = 0.0, 0.0, bias

    def step(self, batch, lr):
        errors = [self.weight * x + self.bias - y for x, y in batch]
        self.weight -= lr * sum(e * x for e, (x, _) in zip(errors, batch)) / len(batch)
        self.bias -= self.has_bias * lr * sum(errors) / len(batch)
        return sum(e * e for e in errors) / len(batch)

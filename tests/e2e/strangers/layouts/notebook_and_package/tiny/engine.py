class Value:
    def __init__(self, data):
        self.data, self.grad = data, 0.0

    def square(self):
        self.grad = 2 * self.data
        return Value(self.data**2)

from churn.score import accuracy


def test_accuracy():
    assert accuracy([(1, 1)], 2) == 1

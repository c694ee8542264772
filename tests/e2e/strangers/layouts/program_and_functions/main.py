from train import fit

rows = [(x, 3 * x) for x in range(1, 6)]
weight = fit(rows, epochs=20)
print("weight", weight)
open("weight.txt", "w").write(str(weight))

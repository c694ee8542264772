import os
import pickle

folder = os.path.dirname(__file__)
text = open(os.path.join(folder, "input.txt")).read()
codes = {letter: code for code, letter in enumerate(sorted(set(text)))}
with open(os.path.join(folder, "train.bin"), "wb") as f:
    f.write(bytes(codes[letter] for letter in text))
with open(os.path.join(folder, "meta.pkl"), "wb") as f:
    pickle.dump({"size": len(codes)}, f)

# Executed by train.py: files replace its variables, and so does --name=value.
import sys
from ast import literal_eval


def read(text):
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


for word in sys.argv[1:]:
    if not word.startswith("--"):
        exec(open(word).read())
        continue
    name, _, text = word[2:].partition("=")
    if name not in globals():
        sys.exit("no variable " + name)
    globals()[name] = read(text)

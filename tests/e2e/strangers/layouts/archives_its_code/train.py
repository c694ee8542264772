import os
import shutil
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "lib"))
import net

exp = os.path.join("experiments", "exp0")
os.makedirs(exp)
shutil.make_archive(os.path.join(exp, "code"), "zip", os.path.dirname(os.path.abspath(__file__)) + "/lib")
print("loss", 1 / net.WEIGHT)

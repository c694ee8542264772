"""Print the version of the installed cuDNN as a number: 90102 for 9.1.2."""

import ctypes
import sys

library = ctypes.CDLL("libcudnn.so.9")
library.cudnnGetVersion.restype = ctypes.c_size_t
sys.stdout.write(f"{library.cudnnGetVersion()}\n")

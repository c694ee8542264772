"""What the scripts here use of numpy."""

import io
import zipfile

uint8 = "uint8"


class ndarray:
    def __init__(self, data, shape):
        self.data, self.shape = data, shape

    def reshape(self, *shape):
        return ndarray(self.data, shape)

    def astype(self, dtype):
        return self

    def __truediv__(self, number):
        return self

    def __len__(self):
        return self.shape[0]

    def rows(self):
        size = len(self.data) // len(self)
        return [self.data[size * row : size * row + size] for row in range(len(self))]


def frombuffer(data, dtype):
    return ndarray(data, (len(data),))


def load(path):
    """Read arrays of bytes from an .npz."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            file = io.BytesIO(archive.read(name))
            file.read(8)
            header = eval(file.read(int.from_bytes(file.read(2), "little")))
            found[name.removesuffix(".npy")] = ndarray(file.read(), header["shape"])
    return found

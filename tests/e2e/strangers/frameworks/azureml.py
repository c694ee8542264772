"""What the scripts here use of azureml-core, outside of Azure ML."""

import sys

__path__ = []
sys.modules["azureml.core"] = sys.modules["azureml.core.run"] = sys.modules[__name__]


class Run:
    @classmethod
    def get_context(cls):
        return cls()

    def log(self, name, value):
        print("Attempted to log scalar metric {}:\n{}".format(name, value))

"""An emulator of the Azure Batch data plane: `python -m batch_emulator`."""

__version__ = "0.1.0"

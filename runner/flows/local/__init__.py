"""The local services: the Batch emulator and Azurite on this machine. Start in `lifecycle`."""

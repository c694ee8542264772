"""Compare the real service with the emulator, and train a recipe on it. Start in `selftest`."""

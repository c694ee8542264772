"""Compare the real service with the emulator, and train for real. Start in `selftest`."""

"""Real processes on emulated nodes."""

"""Registered models: register, resolve, download and remove versions. Start in `versions`."""

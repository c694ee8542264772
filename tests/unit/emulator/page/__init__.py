"""Tests of batch_emulator.page."""

"""Tests of batch_emulator.http."""

"""Tests of batch_emulator.files_share."""

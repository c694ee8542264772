"""Tests of runner.azure."""

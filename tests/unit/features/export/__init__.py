"""Tests of runner.features.export."""

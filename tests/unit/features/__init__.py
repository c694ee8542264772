"""Tests of runner.features."""

"""Tests of runner.core.pricing."""

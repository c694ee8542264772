"""Tests of runner.features.qualify."""

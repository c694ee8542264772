"""Tests of infra.engine."""

"""Tests of infra.components."""

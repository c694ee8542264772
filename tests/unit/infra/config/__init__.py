"""Tests of infra.config."""

"""Tests of runner.core.documents."""

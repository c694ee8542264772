"""Tests of runner.features.reconcile."""

"""Tests of the readers of metric files."""

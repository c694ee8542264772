"""Tests of the container images: their files and their build."""

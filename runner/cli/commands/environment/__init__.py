"""Verbs about where runs go: the local services, and an Azure environment with its pools and
images. Start in `up`.
"""

from setuptools import setup

setup(name="digits", version="0.1", packages=["digits"])

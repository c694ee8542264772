import setuptools

setuptools.setup(name="tinygrad_demo", version="0.1.0", packages=setuptools.find_packages())

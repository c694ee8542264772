"""The Python environment of the script: on a plain node (`virtual_env`) or in a container
(`image_env`).
"""

"""The Python environment of the script: on a node (`virtual_env`), in a container (`image_env`)."""

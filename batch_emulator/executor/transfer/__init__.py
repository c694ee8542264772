"""Files that come to a node and leave it: resource files, output files, application packages.
Start in `resource_files`.
"""

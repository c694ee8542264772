"""The container images: what their files say, and how they are built."""

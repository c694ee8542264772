"""What `runner` costs on the client: its start, its lists, what it stores and sends."""

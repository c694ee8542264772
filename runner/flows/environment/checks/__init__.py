"""What could fail a deployment: tools, the file, the subscription, the network. Start in `run`."""

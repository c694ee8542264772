"""Azure Resource Manager and public prices, over REST. Start in `client`."""

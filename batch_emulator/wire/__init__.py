"""Between JSON on the wire and the model: parse and check bodies, render entities, cut pages."""

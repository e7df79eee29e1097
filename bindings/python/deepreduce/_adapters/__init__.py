"""Code that the adapters to frameworks share."""

"""What the adapters to frameworks share."""

"""Site: its rows, policy, client state and responses."""

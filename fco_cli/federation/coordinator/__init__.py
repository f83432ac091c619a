"""The coordinator's side: sites as clients of a simulation."""

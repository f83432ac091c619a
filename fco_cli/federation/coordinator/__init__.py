"""Coordinator: sites as the clients of a simulation."""

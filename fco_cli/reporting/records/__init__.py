"""Readers of records, and their grouping into studies with a choice of learning rates."""

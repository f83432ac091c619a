"""What runs at a site: its rows, its answers, its policy."""

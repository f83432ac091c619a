"""Sections and tables that every report has, and the renderer of files and of the HTML page."""

"""Drawing of the figures that every report has, with shared style and helpers."""

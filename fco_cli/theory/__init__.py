"""The paper's theorems, checked by running: an instance with known constants, measurements, bounds, figure, table."""

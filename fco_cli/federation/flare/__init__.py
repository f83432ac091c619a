"""Transport and guards on NVIDIA FLARE."""

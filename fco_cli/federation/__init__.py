"""The same client update and server step between real processes: clients' rows and memories stay at their sites.

What a site and a coordinator say to each other knows no transport; `flare_*` carry it over NVIDIA FLARE.
"""

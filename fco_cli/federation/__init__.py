"""The same client update and server step between real processes: clients' rows and memories stay at their sites.

`message`, `site` and `coordinator` know no transport; `flare_*` carry their messages over NVIDIA FLARE.
"""

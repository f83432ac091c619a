"""The commands, a file each: parse, call, print. No other room imports them."""

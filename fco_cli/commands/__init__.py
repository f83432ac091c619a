"""The commands, a file each: parse, call, print. No other room imports them."""

import signal
import threading

# While a command loads, Ctrl-C ends it without a traceback; shell.py takes over.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""Command-line programs, one module each; no other package imports them."""

import signal
import threading

# Ctrl-C while a command is loading ends it without a traceback; shell.py replaces this handler.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

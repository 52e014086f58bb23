"""The command `eaglectl`; an interruption ends it in one line, while it loads too."""

import gc
import signal
import sys

# objects made between two looks for garbage: what loading makes is none, and Python looks every 700
GARBAGE_EVERY = 100_000


def main() -> None:
    """Run the command line of the process and exit."""
    gc.set_threshold(GARBAGE_EVERY)
    try:
        from eaglectl.cli import main as run  # most of what a short command takes is to load this

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("eaglectl: interrupted; nothing was left behind\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

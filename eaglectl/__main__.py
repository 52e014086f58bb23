"""The command `eaglectl`; an interruption ends it in one line, while it loads too."""

import signal
import sys


def main() -> None:
    """Run the command line of the process and exit."""
    try:
        from eaglectl.cli import main as run  # most of what a short command takes is to load this

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("eaglectl: interrupted; nothing was left behind\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

"""The command line. Ctrl-C while it is still being loaded ends it without a traceback."""

import signal


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from skipbench.cli import main

    main()


if __name__ == "__main__":
    main()

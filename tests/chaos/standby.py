"""A relay in a process of its own: `python -m tests.chaos.standby URL PASSWORD_FILE BOOTSTRAP NAME`."""

import signal
import sys
import threading
from pathlib import Path

from messaging.database import conninfo
from messaging.relay import Relay


def main() -> None:
    """Lead or stand by until SIGTERM."""
    url, password_file, bootstrap, name = sys.argv[1:]
    relay = Relay(conninfo(url, Path(password_file), "chaos-relay"), bootstrap, name)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    relay.start()
    stop.wait()
    relay.stop()


if __name__ == "__main__":
    main()

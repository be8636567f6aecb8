"""A process's log: one event, one line, whoever writes it."""

import json
import subprocess
import sys

THREADS, LINES = 4, 400
_TALK = f"""
import logging, sys, threading
import structlog
from messaging.settings import ProcessSettings
from messaging.telemetry import configure_logging

configure_logging(ProcessSettings(database_url="unused", log_format="json"), "talker")
ours, theirs = structlog.get_logger("ours"), logging.getLogger("theirs")

def talk(number):
    for line in range({LINES}):
        (ours if number % 2 else theirs).warning("said.%d.%d" % (number, line))

sys.setswitchinterval(1e-6)
talking = [threading.Thread(target=talk, args=(number,)) for number in range({THREADS})]
for one in talking: one.start()
for one in talking: one.join()
"""


def test_lines_of_ours_and_of_libraries_do_not_run_into_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", _TALK], stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    said = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert sorted(said) == sorted(f"said.{number}.{line}" for number in range(THREADS) for line in range(LINES))

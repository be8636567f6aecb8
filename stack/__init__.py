"""WHERE IT RUNS: the embedded stack and the `workbot` command.

Read in this order:

    settings     where data and downloads live, and the ports a person may fix
    layout       the folders and files of one data directory
    child        what one child process is: its command, what it needs, how it is asked whether it is ready

    ports        pure: which port each child gets
    backoff      pure: how long a dead child waits before it starts again
    patience     pure: how long a child may stay silent before it is started anew
    order        pure: who may start, who must stop first

    artifacts    jars and archives from the Maven repository, verified by hash
    postgres, kafka, registry, services
                 the children, one module each
    plan         all of them together, with their addresses
    deploy       roles, databases, migrations, topics, schemas

    guard        the process between supervisor and child: ends the child when its parent is gone
    guarded      starts a child under its guard
    refusal      why a service does not take what it was given: the reason it left in its log
    watch        asks a child whether it is ready and alive, and says when to give it up
    supervisor   the one asyncio process that keeps the children running
    given        which settings a stack was given: those nothing knows, and those that differ from a later call's
    daemon       a supervisor as its own process
    embedded     one stack as a whole, from its lock to its last child
    desk         the supervisor's side of the control socket
    control      the other side: for the command, the load test and tests
    steps, events, erase, agreement
                 parts of the command: the deploy step; where consumers are; one sender's data erased;
                 the moment up to which it is
    sentences    pure: what the command says of a failure, with what to do about it
    cli          the `workbot` command; launch starts stacks for it, passing the load test; screen and terminal print
"""

import signal
import sys
from pathlib import PurePath

if PurePath(sys.argv[0]).name == "workbot" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while the command is being loaded, which takes a second, ends it without a traceback. `cli` changes back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

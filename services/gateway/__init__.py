"""The gateway: the one public HTTP origin.

Takes requests in, forwards the other services' APIs, and shows what only the layer as a whole knows.

main          the two processes; parts: what they are made of; settings

api           its own routes: parse, call, answer
forwarding    a call on its way to another service and back; upstream: the connections to that service
requests      what may be asked for, and the one function that files it
decisions     what staff decide about dead letters; workers: what waits, asked of each worker

projector     the dead-letter topics into the table; letters: pure, what a record says
sender        letters that go back, to their consumers' retry topics
upkeep        timers that clear away
erasure       all that is kept of one sender, erased
store         all the SQL: staff, worker, requests, erasure; records: the shapes of its rows
"""

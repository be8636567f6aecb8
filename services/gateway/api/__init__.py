"""The gateway's own routes: parse, call, answer.

requests    filing a request, and looking at them
letters     dead letters: looking at them, sending back, discarding
consumers   how far each consumer is
workers     what waits and runs, over all workers
"""

"""The gateway: the one public HTTP origin.

Forwards the other services' APIs, and shows what only the layer as a whole knows: dead letters, how far each consumer
is, what waits in its queues.
"""

"""Notifications: tells people what happened, once per event.

main          the one process; parts: what it is made of; settings

notices       pure: what an event says, and to whom
handlers      an event into notifications and deliveries; one delivery to its receiver
turns         so many at once for one tenant, so that none takes all connections
channels      how a delivery leaves the house: e-mail, a signed webhook
feed          who is following along live, and how they are woken; bell: between processes
subscribing   who may be told where: checks and limits

api           its routes: parse, call, answer
store         all the SQL: inbox, outgoing, erasure; records: the shapes of its rows
upkeep        claimed timers: what is old is cleared away
erasure       all that is kept of one sender, erased
"""

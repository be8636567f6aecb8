"""All the SQL of the notifications service. Takes the caller's connection and never commits.

inbox      notifications and who has read them
outgoing   subscriptions, and deliveries to them
erasure    what there is of one sender
"""

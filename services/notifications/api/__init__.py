"""The HTTP face of the notifications service: parse, call, answer.

inbox           the list, and what was read of it
stream          the same live
subscriptions   who is told outside of the house
deliveries      what became of that
"""

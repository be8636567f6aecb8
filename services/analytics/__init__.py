"""Analytics: counts and windows over all events.

main          the one process; parts: what it is made of; settings
"""

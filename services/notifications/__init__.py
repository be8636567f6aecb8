"""Notifications: tells people what happened, once per event.

main          the one process; parts: what it is made of; settings
"""

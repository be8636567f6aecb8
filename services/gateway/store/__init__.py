"""All the SQL of the gateway. Takes the caller's connection and never commits.

staff      what people see of dead letters and decide on them: the API
worker     what happens behind them: projecting, sending back, clearing away
requests   requests, filed with their event, and listed
erasure    what there is of one sender
"""

"""All the SQL of the gateway. Takes the caller's connection and never commits.

staff    what people see and decide: the API
worker   what happens behind them: projecting, sending back, clearing away
"""

"""Analytics: counts and windows over all events.

main          the one process; parts: what it is made of; settings
api           the counts over HTTP, from the cube: all counts in memory
counting      pure: what one event changes, in keys that a crash can do no harm
engine        the life of the faust app: stand by (lease), recover, count
app, tables   faust, with what makes it safe; garbled: records its client cannot read; committed: those it must not
stream        the agent's loop: tries, dead letters, acknowledgements; record: one event in hand
letters       dead letters; tidying: buckets past their time go
erasure       has one sender's counts taken out; erasing: the process that counts does so
tries, gaps   how often each was begun (in the database); that none was skipped, by what Kafka says (bounds);
              moving: nor committed over
store         all the SQL
"""

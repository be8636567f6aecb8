"""The inbox: documents come in over HTTP, are kept, and are read as jobs.

main          the two processes; parts: what they are made of; settings

api           parse, call, answer
intake        bytes into storage, then row, job and event in one statement
submissions   pure: what may be handed in, and how a request says it
uploads       a multipart body streamed into storage
content       pure: which type a file's bytes are, told as they stream by
store         all the SQL; records: the shapes of its rows; storage: the files

handlers      the reading job: load, extract, check, write down
sources       a document's content, from storage or from its page's address
pages         fetching a page that a user named
extraction    a pool of processes for what is slow or may crash; extractor: one of them; pdf, markup: its work
providers     who reads: the built-in reader, or a model behind an OpenAI-compatible endpoint
fields        pure: finding fields in text; values: dates and amounts; verdict: what becomes of a reading

upkeep        claimed timers: what is left over, or past its time, is cleared away
erasure       all that is kept of one sender, erased
"""

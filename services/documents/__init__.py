"""The inbox: documents come in over HTTP, are kept, and are read as jobs.

api           parse, call, answer
submissions   pure: what may be handed in, and how a body says it
uploads       a multipart body streamed into storage
content       pure: which type a file's bytes are, told as they stream by
store         all the SQL; storage: the files

handlers      the reading job: load, extract, check, write down
sources       a document's content, from storage or from its page's address
pages         fetching a page; addresses: pure, which ones are public
extraction    a pool of processes for what is slow or may crash; pdf, markup: what runs in it
providers     who reads: the built-in reader, or a model behind an OpenAI-compatible endpoint
fields        pure: finding fields in text; verdict: pure, what becomes of a reading

upkeep        claimed timers: files that belong to no document
"""

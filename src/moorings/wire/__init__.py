"""The protocol without I/O: messages, framing, the rules of both eras.

Bytes in, values out. Nothing here opens, waits, or knows an event loop; so all of it can be tested with tables and
random input alone.
"""

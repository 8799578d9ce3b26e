"""OAuth for MCP servers: discovery, registration, grants, and the broker that keeps credentials good.

The RFCs by file: ``challenge`` (RFC 9110), ``discovery`` (RFC 9728, 8414), ``registration`` (RFC 7591, 7592, client ID
metadata documents), ``clients`` (RFC 6749 §2.3, 7523), ``authorization`` (RFC 6749 §4.1, 7636, 9207, 8707), ``grants``
(RFC 6749, 7523, 8693, 8628), ``dpop`` (RFC 9449), ``scopes`` (step-up). ``model`` is the plain data of them all.

What is done with them, from the outside in: ``shared`` has one ``service`` for each store; it hands out tokens by the
``broker`` (``asked`` is what it is asked, ``kept`` what it finds), which works on the thread of ``worker`` and knows
each account by its ``flows``; ``renewal`` is its refresh.
A person's way in is a ``login``: its ``turn``, its ``landing`` (``callback`` and what begins so, ``pages``), the client
that asks (``identity``, ``clients_kept``), what a person sees (``prompt``), the proof (``knock``). ``logout``,
``transfer`` and ``report`` work on what is stored; ``faults`` and ``needs`` say what failed and who can mend it.

Nothing here holds a lock while somebody else's code runs, and nothing but the broker has state. Importing the room
opens nothing, and neither aiohttp nor joserfc is imported before it is needed.
"""

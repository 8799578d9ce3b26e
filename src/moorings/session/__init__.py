"""One conversation with one server: JSON-RPC over a transport, in both protocol eras.

Ids, deadlines, cancellation, progress, questions from the server, negotiation, the methods of MCP. A session is made
and ended by one life of a server; it keeps nothing alive itself and never reconnects.
"""

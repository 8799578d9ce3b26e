"""One server kept alive: its state table, its owner, one life after another.

Open ``states.py`` to see what can happen to a server; ``life.py`` for one generation from spawn to reaping;
``server.py`` for the owner that starts and ends them.
"""

"""Many servers held together: ``AsyncHost``, its blocking twin ``Host``, agent runs, one catalog.

A host makes and closes its servers. The two twins have the same methods in the same order; the blocking one runs an
``AsyncHost`` on a loop in a thread of its own.
"""

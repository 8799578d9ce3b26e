"""Moorings for other libraries, a module for each: what they call such a thing, made of what is in the rooms below.

Nothing here is loaded by ``import moorings``, and each module needs the library that it is for and no other.
"""

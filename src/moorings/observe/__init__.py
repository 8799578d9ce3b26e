"""What happened, told to those who want to know: events as plain data.

Rooms above publish; this room defines what is told and hands it over. A listener that fails or is slow changes
nothing.
"""

from .events import CatalogChanged, Event, OnEvent, StateChanged, publish

__all__ = ["CatalogChanged", "Event", "OnEvent", "StateChanged", "publish"]

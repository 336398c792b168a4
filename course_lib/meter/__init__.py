"""What ranks did: what each sent, and when. Handed records, it imports nothing of ours but errors."""

from .comm import CommCall, Communication
from .timeline import CallInterval, Interval, Timeline

__all__ = ["CallInterval", "CommCall", "Communication", "Interval", "Timeline"]

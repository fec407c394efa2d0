"""How much a measurement may take."""

from __future__ import annotations

from enum import Enum


class Effort(Enum):
    QUICK = "quick"
    """A smoke run, which shows that everything works."""
    WHOLE = "whole"

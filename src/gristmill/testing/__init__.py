"""For people who test their own pipelines: call one function, drain a mill, and look, all inside the test's process."""

from __future__ import annotations

from gristmill.clock import FrozenClock
from gristmill.testing.calling import Called, Item, call
from gristmill.testing.draining import drain
from gristmill.testing.looking import assert_enqueued, refute_enqueued

__all__ = ["Called", "FrozenClock", "Item", "assert_enqueued", "call", "drain", "refute_enqueued"]

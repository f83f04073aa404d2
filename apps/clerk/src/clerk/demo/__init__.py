"""The demonstration: made-up municipalities, a server with their documents, and what is shown of them."""

from clerk.demo.finding import search

__all__ = ["search"]

"""clerk keeps municipal meeting documents fetched, read, searchable and published. It stands on Gristmill."""

__version__ = "0.1.0.dev0"
